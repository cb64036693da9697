"""The branches of If: the only bodies that run at most once, with the values of the graphs around them.

A plan with calibrated ranges reaches into them: what a branch computes can be observed as an output of its If. What
the body of a Loop or Scan computes has as many values as there are turns, and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qtool.prepare.graph_edits import bodies, is_onnx_op

CAPTURE_KEY = "qtool.capture"


def if_branches(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The branches of the Ifs of a graph and of the Ifs inside those, outer ones first; none inside Loop or Scan."""
    for node in graph:
        if is_onnx_op(node, "If"):
            for _, body in bodies(node):
                yield body
                yield from if_branches(body)


def graph_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    """The graph that a value belongs to: of its producer, or whose input or initializer it is."""
    producer = value.producer()
    return producer.graph if producer is not None else value.graph


def is_capture(node: ir.Node) -> bool:
    """Whether the node is no computation of the model, but stands for a value that its branch captures."""
    return CAPTURE_KEY in node.metadata_props


def remove_captures(model: ir.Model) -> None:
    """Let branches read what they capture again; the values keep their names outside."""
    for graph in if_branches(model.graph):
        for node in graph:
            if is_capture(node):
                source = node.inputs[0]
                assert source is not None, "Bug: a capture of nothing"
                node.outputs[0].replace_all_uses_with(source)
                graph.remove(node, safe=True)
