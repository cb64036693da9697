"""Tables of codes with one scale per row, in the form that needs no blocked DequantizeLinear (opset 21).

y = Cast(Gather(codes, i)) * Gather(scales, i)
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qtool.convert.encoding import code_type
from qtool.prepare.graph_edits import int_attribute, is_constant, is_onnx_op, sole_consumer


@dataclass(frozen=True)
class ScaledTable:
    """Such a table.

    Attributes:
        codes: Constant codes of shape (rows, width).
        scale: Constant scales of shape (rows, 1).
        gather: The node that gathers codes.
        mul: The node that writes floats.
    """

    codes: ir.Value
    scale: ir.Value
    gather: ir.Node
    mul: ir.Node


def scaled_table(cast: ir.Node) -> ScaledTable | None:
    """The table whose rows a Cast makes floats of; None for any other node."""
    if not is_onnx_op(cast, "Cast") or cast.attributes["to"].as_int() != ir.DataType.FLOAT:
        return None
    gather, mul = _rows(cast.inputs[0]), sole_consumer(cast.outputs[0])
    if gather is None or mul is None or not is_onnx_op(mul, "Mul"):
        return None
    other = _rows(mul.inputs[1] if mul.inputs[0] is cast.outputs[0] else mul.inputs[0])
    if other is None or other.inputs[1] is not gather.inputs[1]:
        return None
    codes, scale = gather.inputs[0], other.inputs[0]
    if codes is None or scale is None or code_type(codes) is None or scale.dtype != ir.DataType.FLOAT:
        return None
    if codes.shape is None or scale.shape is None or len(codes.shape) != 2 or len(scale.shape) != 2:
        return None
    return ScaledTable(codes, scale, gather, mul) if scale.shape == (codes.shape[0], 1) else None


def _rows(value: ir.Value | None) -> ir.Node | None:
    """The node that gathers rows of a constant."""
    node = value.producer() if value is not None else None
    if node is None or not is_onnx_op(node, "Gather") or int_attribute(node, "axis", 0) != 0:
        return None
    return node if is_constant(node.inputs[0]) else None
