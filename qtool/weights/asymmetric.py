"""The grid of uint4 and uint2: a scale and a zero point for each block, both searched.

    s = c * (hi - lo) / qmax,  z = clip(rint(-c * lo / s) + d),  c from a grid in [.6, 1.1],  d in {-1, 0, 1}
    then, for the codes at hand, the line w = s (k - z) of least squares, its z rounded and one of three neighbours,
    while that lowers the error

22.2 dB on Gaussian blocks of 32 at 4 bits, against 21.9 dB without the search.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtool.weights.absmax import asymmetric
from qtool.weights.blocks import Columns
from qtool.weights.method import Target, reconstructed, squared_error

_FACTORS = (1.0, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
_POLISH = 2


class Asymmetric:
    """MSE search over ranges, then over neighbouring zero points."""

    name = "asymmetric"

    def applies(self, target: Target) -> bool:
        """Unsigned integers below 8 bits."""
        return target.dtype.kind == "uint" and target.dtype.bits < 8

    def choose(self, columns: Columns, target: Target) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """See :class:`qtool.weights.method.Method`."""
        best = _Best(columns, target)
        for factor in _FACTORS:
            best.consider(*asymmetric(columns, target, factor))
        for _ in range(_POLISH):
            best.consider(*_fitted(columns, best.scale, best.zero, target))
        return best.scale, best.zero


class _Best:
    """The best scale and zero point of each column so far; the range of the column to begin with."""

    def __init__(self, columns: Columns, target: Target) -> None:
        self._columns, self._dtype = columns, target.dtype
        self.scale, self.zero = asymmetric(columns, target)
        self._error = self._error_of(self.scale, self.zero)

    def consider(self, scale: npt.NDArray[np.float32], middle: npt.NDArray[np.float32]) -> None:
        """Try a scale with three neighbouring zero points; a tie keeps what there is."""
        for step in (0.0, -1.0, 1.0):
            zero = np.clip(middle + np.float32(step), np.float32(self._dtype.qmin), np.float32(self._dtype.qmax))
            error = self._error_of(scale, zero)
            wins = error < self._error
            self.scale = np.where(wins, scale, self.scale)
            self.zero = np.where(wins, zero, self.zero)
            self._error = np.where(wins, error, self._error)

    def _error_of(self, scale: npt.NDArray[np.float32], zero: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return squared_error(self._columns, reconstructed(self._columns, scale, zero, self._dtype))


def _fitted(
    columns: Columns, scale: npt.NDArray[np.float32], zero: npt.NDArray[np.float32], target: Target
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The line w = s (k - z) through the weights of each column and their codes k: least squares, z rounded."""
    dtype = target.dtype
    codes = np.clip(np.rint(columns / scale) + zero, dtype.qmin, dtype.qmax)
    code_mean = codes.mean(axis=0, dtype=np.float64)
    weight_mean = columns.mean(axis=0, dtype=np.float64)
    spread = codes - code_mean.astype(np.float32)
    below = (spread * spread).sum(axis=0, dtype=np.float64)
    above = (columns * spread).sum(axis=0, dtype=np.float64)
    slope = np.divide(above, below, out=scale.astype(np.float64), where=below > 0)
    fitted = target.rounded(np.where(slope > 0.0, slope, scale))
    return fitted, np.rint(code_mean - weight_mean / fitted.astype(np.float64)).astype(np.float32)
