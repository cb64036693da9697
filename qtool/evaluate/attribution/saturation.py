"""What a processor without VNNI would add to one operator: pairs of products that leave int16.

``change`` is the whole of it on one batch: the result with saturating pairs less the exact one. ``of_rows`` is its
energy on further batches, from some of their rows, because saturation is as rare as the largest activations are: a few
samples may well have none. Both compute codes bit for bit as such a processor does, and then what the operator does
with the sums: bias, clamps and the range of its codes, but not the rounding to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.evaluate.attribution.energy import energy
from qtool.evaluate.attribution.epilogue import ALL, Channels, Epilogue
from qtool.evaluate.attribution.graph import Array, Graph
from qtool.evaluate.attribution.units import Operand, StoredWeight, Unit
from qtool.plan.receptive import Geometry
from qtool.plan.saturation import saturable_columns

Indices: TypeAlias = npt.NDArray[np.intp]

NOTABLE_DB = 0.1
"""Decibels of the outputs that saturation has to cost before it is worth a word."""

MACS_PER_BATCH = 1 << 22
"""Products of the rows of a further batch, which bounds their number."""
FEWEST_ROWS, MOST_ROWS = 16, 512


@dataclass(frozen=True)
class _Product:
    operand: Operand
    weight: StoredWeight
    kind: str
    options: dict[str, Any]


def _product(unit: Unit) -> _Product | None:
    """What there is to look at: a product of an activation and int8 weights on its right."""
    weight = unit.weight
    if weight is None or weight.dtype != "int8" or weight.block or weight.index != 1 or len(unit.operands) != 1:
        return None
    (operand,) = unit.operands
    if unit.op_type not in ("MatMul", "Gemm", "Conv") or (operand.params is None and not operand.dynamic):
        return None
    if operand.params is not None and operand.params.zero.dtype != np.uint8:
        return None
    kind = "ConvInteger" if unit.op_type == "Conv" else "MatMulInteger"
    return _Product(operand, weight, kind, _attributes(unit))


def _stored(product: _Product, quantized: Graph) -> Array | None:
    """The codes of the weight, as MatMulInteger and ConvInteger take them; None of a depthwise Conv, which is exact."""
    stored = quantized.array(product.weight.codes)
    if product.kind == "ConvInteger":
        return None if stored.shape[1] == 1 and product.options["group"] == stored.shape[0] > 1 else stored
    return np.ascontiguousarray(stored.T if product.options.get("transB") else stored)


def products_in_float(quantized: Graph) -> frozenset[str]:
    """Names of the nodes in QDQ form that onnxruntime computes in float, so that nothing of them can saturate."""
    from qtool.runtime.products import GraphView, float_reason, quantized_products

    view = GraphView(quantized.source.proto.graph)
    return frozenset(p.name for p in quantized_products(view) if float_reason(p, view) is not None)


def saturable_channels(unit: Unit, quantized: Graph) -> tuple[Indices, ...]:
    """Which columns of a unit's products some activation makes leave int16; see also products_in_float.

    Returns:
        Columns of the matrix of each group; nothing where there are none.
    """
    product = _product(unit)
    stored = None if product is None else _stored(product, quantized)
    if product is None or stored is None or stored.ndim < 2:
        return ()
    matrices = _matrices(product, stored) if product.kind == "ConvInteger" else stored.reshape(-1, *stored.shape[-2:])
    found = [saturable_columns(matrix) for matrix in matrices]
    if product.kind == "MatMulInteger":  # a stack of matrices is multiplied by one after the other, column by column
        found = [np.any(found, axis=0)]
    return tuple(np.flatnonzero(one) for one in found) if any(one.any() for one in found) else ()


@dataclass(frozen=True)
class Change:
    """What saturation changes in an operator's result.

    Attributes:
        count: Pairs that saturate.
        shape: Of the result.
        axis: Of its channels.
        parts: Channels, and the change of each: channels last, the other axes in one.
    """

    count: int
    shape: tuple[int, ...]
    axis: int
    parts: tuple[tuple[Indices, Array], ...]

    @property
    def energy(self) -> float:
        """Sum of its squares."""
        return math.fsum(energy(difference) for _, difference in self.parts)

    def add_to(self, result: Array) -> Array:
        """A result of that shape with the change in it."""
        whole = np.array(result)
        by_channel = np.moveaxis(whole, self.axis, -1)
        for channels, difference in self.parts:
            by_channel[..., channels] += difference.reshape(*by_channel.shape[:-1], len(channels))
        return whole


def change(unit: Unit, quantized: Graph, x: Array, columns: Sequence[Indices]) -> Change | None:
    """What saturation changes in the operator's result on float input x.

    Args:
        unit: A unit.
        quantized: The quantized model.
        x: Its activation in the float model.
        columns: Those that may saturate (:func:`saturable_channels`).

    Returns:
        None where nothing saturates, or nothing can.
    """
    product = _product(unit)
    stored = None if product is None else _stored(product, quantized)
    if product is None or stored is None or not columns:
        return None
    codes, scale, zero = _codes(product.operand, x)
    if product.kind == "MatMulInteger" and (stored.ndim != 2 or codes.ndim < 2):
        return _change_of_stacks(unit, product, stored, codes, scale, zero)
    parts, matrices, _ = _rows(product, stored, codes, zero, None)
    found = list(_changes(unit, product, scale, zero, parts, matrices, columns))
    if not found:
        return None
    width = sum(matrix.shape[1] for matrix in matrices)
    if product.kind == "MatMulInteger":
        shape, axis = (*codes.shape[:-1], width), codes.ndim - 1
    else:
        sizes = Geometry.of(product.options, stored.shape[2:]).sizes(codes.shape[2:])
        shape, axis = (len(codes), width, *sizes), 1
    count = sum(pairs for pairs, _, _ in found)
    return Change(count, shape, axis, tuple((channels, difference) for _, channels, difference in found))


def of_rows(unit: Unit, quantized: Graph, x: Array, columns: Sequence[Indices]) -> tuple[int, float]:
    """The same on evenly spaced rows of a batch.

    Args:
        unit: A unit.
        quantized: The quantized model.
        x: Its activation in the float model.
        columns: See :func:`change`.

    Returns:
        Pairs that saturate in those rows, and the energy of what saturation changes, estimated for all rows.
    """
    product = _product(unit)
    stored = None if product is None else _stored(product, quantized)
    if product is None or stored is None or (product.kind == "MatMulInteger" and stored.ndim != 2) or x.ndim < 2:
        return 0, 0.0
    if product.operand.params is None:  # of a running model: what scales a row is its whole batch
        x, scale, zero = _codes(product.operand, x)
    else:
        scale, zero = product.operand.params.scale, product.operand.params.zero
    limit = min(MOST_ROWS, max(FEWEST_ROWS, MACS_PER_BATCH // max(1, stored.size)))
    parts, matrices, total = _rows(product, stored, x, zero, limit)
    codes = [part if part.dtype == np.uint8 else _codes(product.operand, part)[0] for part in parts]
    count, lost = 0, 0.0
    for pairs, _, difference in _changes(unit, product, scale, zero, codes, matrices, columns):
        count += pairs
        lost += energy(difference)
    looked_at = len(parts[0]) if parts else 0
    return count, lost * (total / looked_at if looked_at else 0.0)


def _changes(
    unit: Unit,
    product: _Product,
    scale: Array,
    zero: Array,
    parts: Sequence[Array],
    matrices: Sequence[Array],
    columns: Sequence[Indices],
) -> Iterator[tuple[int, Indices, Array]]:
    """Pairs that saturate in each group, channels of the result where some do, and what that changes in them.

    Args:
        unit: The unit.
        product: Its product.
        scale: Of the activation.
        zero: Of the activation.
        parts: Codes of the activation as rows, for each group.
        matrices: Codes of the weight, likewise.
        columns: Those that may saturate, likewise.
    """
    width = sum(matrix.shape[1] for matrix in matrices)
    steps = np.broadcast_to(np.float32(scale) * _steps(product.weight, (-1,)), width)
    behind = Epilogue(unit, width)
    first = 0
    for codes, matrix, some in zip(parts, matrices, columns, strict=True):
        here = np.arange(first, first + matrix.shape[1])
        first += matrix.shape[1]
        if not len(some):
            continue
        counts = np.zeros(len(some), np.int64)
        there = kernels.matmul_saturating(codes, matrix[:, some], counts=counts, num_threads=1)
        hit = np.flatnonzero(counts)
        if not len(hit):
            continue
        weights, channels = matrix[:, some[hit]], here[some[hit]]
        weight_zero = _of_channels(product.weight.zero, channels)
        exact = kernels.matmul_integer(codes, weights, zero, weight_zero, num_threads=1)
        added = there[:, hit] - kernels.matmul_integer(codes, weights, None, None, num_threads=1)
        own = steps[channels]
        difference = behind((exact + added) * own, (-1,), channels) - behind(exact * own, (-1,), channels)
        yield int(counts.sum()), channels, difference.astype(np.float32)


def _change_of_stacks(
    unit: Unit, product: _Product, stored: Array, codes: Array, scale: Array, zero: Array
) -> Change | None:
    """:func:`change` of a product with a stack of matrices, or of one vector."""
    weight_zero = _of_channels(product.weight.zero, ALL)
    count, there = _saturating(product.kind, codes, stored, zero, weight_zero, {})
    if not count:
        return None
    exact = kernels.matmul_integer(codes, stored, zero, weight_zero, num_threads=1)
    steps = np.float32(scale) * _steps(product.weight, (-1,))
    behind = Epilogue(unit, stored.shape[-1])
    changed = (behind(there * steps, (-1,)) - behind(exact * steps, (-1,))).astype(np.float32)
    return Change(count, changed.shape, changed.ndim - 1, ((np.arange(changed.shape[-1]), changed),))


def _of_channels(zero: Array | None, channels: Channels) -> Array | None:
    """Zero points of some channels of a weight; None where all are 0."""
    if zero is None or not zero.any():
        return None
    return zero if zero.size == 1 else zero.reshape(-1)[channels]


def _rows(
    product: _Product, stored: Array, x: Array, zero: Array, limit: int | None
) -> tuple[list[Array], list[Array], int]:
    """Rows of each product, all of them without a limit, their matrices, and how many rows there are in all."""
    if product.kind == "MatMulInteger":
        rows = x.reshape(-1, x.shape[-1])
        limit = limit or len(rows)
        chosen = np.linspace(0, max(len(rows) - 1, 0), min(len(rows), limit)).astype(np.intp)
        return [np.ascontiguousarray(rows[chosen])], [stored], len(rows)
    geometry = Geometry.of(product.options, stored.shape[2:])
    total = len(x) * math.prod(geometry.sizes(x.shape[2:]))
    parts = geometry.rows(x, int(zero) if x.dtype == np.uint8 else 0, limit=limit or max(total, 1))
    return parts, _matrices(product, stored), total


def _matrices(product: _Product, stored: Array) -> list[Array]:
    """The weight of each group of a Conv as (K, N), channels fastest along K."""
    by_group = stored.reshape(product.options["group"], -1, stored.shape[1], math.prod(stored.shape[2:]))
    return [np.ascontiguousarray(one.transpose(2, 1, 0).reshape(-1, one.shape[0])) for one in by_group]


def _codes(operand: Operand, x: Array) -> tuple[Array, Array, Array]:
    """Codes of an activation, their scale and zero point."""
    if operand.params is None:
        return kernels.dynamic_quantize_linear(np.ascontiguousarray(x, np.float32), num_threads=1)
    scale, zero = operand.params.scale, operand.params.zero
    return kernels.quantize(x, scale.astype(x.dtype), zero, num_threads=1), scale, zero


def _steps(weight: StoredWeight, column: tuple[int, ...]) -> Array:
    """Scales of the weight, along the channels of the output."""
    return (weight.scale.reshape(column) if weight.scale.size > 1 else weight.scale.reshape(())).astype(np.float32)


def _saturating(
    kind: str, codes: Array, stored: Array, zero: Array, weight_zero: Array | None, options: dict[str, Any]
) -> tuple[int, Array]:
    from qtool.runtime.spec.quantized import Call
    from qtool.runtime.spec.saturating import Saturating

    machine = Saturating()
    (result,) = machine.operators()[kind](Call((codes, stored, zero, weight_zero), options, 1, name="unit"))
    return machine.record["unit"].saturated, result


def _attributes(unit: Unit) -> dict[str, Any]:
    from onnx import helper

    node = next(node for node in unit.nodes if node.op_type == unit.op_type)
    found: dict[str, Any] = {"group": 1} if unit.op_type == "Conv" else {}
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        found[one.name] = value.decode() if isinstance(value, bytes) else value
    return found
