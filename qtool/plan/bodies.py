"""Which graphs of a model are planned one by one with ranges, and what is said of the nodes in the others."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qtool.plan.analysis import Graph
from qtool.plan.ops import handlers
from qtool.plan.ops.base import Phase, skip
from qtool.plan.plan import Skip
from qtool.prepare.branches import if_branches, is_capture
from qtool.prepare.graph_edits import bodies, is_onnx_op


def planned_graphs(model: ir.Model) -> list[Graph]:
    """The top graph, then the branches of If, the nested ones behind those around them."""
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
    return [Graph(graph, opset=opset) for graph in (model.graph, *if_branches(model.graph))]


def planned_values(model: ir.Model) -> dict[str, tuple[Graph, ir.Value]]:
    """Every value of those graphs that may be quantized, with its graph."""
    found: dict[str, tuple[Graph, ir.Value]] = {}
    for graph in planned_graphs(model):
        found |= {v.name or "": (graph, v) for v in (*graph.ir.inputs, *graph.values.values())}
    return found


def loop_skips(graph: ir.Graph) -> Iterator[Skip]:
    """Nodes in the bodies of the Loops, Scans and other such operators of a graph, at any depth: they stay float."""
    for node in graph:
        if is_onnx_op(node, "If"):
            continue  # its branches are graphs of their own
        for _, body in bodies(node):
            yield from _all_skipped(body, node)


def _all_skipped(body: ir.Graph, owner: ir.Node) -> Iterator[Skip]:
    for node in body:
        if is_capture(node):
            continue
        handler = handlers().get(node.op_type)
        worth = handler is not None and handler.phase is Phase.COMPUTE
        yield skip(
            node,
            f"it is inside the body of a {owner.op_type}, whose activations are not calibrated",
            expected=not worth,
        )
        for _, inner in bodies(node):
            yield from _all_skipped(inner, owner)
