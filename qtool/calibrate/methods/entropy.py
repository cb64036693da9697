"""TensorRT's search for the threshold whose quantized distribution diverges least (Kullback-Leibler), for parity.

Values above a threshold t are clipped: P is the histogram of |x| up to t, with all clipped mass in its last bin. Q is
the same histogram without that mass, its bins joined into as many groups as there are levels and spread evenly over
the filled bins of each group again. The t of the smallest divergence wins; of equal ones, the widest.

The histogram must be much finer than the levels: with as many bins as levels the search can only return the whole
range. Here it has up to 4096 bins. An outlier can still leave the bulk of the data in fewer bins than levels, where
TensorRT does not search; so short thresholds are searched too where they cut outliers only, and the divergence is that
of the counts as they are, sum p log(p/q) - p + q, because normalised distributions of a few bins look alike however
much was clipped. Exact zeros are left out: every quantizer represents them, and behind a Relu they would outweigh
everything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qtool.calibrate.methods._bins import Floats
from qtool.calibrate.methods._method import Method, observed_range, require_integer
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType

_CANDIDATES = 256
# With fewer bins than levels Q equals P but for the clipped mass, however large the clipped values are: a threshold
# that short must not cut more than outliers.
_OUTLIERS = 1e-3


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """[max(lo, -t), min(hi, t)] for the best threshold t on |x|.

    Raises:
        ConfigError: If the type is no integer.
    """
    del parameter
    require_integer("entropy", dtype)
    low, high = observed_range(stats)
    if low == high:
        return low, high
    counts, width = _magnitudes(stats)
    one_sided = not symmetric and (low == 0.0 or high == 0.0)
    levels = 1 << (dtype.bits if one_sided else dtype.bits - 1)
    cut = _best_length(counts, levels) * width
    return max(low, -cut), min(high, cut)


def _magnitudes(stats: TensorStatistics) -> tuple[Floats, float]:
    """Histogram of |x| without zeros, up to the last filled bin, and its bin width."""
    if stats.histogram is None:
        raise ValueError("The statistics hold no histogram; collect them with histograms=True.")
    middle = len(stats.histogram) // 2
    counts = (stats.histogram[middle:] + stats.histogram[:middle][::-1]).astype(np.float64)
    counts[0] -= stats.zeros
    return counts[: int(np.flatnonzero(counts)[-1]) + 1], stats.bin_width


def _best_length(counts: Floats, levels: int) -> int:
    """Number of leading bins to keep."""
    size = len(counts)
    # every length while bins are few, then evenly spaced ones, and always the whole
    few = np.arange(1, min(size, levels, _CANDIDATES) + 1)
    many = np.linspace(few[-1], size, _CANDIDATES).astype(np.int64)
    clipped = 1.0 - np.cumsum(counts) / counts.sum()
    few = few[clipped[few - 1] <= _OUTLIERS]
    lengths = np.concatenate([few, many])  # ascending
    lengths = lengths[np.diff(lengths, prepend=0) > 0]
    filled = counts > 0
    sums = _Sums(counts[filled], np.append(0.0, np.cumsum(counts)), np.append(0, np.cumsum(filled)))
    estimates, error = _estimates(sums, counts, lengths, levels)
    likely = lengths[estimates <= estimates.min() + 2 * error]
    divergences = [_divergence(sums, int(length), levels) for length in likely]
    best = min(divergences)
    return int(max(length for length, d in zip(likely, divergences, strict=True) if d <= best))


class _Sums(NamedTuple):
    """A histogram, so that the sum over any range of bins is a difference: counts are integers, and sums exact.

    Attributes:
        filled: Counts of the filled bins.
        mass: Sum of the counts before each bin, and of all.
        members: Number of filled bins before each bin, and of all.
    """

    filled: Floats
    mass: Floats
    members: npt.NDArray[np.int64]


def _estimates(sums: _Sums, counts: Floats, lengths: npt.NDArray[np.int64], levels: int) -> tuple[Floats, float]:
    """Divergences of all lengths at once, and a bound of their error.

    With q the same for all members of a group, sum p log(p / q) is sum p log p less a product for each group, and
    sum p log p a difference of running sums: groups are visited instead of bins.

    Returns:
        float64, shape (lengths,), and the most by which one of them differs from :func:`_divergence`.
    """
    total, last = sums.mass[-1], lengths - 1
    terms = np.append(0.0, np.cumsum(counts * np.log(np.maximum(counts, 1.0))))
    ends, clipped = counts[last], total - sums.mass[lengths]
    inner, means = np.zeros(len(lengths)), np.maximum(ends, 1.0)  # of groups of one bin: no error, and the bin
    possible = (ends > 0) | (clipped == 0)  # else P has mass where Q has none
    long = np.flatnonzero((lengths > levels) & possible)
    if len(long):
        starts = -(np.arange(levels + 1) * -lengths[long, np.newaxis] // levels)
        members, mass, term = (np.diff(running[starts], axis=1) for running in (sums.members, sums.mass, terms))
        mean = mass / np.maximum(members, 1)
        # a group of one bin is represented exactly, which the rounded sums would not say
        inner[long] = np.where(members > 1, term - mass * np.log(np.maximum(mean, 1.0)), 0.0).sum(axis=1)
        means[long] = np.maximum(mean[:, -1], 1.0)
    whole = ends + clipped
    outer = whole * np.log(np.maximum(whole, 1.0) / means) - ends * np.log(np.maximum(ends, 1.0) / means) - clipped
    found = np.where(possible, inner + np.where(clipped > 0, outer, 0.0), np.inf)
    # each running sum of n terms is exact to n roundings of itself, and each of the groups takes a difference of two
    error = 2.0 * np.finfo(np.float64).eps * len(counts) * min(levels, len(counts)) * (terms[-1] / total + 1.0)
    return found / total, float(error)


def _divergence(sums: _Sums, length: int, levels: int) -> float:
    """Divergence of P and Q, in nats per value, of keeping the first ``length`` bins."""
    total, used = sums.mass[-1], int(sums.members[length])
    clipped = total - sums.mass[length]
    ends_filled = used > sums.members[length - 1]
    if not ends_filled and clipped > 0:
        return float("inf")  # P has mass where Q has none
    p = sums.filled[:used]
    if ends_filled:
        p = p.copy()
        p[-1] += clipped
    n = min(levels, length)
    starts = -(np.arange(n + 1) * -length // n)  # group g begins at the first bin i with floor(i * n / length) = g
    members = np.diff(sums.members[starts])
    some = members > 0
    members = members[some]
    q = np.repeat(np.diff(sums.mass[starts])[some] / members, members)
    return float(np.sum(p * np.log(p / q) - p + q) / total)


METHOD = Method("entropy", range_of, needs_histogram=True)
