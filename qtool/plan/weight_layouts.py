"""Which constant of an operator weight-only mode stores, and in which blocks and order: one rule per operator.

A rule answers with the operand and the axes that matter, or with the reason to leave the node alone. To cover an
operator, write a rule and list it in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from qtool.dtypes import QDType
from qtool.granularity import Granularity, PerAxis, PerBlock, PerTensor
from qtool.plan.analysis import dims_of
from qtool.plan.scopes import constant_tensor
from qtool.plan.stored import Layout
from qtool.prepare.graph_edits import float_attribute, input_at, int_attribute


@dataclass(frozen=True)
class Operand:
    """A constant that can be stored.

    Attributes:
        index: Which input of the node it is.
        shape: Its shape.
        summed: The axis that products are summed over, which is cut into blocks.
        channel: The axis with one scale per index where nothing is blocked; None where there is none.
        table: Whether rows are taken from it (Gather); codes are then gathered before they are dequantized.
        matrix: Whether it is the right-hand matrix of a product, rows first, which onnxruntime fuses.
        plain: Whether the product is nothing but that, with at most a constant row as bias: what MatMulNBits computes.
        filter_size: Elements per output channel where these are contiguous (a Conv); 0 otherwise.
    """

    index: int
    shape: tuple[int, ...]
    summed: int
    channel: int | None
    table: bool = False
    matrix: bool = False
    plain: bool = False
    filter_size: int = 0


Rule = Callable[[ir.Node], "Operand | tuple[str, bool]"]


def layout_of(
    operand: Operand, dtype: QDType, *, block: int | None, per_channel: bool, nbits: bool
) -> tuple[Granularity, Layout]:
    """How an operand is cut and ordered.

    Args:
        operand: What a rule found.
        dtype: Element type of its codes.
        block: Elements per scale along the summed axis; None for no blocks.
        per_channel: Whether there is a scale per channel where there are no blocks.
        nbits: Whether products become MatMulNBits, and tables GatherBlockQuantized.
    """
    if nbits and block is not None and operand.plain:
        return PerBlock(1, block), Layout.NBITS
    if operand.table:
        last = len(operand.shape) - 1
        if nbits and block is not None and len(operand.shape) == 2:
            return PerBlock(last, block), Layout.NBITS_ROWS
        if block is None and not per_channel:
            return PerTensor(), Layout.ROWS
        return PerBlock(last, operand.shape[last] if block is None else block), Layout.ROWS
    if block is None:
        if per_channel and operand.channel is not None:
            return PerAxis(operand.channel), Layout.DIRECT
        return PerTensor(), Layout.DIRECT
    if operand.filter_size:
        return _filter_layout(operand, block)
    # onnxruntime 1.32 fuses such a product into a MatMulNBits that computes something else
    misfused = operand.matrix and dtype.bits == 2 and operand.shape[1] % 4 != 0
    if misfused:
        return PerBlock(1, block), Layout.TRANSPOSED
    return PerBlock(operand.summed, block), Layout.DIRECT


def _filter_layout(operand: Operand, block: int) -> tuple[Granularity, Layout]:
    """Blocks of a filter run over input channels, or over the whole filter where these do not fill them."""
    inputs = operand.shape[1]
    if operand.filter_size <= block:
        return PerAxis(0), Layout.DIRECT
    if inputs % block == 0 or operand.filter_size == inputs:
        return PerBlock(1, block), Layout.DIRECT
    return PerBlock(1, block), Layout.FLAT


def _matmul(node: ir.Node) -> Operand | tuple[str, bool]:
    a, b = constant_tensor(input_at(node, 0)), constant_tensor(input_at(node, 1))
    if a is not None and b is not None:
        return "both operands are constant", False
    if b is not None:
        shape = tuple(dims_of(b))
        if len(shape) == 1:
            return Operand(1, shape, 0, None)
        return Operand(1, shape, len(shape) - 2, len(shape) - 1, matrix=len(shape) == 2, plain=len(shape) == 2)
    if a is None:
        return "it has no constant operand", True
    shape = tuple(dims_of(a))
    return Operand(0, shape, len(shape) - 1, len(shape) - 2 if len(shape) > 1 else None)


def _gemm(node: ir.Node) -> Operand | tuple[str, bool]:
    a, b = constant_tensor(input_at(node, 0)), constant_tensor(input_at(node, 1))
    if a is not None and b is not None:
        return "both operands are constant", False
    if b is not None:
        transposed = bool(int_attribute(node, "transB", 0))
        shape = tuple(dims_of(b))
        plain = not transposed and _is_normal(node, shape[1])
        return Operand(1, shape, int(transposed), 1 - int(transposed), matrix=not transposed, plain=plain)
    if a is None:
        return "it has no constant operand", True
    transposed = bool(int_attribute(node, "transA", 0))
    return Operand(0, tuple(dims_of(a)), 1 - int(transposed), int(transposed))


def _is_normal(node: ir.Node, columns: int) -> bool:
    """Whether a Gemm is A B + C with a constant row C, or without C; preparation makes it so in the top graph."""
    if float_attribute(node, "alpha", 1.0) != 1.0 or float_attribute(node, "beta", 1.0) != 1.0:
        return False
    c = input_at(node, 2)
    if int_attribute(node, "transA", 0) or c is None:
        return not int_attribute(node, "transA", 0)
    row = constant_tensor(c)
    return row is not None and tuple(dims_of(row)) == (columns,)


def _conv(node: ir.Node) -> Operand | tuple[str, bool]:
    w = constant_tensor(input_at(node, 1))
    if w is None:
        return "its weight is not constant", False
    shape = tuple(dims_of(w))
    size = 1
    for d in shape[1:]:
        size *= d
    return Operand(1, shape, 1, 0, filter_size=size)


def _conv_transpose(node: ir.Node) -> Operand | tuple[str, bool]:
    w = constant_tensor(input_at(node, 1))
    if w is None:
        return "its weight is not constant", False
    # with groups, axis 1 counts the output channels of one group only
    return Operand(1, tuple(dims_of(w)), 0, 1 if int_attribute(node, "group", 1) == 1 else 0)


def _gather(node: ir.Node) -> Operand | tuple[str, bool]:
    table = constant_tensor(input_at(node, 0))
    if table is None:
        return "it takes from an activation", True
    shape = tuple(dims_of(table))
    if len(shape) < 2:
        return "its table has no rows", True
    if int_attribute(node, "axis", 0) not in (0, -len(shape)):
        return "it does not take rows", False
    return Operand(0, shape, len(shape) - 1, 0, table=True)


RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gather": _gather,
}
