"""A weight as a matrix with one column per scale, so that every method sees the same thing whatever the granularity.

Elements of a block run down a column. A reduction along axis 0 then adds whole rows, element by element: the order of
each sum, and with it every bit of the result, is the same on any processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.granularity import Granularity, PerAxis, PerBlock, normalize_axis

Columns = npt.NDArray[np.float32]

# elements that a method works on at a time: small enough for the cache, large enough for NumPy
_CHUNK = 1 << 15


@dataclass(frozen=True)
class Blocks:
    """A weight, cut.

    Attributes:
        columns: (elements of a block, blocks). A partial last block is filled up with zeros, which every
            format represents exactly.
        moved: Shape of the scales while the blocked axis is last.
        axis: Where that axis belongs; None if the scales are in order.
    """

    columns: npt.NDArray[Any]
    moved: tuple[int, ...]
    axis: int | None

    def scales(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per column, in the shape that DequantizeLinear wants for the granularity."""
        shaped = flat.reshape(self.moved)
        return np.array(shaped if self.axis is None else np.moveaxis(shaped, -1, self.axis), order="C")

    def parts(self) -> list[slice]:
        """Ranges of columns, a cache's worth each."""
        height, width = self.columns.shape
        step = max(1, _CHUNK // max(height, 1))
        return [slice(start, min(start + step, width)) for start in range(0, width, step)]

    def part(self, columns: slice) -> Columns:
        """A contiguous copy of some columns as float32."""
        return np.ascontiguousarray(self.columns[:, columns], np.float32)


def cut(array: npt.NDArray[Any], granularity: Granularity) -> Blocks:
    """Cut an array of any float type.

    Args:
        array: Any shape.
        granularity: Per tensor, per axis, or blocked along an axis; the last block may be partial.
    """
    if isinstance(granularity, PerAxis):
        rows = np.moveaxis(array, normalize_axis(granularity.axis, array.ndim), 0)
        return Blocks(rows.reshape(rows.shape[0], -1).T, (rows.shape[0],), None)
    if isinstance(granularity, PerBlock):
        axis = normalize_axis(granularity.axis, array.ndim)
        moved = np.moveaxis(array, axis, -1)
        *outer, length = moved.shape
        count = -(-length // granularity.size)
        if count == 1:  # also where the block is much longer than the axis
            return Blocks(moved.reshape(-1, length).T, (*outer, 1), axis)
        missing = count * granularity.size - length
        if missing:
            moved = np.pad(moved, [(0, 0)] * len(outer) + [(0, missing)])
        return Blocks(moved.reshape(math.prod(outer) * count, granularity.size).T, (*outer, count), axis)
    return Blocks(array.reshape(-1, 1), (), None)
