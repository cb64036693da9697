"""Leave out what an AveragePool says needlessly: dilations of 1.

onnxruntime's integer AveragePool (1.32) has no such attribute, and the fusion that makes it copies all of them.
Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, is_onnx_op, plural


class NormalizePoolPass(PreparePass):
    """Drop ``dilations`` that are all 1, their default."""

    def describe(self) -> str:
        """One line for the rewritten nodes."""
        return f"wrote {plural(self.count, 'AveragePool')} without the default dilations"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once."""
        before = self.count
        for node in (node for graph in self.scope(model) for node in graph):
            dilations = node.attributes.get("dilations") if is_onnx_op(node, "AveragePool") else None
            if dilations is not None and all(step == 1 for step in dilations.as_ints()):
                node.attributes.pop("dilations")
                self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)
