"""The filled part of a histogram, as the methods look at it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qtool.calibrate.statistics import TensorStatistics

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """Filled bins in ascending order; exact zeros are apart, because every quantizer represents them exactly.

    Attributes:
        low: Lower edges, cut to the observed minimum, float64, shape (n,).
        high: Upper edges, cut to the observed maximum, same shape.
        counts: Values inside, float64, same shape, all positive.
    """

    low: Floats
    high: Floats
    counts: Floats

    @property
    def centers(self) -> Floats:
        """Middles of the bins."""
        return (self.low + self.high) / 2

    @property
    def widths(self) -> Floats:
        """Widths of the bins; a bin at an end of the observed range may be narrower, down to 0."""
        return self.high - self.low


def filled_bins(stats: TensorStatistics, *, zeros: bool = False) -> Bins:
    """The filled bins of a tensor's histogram.

    Args:
        stats: With a histogram.
        zeros: Whether exact zeros get a bin [0, 0] of their own; otherwise they are left out.

    Raises:
        ValueError: If the statistics hold no histogram.
    """
    if stats.histogram is None:
        raise ValueError("The statistics hold no histogram; collect them with histograms=True.")
    middle = len(stats.histogram) // 2
    counts = stats.histogram.copy()
    counts[middle] -= stats.zeros  # zeros of both signs fall into [0, w)
    filled = np.flatnonzero(counts)
    edges = (filled - middle) * stats.bin_width
    low, high = np.maximum(edges, stats.minimum), np.minimum(edges + stats.bin_width, stats.maximum)
    inside = counts[filled].astype(np.float64)
    if zeros and stats.zeros:
        at = int(np.searchsorted(filled, middle))
        low, high, inside = np.insert(low, at, 0.0), np.insert(high, at, 0.0), np.insert(inside, at, stats.zeros)
    return Bins(low, high, inside)


def mirrored(bins: Bins) -> Bins:
    """The bins of -x."""
    return Bins(-bins.high[::-1], -bins.low[::-1], bins.counts[::-1])


def folded(bins: Bins) -> Bins:
    """The bins of |x|, in ascending order of their upper edges; those of equal edges are not joined."""
    negative = bins.low < 0
    low, high = np.where(negative, -bins.high, bins.low), np.where(negative, -bins.low, bins.high)
    order = np.argsort(high, kind="stable")
    return Bins(low[order], high[order], bins.counts[order])


def folded_signs(bins: Bins) -> Floats:
    """-1 or 1 for each bin of :func:`folded`: the side that it is from."""
    negative = bins.low < 0
    order = np.argsort(np.where(negative, -bins.low, bins.high), kind="stable")
    return np.asarray(np.where(negative, -1.0, 1.0)[order])
