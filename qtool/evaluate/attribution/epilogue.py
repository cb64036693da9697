"""What a unit does with the result of its product, element by element: bias, scale, clamps, the range of its codes.

A change of the product counts for what is left of it behind those: below the zero of a Relu nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.evaluate.attribution.graph import Array, is_op
from qtool.evaluate.attribution.units import Unit

if TYPE_CHECKING:
    import onnx

Channels: TypeAlias = "slice | npt.NDArray[np.intp]"
_Step: TypeAlias = "Callable[[Array, tuple[int, ...], Channels], Array]"
_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
ALL = slice(None)


class Epilogue:
    """The nodes behind a unit's product.

    A constant that is neither one number nor one per channel is left out, and the clamps behind it, whose place among
    the values is then unknown.

    Args:
        unit: A unit with a product of one activation and a stored weight on its right.
        channels: Channels of the product.
    """

    def __init__(self, unit: Unit, channels: int) -> None:
        self._channels = channels
        self._steps: list[_Step] = []
        self._placed = True  # whether the values are those of the model, not only their differences
        first = next(node for node in unit.nodes if node.op_type == unit.op_type)
        if len(first.input) > 2 and first.input[2]:
            self._arithmetic(np.add, unit.constants.get(first.input[2]), flipped=False)
        value = first.output[0]
        for node in unit.nodes:
            if value not in node.input:
                continue
            if node.op_type in _ARITHMETIC and is_op(node, node.op_type):
                position = list(node.input).index(value)
                other = unit.constants.get(node.input[1 - position])
                self._arithmetic(_ARITHMETIC[node.op_type], other, flipped=position == 1)
            elif is_op(node, "Relu"):
                self._clamp(0.0, np.inf)
            elif is_op(node, "Clip"):
                self._clamp(*_bounds(node, unit))
            value = node.output[0]
        if unit.params is not None:
            self._clamp(unit.params.low, unit.params.high)

    def __call__(self, product: Array, column: tuple[int, ...], channels: Channels = ALL) -> Array:
        """The unit's result, not rounded to codes.

        Args:
            product: float32 with some of the channels along one axis.
            column: Shape of one number for each channel: -1, then a 1 for each axis behind theirs.
            channels: Which they are.
        """
        for step in self._steps:
            product = step(product, column, channels)
        return product

    def _arithmetic(self, function: Callable[..., Array], other: Array | None, *, flipped: bool) -> None:
        if other is None or other.size not in (1, self._channels):
            self._placed = False
            return
        self._steps.append(partial(_apply, function, np.asarray(other, np.float32).reshape(-1), flipped))

    def _clamp(self, low: float, high: float) -> None:
        if self._placed:
            self._steps.append(partial(_clamped, np.float32(low), np.float32(high)))


def _clamped(low: np.float32, high: np.float32, product: Array, _column: tuple[int, ...], _channels: Channels) -> Array:
    return np.clip(product, low, high)


def _apply(
    function: Callable[..., Array],
    other: Array,
    flipped: bool,
    product: Array,
    column: tuple[int, ...],
    channels: Channels,
) -> Array:
    numbers = other[channels].reshape(column) if other.size > 1 else other.reshape(())
    return function(numbers, product) if flipped else function(product, numbers)


def _bounds(node: onnx.NodeProto, unit: Unit) -> tuple[float, float]:
    """Of a Clip, in either of its forms."""
    limits = {"min": -np.inf, "max": np.inf} | {one.name: one.f for one in node.attribute}
    for name, position in (("min", 1), ("max", 2)):
        bound = unit.constants.get(node.input[position]) if len(node.input) > position else None
        if bound is not None and bound.size == 1:
            limits[name] = float(bound.reshape(-1)[0])
    return limits["min"], limits["max"]
