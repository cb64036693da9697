"""Convolutions that compute a spectrum: their output is squared before anything else happens to it.

The lines of a spectrum span far more than the 48 dB of 8 bits, and a square root or a logarithm behind the square
makes the faint ones count like the others. Measured on silero_vad, whose STFT is such a Conv: the output's SQNR is
17.9 dB with it in 8 bits and 27.9 dB without.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.plan.analysis import Graph

_PASSING = frozenset(("Slice", "Split", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather"))
_SQUARES = frozenset(("ReduceSumSquare", "ReduceL2"))


def is_spectrum(graph: Graph, value: ir.Value) -> bool:
    """Whether all that becomes of a value, but for layout, is its square."""
    readers = [use.node for use in value.uses()]
    if not readers or value.is_graph_output():
        return False
    return all(_squares(graph, node, value) for node in readers)


def _squares(graph: Graph, node: ir.Node, value: ir.Value) -> bool:
    if node.graph is not graph.ir or not graph.is_default_domain(node):
        return False
    if node.op_type in _PASSING and node.inputs[0] is value:
        return all(is_spectrum(graph, output) for output in node.outputs if output.uses() or output.is_graph_output())
    if node.op_type == "Pow":
        return node.inputs[0] is value and graph.scalar(node.inputs[1]) == 2.0
    if node.op_type == "Mul":
        return node.inputs[0] is value and node.inputs[1] is value
    return node.op_type in _SQUARES
