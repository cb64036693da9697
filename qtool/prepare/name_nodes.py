"""Give every node and value of the top graph a name of its own.

Scope: the top graph. Bodies keep their names: sibling branches may repeat them by the standard, and they are not
touched by any later pass.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import NameAllocator, PreparePass, plural


class NameNodesPass(PreparePass):
    """Name nodes and values that have no name or share one.

    The first holder keeps a shared name; graph inputs, initializers and graph outputs always keep theirs.
    """

    def describe(self) -> str:
        """One line for the renamed nodes and values."""
        return f"named {plural(self.count, 'node or value')} that had no name of its own"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename in graph order."""
        before = self.count
        names = NameAllocator(model)
        used_nodes: set[str] = set()
        used_values = {value.name: value for value in model.graph.inputs}
        used_values.update({value.name: value for value in model.graph.initializers.values()})
        for output in model.graph.outputs:
            used_values.setdefault(output.name, output)
        for node in model.graph:
            if not node.name or node.name in used_nodes:
                node.name = names.node(node.name or f"node_{node.op_type}")
                self.count += 1
            used_nodes.add(node.name)
            for value in node.outputs:
                # An unnamed output without a reader is an optional output that was left out.
                if not value.name and not value.uses() and not value.is_graph_output():
                    continue
                if not value.name or used_values.get(value.name, value) is not value:
                    value.name = names.value(value.name or f"{node.name}_output")
                    self.count += 1
                used_values[value.name] = value
        return ir.passes.PassResult(model, modified=self.count > before)
