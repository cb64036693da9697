"""Give every node and value of the top graph a name of its own.

Scope: the top graph. Bodies keep their names: sibling branches may repeat them by the standard, and they are not
touched by any later pass. On request the nodes and values of bodies get names of their own, too, for plans that name
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qtool.prepare.graph_edits import NameAllocator, PreparePass, plural
from qtool.prepare.lift_constants import own_tensor


class NameNodesPass(PreparePass):
    """Name nodes and values that have no name or share one.

    The first holder keeps a shared name; graph inputs, initializers and graph outputs always keep theirs.

    Attributes:
        count: Of names that had to change; giving a name to the nameless is not worth a line.
    """

    def describe(self) -> str:
        """One line for the changed names."""
        return f"changed {plural(self.count, 'name')} that stood for two things"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename in graph order."""
        modified = False
        names = NameAllocator(model)
        used_nodes: set[str] = set()
        used_values: dict[str | None, ir.Value] = {value.name: value for value in model.graph.inputs}
        used_values.update({value.name: value for value in model.graph.initializers.values()})
        for output in model.graph.outputs:
            used_values.setdefault(output.name, output)
        for node in model.graph:
            if not node.name or node.name in used_nodes:
                self.count += bool(node.name)
                node.name = names.node(node.name or f"node_{node.op_type}")
                modified = True
            used_nodes.add(node.name)
            for value in node.outputs:
                # An unnamed output without a reader is an optional output that was left out.
                if not value.name and not value.uses() and not value.is_graph_output():
                    continue
                if not value.name or used_values.get(value.name, value) is not value:
                    self.count += bool(value.name)
                    value.name = names.value(value.name or f"{node.name}_output")
                    modified = True
                used_values[value.name] = value
        for graph in self.scope(model)[1:]:
            for number, node in enumerate(graph):
                if not node.name or node.name in used_nodes:
                    self.count += bool(node.name)
                    node.name = names.node(node.name or f"node_{node.op_type}_{number}")
                    modified = True
                used_nodes.add(node.name)
                modified |= self._name_values(node.outputs, used_values, names, f"{node.name}_output")
            modified |= self._name_values(graph.inputs, used_values, names, "input")
            modified |= self._name_values(list(graph.initializers.values()), used_values, names, "constant")
        return ir.passes.PassResult(model, modified=modified)

    def _name_values(
        self, values: Sequence[ir.Value], used: dict[str | None, ir.Value], names: NameAllocator, base: str
    ) -> bool:
        """Names of their own for values of a body, whose interface goes by position; whether any name changed."""
        modified = False
        for value in values:
            if not value.name and not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                continue
            if not value.name or used.get(value.name, value) is not value:
                self.count += bool(value.name)
                if value.const_value is not None:  # renaming would rename the caller's tensor
                    value.const_value = own_tensor(value.const_value, value.name)
                value.name = names.value(value.name or base)
                modified = True
            used[value.name] = value
        return modified
