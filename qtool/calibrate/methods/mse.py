"""The range with the smallest squared error of the values themselves.

    E(lo, hi) = sum_b h_b * e_b,    e_b = (x_b - Q(x_b))^2 + w_b^2 / 12    where the step s is wider than the bin
                                    e_b = s^2 / 12                         where it is narrower

x_b is the middle of bin b, h_b its count, w_b its width. The second form is the first one averaged over the bin: a
middle says nothing about steps finer than the bin. Clipped bins take the distance to the end of the range. The search
is a grid of (lo, hi), refined around its best point; one-sided data and symmetric ranges leave one dimension. The
full range is always among the candidates, and wins ties.
"""

from __future__ import annotations

import numpy as np

from qtool.calibrate.methods._bins import Bins, Floats, filled_bins, folded, mirrored
from qtool.calibrate.methods._method import Method, observed_range, require_integer
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType

_COARSE = np.array([2.0**-k for k in np.arange(0.0, 12.1, 0.5)])  # outliers lie orders of magnitude beyond the bulk
_FINE = np.linspace(-1.0, 1.0, 5)
_ROUNDS = 3
_MAX_BINS = 1024


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """The range of smallest squared error for an integer type.

    Raises:
        ConfigError: If the type is no integer.
    """
    del parameter
    require_integer("mse", dtype)
    low, high = observed_range(stats)
    if low == high:
        return low, high
    bins = _reduced(filled_bins(stats))
    if symmetric:
        levels = (1 << (dtype.bits - 1)) - 1 if dtype.bits >= 8 else 1 << (dtype.bits - 1)
        cut = _search_one(folded(bins), levels, max(-low, high))
        return max(low, -cut), min(high, cut)
    steps = int(dtype.qmax - dtype.qmin)
    if low == 0.0:
        return 0.0, _search_one(bins, steps, high)
    if high == 0.0:
        return -_search_one(mirrored(bins), steps, -low), 0.0
    return _search_two(bins, steps, low, high)


def _search_one(bins: Bins, steps: int, widest: float) -> float:
    """Best hi of the range [0, hi], for bins of non-negative values."""
    candidates, ratio = widest * _COARSE, 2.0**0.5
    best = widest
    for _ in range(_ROUNDS + 1):
        errors = _errors(bins, steps, np.zeros(len(candidates)), candidates)
        best = float(candidates[int(np.argmin(errors))])
        candidates = np.minimum(best * ratio ** np.concatenate([[0.0], _FINE]), widest)
        ratio **= 0.5
    return best


def _search_two(bins: Bins, steps: int, low: float, high: float) -> tuple[float, float]:
    """Best (lo, hi) for values of both signs."""
    lows, highs, ratio = low * _COARSE[::2], high * _COARSE[::2], 2.0
    best = (low, high)
    for _ in range(_ROUNDS + 2):
        grid_low, grid_high = (axis.ravel() for axis in np.meshgrid(lows, highs, indexing="ij"))
        index = int(np.argmin(_errors(bins, steps, grid_low, grid_high)))
        best = (float(grid_low[index]), float(grid_high[index]))
        around = ratio ** np.concatenate([[0.0], _FINE])
        lows, highs = np.maximum(best[0] * around, low), np.minimum(best[1] * around, high)
        ratio **= 0.5
    return best


def _errors(bins: Bins, steps: int, lows: Floats, highs: Floats) -> Floats:
    """E of each candidate (lo, hi): shape (candidates,)."""
    scale = ((highs - lows) / steps)[:, np.newaxis]
    bottom = np.rint(lows[:, np.newaxis] / scale)  # code of lo, as seen from the zero point: zero is exact
    centers, widths = bins.centers, bins.widths
    codes = centers / scale
    rounded = np.clip(np.rint(codes), bottom, bottom + steps)
    coarse = ((codes - rounded) * scale) ** 2 + widths**2 / 12
    inside = (codes >= bottom - 0.5) & (codes <= bottom + steps + 0.5)
    each = np.where(inside & (scale < widths), scale**2 / 12, coarse)
    return np.asarray(each @ bins.counts)


def _reduced(bins: Bins) -> Bins:
    """At most about _MAX_BINS bins: neighbours of equal counts' worth of range joined, edges kept."""
    if len(bins.counts) <= _MAX_BINS:
        return bins
    every = -(-len(bins.counts) // _MAX_BINS)
    starts = np.arange(0, len(bins.counts), every)
    ends = np.minimum(starts + every, len(bins.counts)) - 1
    return Bins(bins.low[starts], bins.high[ends], np.add.reduceat(bins.counts, starts))


METHOD = Method("mse", range_of, needs_histogram=True)
