"""Store constants of bodies once that are equal: what was folded in two branches alike is one weight again.

Scope: constants of the bodies of If, Loop and Scan; equal ones move to the top graph, which every body sees. Two
constants of the top graph are never made one: a model that stores a weight twice has its reasons.
"""

from __future__ import annotations

import hashlib

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, all_graphs, is_constant, plural
from qtool.prepare.light_proto import SMALL_BYTES


class ShareConstantsPass(PreparePass):
    """Replace equal constants by one, in the top graph; needs names that are unique in the whole model."""

    def describe(self) -> str:
        """One line for the constants that are gone."""
        return f"stored {plural(self.count, 'constant')} of subgraphs only once"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Compare all constants above some size that have the same type and shape as one of a body."""
        before = self.count
        top, *inner = all_graphs(model)
        groups: dict[tuple[ir.DataType, tuple[int, ...]], list[ir.Value]] = {}
        for graph in (*inner, top):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or not is_constant(value) or value.is_graph_output() or tensor.nbytes <= SMALL_BYTES:
                    continue
                key = (tensor.dtype, tuple(int(d) for d in tensor.shape.numpy()))
                if graph is not top or key in groups:
                    groups.setdefault(key, []).append(value)
        for values in groups.values():
            if len(values) > 1:
                self._share(values, top)
        return ir.passes.PassResult(model, modified=self.count > before)

    def _share(self, values: list[ir.Value], top: ir.Graph) -> None:
        equal: dict[bytes, list[ir.Value]] = {}
        for value in values:
            assert value.const_value is not None
            equal.setdefault(hashlib.sha256(value.const_value.tobytes()).digest(), []).append(value)
        for same in equal.values():
            inner = [value for value in same if value.graph is not top]
            if len(same) < 2 or not inner:
                continue
            kept = next((value for value in same if value.graph is top), inner[0])
            if kept.graph is not top:
                _take_out(kept)
                top.register_initializer(kept)
            for value in inner:
                if value is not kept:
                    value.replace_all_uses_with(kept)
                    _take_out(value)
                    self.count += 1


def _take_out(value: ir.Value) -> None:
    graph = value.graph
    assert isinstance(graph, ir.Graph), "Bug: a constant without a graph"
    assert value.name is not None
    del graph.initializers[value.name]
