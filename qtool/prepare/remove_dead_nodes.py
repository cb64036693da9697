"""Remove what no output needs, so that nothing examines a weight on a dead branch.

Scope: the top graph, and bodies on request. What bodies capture counts as used.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, plural


class RemoveDeadNodesPass(PreparePass):
    """Remove nodes without a used output, then initializers without a reader. Graph inputs stay."""

    def describe(self) -> str:
        """One line for the removed nodes."""
        return f"removed {plural(self.count, 'node')} that no output needs"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk backwards, bodies before the graphs around them, so that a chain goes in one walk."""
        before, unused = self.count, 0
        for graph in reversed(self.scope(model)):
            for node in reversed(graph):
                if not any(value.is_graph_output() or value.uses() for value in node.outputs):
                    graph.remove(node, safe=True)
                    self.count += 1
            names = [
                name
                for name, value in graph.initializers.items()
                if not (value.uses() or value.is_graph_output() or value.is_graph_input())
            ]
            for name in names:
                del graph.initializers[name]
            unused += len(names)
        return ir.passes.PassResult(model, modified=self.count > before or unused > 0)
