"""Cut the tails: P percent of the values stay inside the range.

Data of both signs gives up half of the tail mass on each side, one-sided data all of it on its side, and a symmetric
range cuts |x|. The cut is the order statistic of rank (n - 1) * P / 100, interpolated linearly between its neighbours
as numpy.percentile does, so that even a tail of less than one value clips: 10 000 values at 99.999 lose a tenth of the
gap between the two largest. The values of one bin are taken to be spread evenly over it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtool.calibrate.methods._bins import Bins, filled_bins, folded, mirrored
from qtool.calibrate.methods._method import Method, observed_range
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType

DEFAULT = 99.99


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """The range that holds ``parameter`` percent of the finite values (99.99 by default)."""
    del dtype
    low, high = observed_range(stats)
    if low == high:
        return low, high
    bins, tail = filled_bins(stats, zeros=True), 1.0 - (DEFAULT if parameter is None else parameter) / 100.0
    if symmetric:
        cut = _upper_cut(folded(bins), tail)
        return max(low, -cut), min(high, cut)
    if low < 0.0 < high:
        tail /= 2
    return (
        max(low, min(0.0, -_upper_cut(mirrored(bins), tail))) if low < 0.0 else 0.0,
        min(high, max(0.0, _upper_cut(bins, tail))) if high > 0.0 else 0.0,
    )


def _upper_cut(bins: Bins, tail: float) -> float:
    """The point above which the fraction ``tail`` of the values lies."""
    above = np.cumsum(bins.counts[::-1])  # values in a bin and in those over it, from the top
    rank = float((above[-1] - 1) * tail)  # counted from the largest value, which has rank 0
    first = int(np.floor(rank))
    upper, lower = (_value(bins, above, min(r, int(above[-1]) - 1)) for r in (first, first + 1))
    return upper + (rank - first) * (lower - upper)


def _value(bins: Bins, above: npt.NDArray[np.float64], rank: int) -> float:
    """The value of a rank, counted from the largest; the largest itself is the upper edge of the last bin."""
    if rank == 0:
        return float(bins.high[-1])
    index = int(np.searchsorted(above, rank, side="right"))
    at = len(bins.counts) - 1 - index
    share = (above[index] - rank - 0.5) / bins.counts[at]
    return float(bins.low[at] + share * (bins.high[at] - bins.low[at]))


METHOD = Method("percentile", range_of, needs_histogram=True, default=DEFAULT, limits=(0.0, 100.0))
