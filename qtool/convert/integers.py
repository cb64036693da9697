"""MatMulInteger and ConvInteger with what makes their result a float: Cast, and Mul by the scales of both operands.

    y = Cast(MatMulInteger(a, b, az, bz)) * (sa * sb)       or       (Cast(..) * sa) * sb

Which factor belongs to which operand must be beyond doubt: one of them is the scale under which its operand was
quantized; the other is a constant then.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qtool.convert.codes import Codes
from qtool.prepare.graph_edits import constant_array, input_at, is_constant, is_onnx_op, sole_consumer


@dataclass(frozen=True)
class IntegerProduct:
    """A product of integers that ends as floats.

    Attributes:
        operands: (codes, scale, zero point, axis) of both.
        chain: The nodes that it consists of, in order.
    """

    operands: tuple[tuple[ir.Value, ir.Value, ir.Value | None, int], ...]
    chain: tuple[ir.Node, ...]

    @property
    def last(self) -> ir.Node:
        """The node that writes the floats."""
        return self.chain[-1]


def integer_product(node: ir.Node, codes: Codes) -> IntegerProduct | str:
    """A MatMulInteger or ConvInteger with its scales, or why they are in doubt."""
    a, b = node.inputs[0], node.inputs[1]
    assert a is not None, "Bug: a product without operands"
    assert b is not None, "Bug: a product without operands"
    cast = sole_consumer(node.outputs[0])
    if cast is None or not is_onnx_op(cast, "Cast") or cast.attributes["to"].as_int() != ir.DataType.FLOAT:
        return "its result is not cast to float32 and nothing else"
    chain, factors = [node, cast], list[ir.Value]()
    while len(factors) < 2:
        mul = sole_consumer(chain[-1].outputs[0])
        if mul is None or not is_onnx_op(mul, "Mul"):
            break
        other = mul.inputs[1] if mul.inputs[0] is chain[-1].outputs[0] else mul.inputs[0]
        assert other is not None, "Bug: a Mul without an operand"
        found = _factors(other)
        if len(factors) + len(found) > 2:
            break
        factors += found
        chain.append(mul)
    if len(factors) != 2:
        return "its result is not multiplied by one scale for each operand"
    for first, second in ((0, 1), (1, 0)):
        operand = (a, b)[first]
        encoding = codes.of(operand)
        for own, other in ((factors[0], factors[1]), (factors[1], factors[0])):
            if encoding is None or not (own is encoding.scale or _same(own, encoding.scale)):
                continue
            if not is_constant(other):
                return "the scale of its second operand is computed by the running model"
            scales = [other, other]
            scales[first] = encoding.scale
            return _product(node, (a, b), scales, chain, second)
    return "none of its scales is that of an operand"


def _product(
    node: ir.Node, values: tuple[ir.Value, ir.Value], scales: list[ir.Value], chain: list[ir.Node], constant: int
) -> IntegerProduct | str:
    axes = [-2, -1] if node.op_type == "MatMulInteger" else [1, 0]
    array = constant_array(scales[constant])
    assert array is not None, "Bug: a scale that is not constant"
    if array.size > 1:
        codes = values[constant].shape
        axis = axes[constant]
        size = codes[axis] if codes is not None and len(codes) >= -axis and axis < len(codes) else None
        beside = node.op_type == "MatMulInteger" and constant == 1 and array.shape[-1] == array.size
        # of a column (M, 1, ..) beside (N, M, spatial..)
        above = node.op_type == "ConvInteger" and codes is not None and array.ndim in (len(codes) - 1, len(codes))
        above = above and array.shape[-(len(codes) - 1 if codes is not None else 0)] == array.size
        if size != array.size or not (beside or above):
            return "the shape of its scales does not say which channel they are of"
    operands = tuple(
        (value, scale, input_at(node, 2 + index), axes[index])
        for index, (value, scale) in enumerate(zip(values, scales, strict=True))
    )
    return IntegerProduct(operands, tuple(chain))


def _factors(value: ir.Value) -> list[ir.Value]:
    """A product of scales, taken apart."""
    node = value.producer()
    if node is None or not is_onnx_op(node, "Mul"):
        return [value]
    return [v for v in node.inputs if v is not None]


def _same(value: ir.Value, other: ir.Value) -> bool:
    mine, theirs = constant_array(value), constant_array(other)
    return mine is not None and theirs is not None and mine.size == theirs.size and mine.tobytes() == theirs.tobytes()
