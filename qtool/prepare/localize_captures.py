"""Give the branches of If values of their own for the activations that they capture.

A plan names a tensor once. What a branch reads of the graph around it has other statistics inside the branch, where
only some of the samples come by, than outside. Scope: the branches of If, nested ones too.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.branches import CAPTURE_KEY, graph_of, if_branches
from qtool.prepare.graph_edits import NameAllocator, PreparePass, is_constant


class LocalizeCapturesPass(PreparePass):
    """One Identity for each float activation that a branch reads from outside; emitters take it away again."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk the branches, outer ones first."""
        names, before = NameAllocator(model), self.count
        for graph in if_branches(model.graph):
            self._localize(graph, names)
        return ir.passes.PassResult(model, modified=self.count > before)

    def _localize(self, graph: ir.Graph, names: NameAllocator) -> None:
        found: dict[int, ir.Value] = {}
        for node in list(graph):
            if CAPTURE_KEY in node.metadata_props:
                continue
            for index, value in enumerate(node.inputs):
                if value is None or graph_of(value) is graph or is_constant(value):
                    continue
                if value.dtype not in (ir.DataType.FLOAT, None):
                    continue
                if id(value) not in found:
                    found[id(value)] = self._capture(graph, value, names)
                node.replace_input_with(index, found[id(value)])

    def _capture(self, graph: ir.Graph, value: ir.Value, names: NameAllocator) -> ir.Value:
        name = names.node(f"{value.name}_capture")
        node = ir.Node("", "Identity", [value], num_outputs=1, name=name, metadata_props={CAPTURE_KEY: "1"})
        local = node.outputs[0]
        local.name, local.type = names.value(f"{value.name}_captured"), value.type
        local.shape = value.shape.copy() if value.shape is not None else None
        graph.insert_before(next(iter(graph)), node)
        self.count += 1
        return local
