"""The contract of a weight method: from the columns of a weight to one scale and zero point for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qtool.dtypes import QDType
from qtool.weights.blocks import Columns

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Target:
    """What a weight shall become.

    Attributes:
        dtype: Element type of the codes.
        storage: numpy (or ml_dtypes) type of the scale: the weight's own float type, or e8m0.
    """

    dtype: QDType
    storage: np.dtype[Any]

    def rounded(self, scale: Array) -> npt.NDArray[np.float32]:
        """Scales as they will be stored, as float32: rounded, never zero or subnormal, and no product overflows.

        A zero (a block of zeros) becomes 1; the sign of a scale is kept.
        """
        info = ml_dtypes.finfo(self.storage)  # type: ignore[no-untyped-call]
        tiny, reach = float(info.tiny), max(-self.dtype.qmin, self.dtype.qmax)
        largest = float(info.max) / reach * (1.0 - float(info.eps))  # rounded up, it still fits
        wide = scale.astype(np.float64)
        safe = np.where(wide == 0.0, 1.0, np.copysign(np.clip(np.abs(wide), tiny, largest), wide))
        stored = safe.astype(self.storage).astype(np.float32)
        return np.where(np.abs(stored) < tiny, np.copysign(np.float32(tiny), stored), stored)


class Method(Protocol):
    """A way to choose scales and zero points."""

    @property
    def name(self) -> str:
        """What the documentation calls it."""

    def applies(self, target: Target) -> bool:
        """Whether it is the one for these types; exactly one is."""

    def choose(self, columns: Columns, target: Target) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Scale (rounded as it will be stored) and zero point of each column.

        Args:
            columns: float32 (elements of a block, blocks), finite, contiguous, at least one row.
            target: What they become.
        """


def reconstructed(columns: Columns, scale: Array, zero: Array, dtype: QDType) -> npt.NDArray[np.float32]:
    """What columns are worth after rounding to integers: (clip(rint(w / s) + z) - z) * s in float32."""
    result = np.divide(columns, scale)
    np.rint(result, out=result)
    np.clip(result, dtype.qmin - zero, dtype.qmax - zero, out=result)
    return np.multiply(result, scale, out=result)


def squared_error(columns: Columns, restored: Array) -> npt.NDArray[np.float32]:
    """Sum of squares down each column; consumes ``restored``."""
    np.subtract(columns, restored, out=restored)
    np.multiply(restored, restored, out=restored)
    return np.asarray(restored.sum(axis=0))
