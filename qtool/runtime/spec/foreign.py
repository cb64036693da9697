"""Operators that no ONNX document describes: those of a runtime, or of a library of somebody's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

_DESCRIBED = frozenset(("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"))


def foreign_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """The first node, bodies and functions included, of a domain that is none of ONNX's and no function defines."""
    defined = {(function.domain, function.name) for function in model.functions}
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    nodes = (node for body in bodies for node in _all_nodes(body))
    return next((n for n in nodes if n.domain not in _DESCRIBED and (n.domain, n.op_type) not in defined), None)


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)
