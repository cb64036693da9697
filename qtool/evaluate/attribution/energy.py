"""Energies of arrays and of differences, in blocks that stay in the cache, summed in float64."""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.attribution.graph import Array
from qtool.signal import signal_and_noise

_BLOCK = 1 << 15


def energy(x: Array) -> float:
    """sum(x^2); the finite values only."""
    return difference_energy(x, None)


def difference_energy(x: Array, y: Array | None) -> float:
    """sum((x - y)^2) of arrays of one shape.

    The same infinity, or NaN, on both sides is no difference; on one side it makes the result ``nan``.

    Args:
        x: float32 or float16.
        y: The same; None for zeros.
    """
    total = 0.0
    a = np.ascontiguousarray(x).reshape(-1)
    b = None if y is None else np.ascontiguousarray(y).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, a.size, _BLOCK):
            block = a[start : start + _BLOCK].astype(np.float32, copy=False)
            if b is not None:
                block = block - b[start : start + _BLOCK]
            total += float(np.dot(block, block))
    if math.isfinite(total):
        return total
    if y is None:
        finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
        return float(np.sum(finite * finite))
    _, noise = signal_and_noise(x, y)
    return noise if math.isfinite(noise) else math.nan
