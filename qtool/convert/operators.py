"""Operators on codes, each read as the float operator it stands for: what it reads and writes under which encoding.

ONNX has QLinearMatMul and QLinearConv; onnxruntime's own quantizer also writes operators of ``com.microsoft``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from qtool.convert.encoding import Encoding
from qtool.prepare.graph_edits import float_attribute, input_at, int_attribute

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Operand:
    """Codes that an operator reads, or a value that it takes as it is."""

    value: ir.Value | None
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Bias:
    """An int32 bias, whose scale is the product of those of two operands, and of alpha."""

    value: ir.Value
    alpha: float = 1.0


@dataclass(frozen=True)
class CodeOperator:
    """An operator on codes.

    Attributes:
        op_type: The float operator of ai.onnx.
        operands: Its inputs, in order, but for the bias.
        output: What its codes mean; None where it writes floats.
        bias: The input behind the operands.
        attributes: Those of the float operator.
    """

    op_type: str
    operands: tuple[Operand, ...]
    output: Encoding | None
    bias: Bias | None = None
    attributes: tuple[ir.Attr, ...] = ()


def code_operator(node: ir.Node) -> CodeOperator | None:
    """A node as the float operator that it stands for; None if it is no operator on codes."""
    read = _READERS.get((node.domain, node.op_type))
    return None if read is None else read(node)


def _attributes(node: ir.Node, *dropped: str) -> tuple[ir.Attr, ...]:
    return tuple(a for a in node.attributes.values() if a.name not in dropped)


def _encoding(node: ir.Node, scale: int, zero: int, axis: int = 1) -> Encoding:
    value = node.inputs[scale]
    assert value is not None, "Bug: an operator without a scale"
    return Encoding(value, input_at(node, zero), axis=axis)


def _operand(node: ir.Node, first: int, axis: int = 1) -> Operand:
    """Codes, scale and zero point that follow one another."""
    return Operand(node.inputs[first], _encoding(node, first + 1, first + 2, axis))


def _matmul(node: ir.Node) -> CodeOperator:
    return CodeOperator("MatMul", (_operand(node, 0, -2), _operand(node, 3, -1)), _encoding(node, 6, 7))


def _conv(node: ir.Node) -> CodeOperator:
    bias = input_at(node, 8)
    operands = (_operand(node, 0), _operand(node, 3, 0))
    return CodeOperator(
        "Conv", operands, _encoding(node, 6, 7), None if bias is None else Bias(bias), _attributes(node)
    )


def _binary(op_type: str) -> Callable[[ir.Node], CodeOperator]:
    def read(node: ir.Node) -> CodeOperator:
        return CodeOperator(op_type, (_operand(node, 0), _operand(node, 3)), _encoding(node, 6, 7))

    return read


def _unary(op_type: str, *dropped: str) -> Callable[[ir.Node], CodeOperator | None]:
    def read(node: ir.Node) -> CodeOperator | None:
        if int_attribute(node, "channels_last", 0):
            return None
        return CodeOperator(
            op_type, (_operand(node, 0),), _encoding(node, 3, 4), None, _attributes(node, "channels_last", *dropped)
        )

    return read


def _softmax(node: ir.Node) -> CodeOperator | None:
    # below opset 13 a Softmax flattened its input
    return _unary("Softmax", "opset")(node) if int_attribute(node, "opset", 0) >= 13 else None


def _concat(node: ir.Node) -> CodeOperator:
    operands = tuple(_operand(node, first) for first in range(2, len(node.inputs), 3))
    return CodeOperator("Concat", operands, _encoding(node, 0, 1), None, _attributes(node))


def _gemm(node: ir.Node) -> CodeOperator:
    alpha, flipped = float_attribute(node, "alpha", 1.0), int_attribute(node, "transB", 0)
    operands = (_operand(node, 0, 1 if int_attribute(node, "transA", 0) else 0), _operand(node, 3, 0 if flipped else 1))
    bias, scale = input_at(node, 6), input_at(node, 7)
    output = None if scale is None else Encoding(scale, input_at(node, 8))
    return CodeOperator("Gemm", operands, output, None if bias is None else Bias(bias, alpha), _attributes(node))


_READERS: dict[tuple[str, str], Callable[[ir.Node], CodeOperator | None]] = {
    ("", "QLinearMatMul"): _matmul,
    ("", "QLinearConv"): _conv,
    (MICROSOFT, "QLinearAdd"): _binary("Add"),
    (MICROSOFT, "QLinearMul"): _binary("Mul"),
    (MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MICROSOFT, "QLinearAveragePool"): _unary("AveragePool"),
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MICROSOFT, "QLinearSoftmax"): _softmax,
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QGemm"): _gemm,
}
