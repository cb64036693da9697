"""Ranges that leave most values at 0: a step wider than they are."""

from __future__ import annotations

from qtool.calibrate.methods._bins import filled_bins
from qtool.calibrate.statistics import TensorStatistics

_MOST = 0.5


def is_starved(seen: TensorStatistics, low: float, high: float, steps: float) -> bool:
    """Whether most of the values that are not 0 lie within half a step of it, and would become 0.

    Args:
        seen: Statistics of a tensor; nothing can be said without a histogram.
        low: Lower end of its range.
        high: Upper end.
        steps: Codes but one.
    """
    if seen.histogram is None or seen.finite == 0:
        return False
    half = (max(high, 0.0) - min(low, 0.0)) / steps / 2.0
    bins = filled_bins(seen)
    lost = bins.counts[(bins.low > -half) & (bins.high < half)].sum()
    total = bins.counts.sum()
    return bool(total and lost > _MOST * total)
