"""float4e2m1 and float8 under searched scales: float scales (a grid), and powers of two (the MX formats).

float4, float scale     s = c * max|w| / 6,  c from a grid in [.6, 1.5]
any float, e8m0 scale   s = 2^(floor(log2 max|w|) - emax + d),  d in {-1, 0, 1}
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.weights.blocks import Columns
from qtool.weights.method import Array, Target, squared_error

_FACTORS = (1.0, *(round(0.6 + 0.05 * i, 2) for i in range(19) if i != 8))


class Float4:
    """MSE search of float scales."""

    name = "float4"

    def applies(self, target: Target) -> bool:
        """Floats below 8 bits with a float scale."""
        return target.dtype.kind == "float" and target.dtype.bits < 8 and not _is_power_of_two(target)

    def choose(self, columns: Columns, target: Target) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """See :class:`qtool.weights.method.Method`."""
        unit = np.abs(columns).max(axis=0).astype(np.float64) / target.dtype.qmax
        return _best(columns, (target.rounded(unit * factor) for factor in _FACTORS), target)


class Microscaling:
    """The exponent of the largest magnitude, or a neighbour of it (OCP MX, with a choice of three)."""

    name = "microscaling"

    def applies(self, target: Target) -> bool:
        """Floats with an e8m0 scale."""
        return target.dtype.kind == "float" and _is_power_of_two(target)

    def choose(self, columns: Columns, target: Target) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """See :class:`qtool.weights.method.Method`."""
        emax = math.floor(math.log2(target.dtype.qmax))
        largest = np.abs(columns).max(axis=0)
        exponent = np.frexp(largest)[1] - 1 - emax  # of zero: anything, its codes are 0 under any scale
        return _best(columns, (_power_of_two(largest, exponent + d) for d in (0, -1, 1)), target)


def _is_power_of_two(target: Target) -> bool:
    return target.storage.name == "float8_e8m0fnu"


def _power_of_two(largest: Array, exponent: Array) -> npt.NDArray[np.float32]:
    """2^exponent in the range of e8m0 (down to 2^-126: the kernels divide in float32, which may flush what is less)."""
    scale = np.ldexp(np.float32(1), np.clip(exponent, -126, 127))
    return np.where(largest == 0, np.float32(1), scale)


def _best(
    columns: Columns, candidates: Iterable[npt.NDArray[np.float32]], target: Target
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    best: npt.NDArray[np.float32] | None = None
    error: Array = np.zeros(0, np.float32)
    for scale in candidates:
        codes = kernels.quantize(columns, scale, axis=1, output_dtype=target.dtype, num_threads=1)
        trial = squared_error(columns, kernels.dequantize(codes, scale, axis=1, num_threads=1))
        if best is None:
            best, error = scale, trial
        else:
            wins = trial < error
            best, error = np.where(wins, scale, best), np.where(wins, trial, error)
    assert best is not None, "Bug: no candidates"
    return best, np.zeros_like(best)
