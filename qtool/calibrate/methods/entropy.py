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
    lengths = lengths[counts[lengths - 1] > 0]  # else what is clipped has a place in P and none in Q
    divergences = _divergences(counts, lengths, levels)
    return int(lengths[divergences <= divergences.min()].max())


def _divergences(counts: Floats, lengths: npt.NDArray[np.int64], levels: int) -> Floats:
    """Divergences of P and Q, in nats per value, of keeping so many leading bins; the last one kept is filled.

    With q the same for all filled bins of a group, sum p log(p/q) is the sum of p log p over the bins less that of
    the group's p times log q: both are differences of running sums, taken once for all lengths.
    """
    filled = counts > 0
    mass, members = np.append(0.0, np.cumsum(counts)), np.append(0, np.cumsum(filled))
    own = np.append(0.0, np.cumsum(counts * np.log(np.where(filled, counts, 1.0))))
    total, last = mass[-1], counts[lengths - 1]
    clipped = total - mass[lengths]
    bins = own[lengths - 1] + (last + clipped) * np.log(last + clipped)
    groups = np.empty(len(lengths))
    short = lengths <= levels  # as many groups as bins
    at = lengths[short]
    groups[short] = own[at - 1] + (last + clipped)[short] * np.log(last[short])
    # group g of n begins at the first bin i with floor(i * n / length) = g
    starts = -(np.arange(levels + 1) * -lengths[~short, np.newaxis] // levels)
    inside, number = np.diff(mass[starts], axis=1), np.diff(members[starts], axis=1)
    log_q = np.log(np.where(number > 0, inside, 1.0) / np.maximum(number, 1))
    groups[~short] = np.einsum("ij,ij->i", inside, log_q) + clipped[~short] * log_q[:, -1]
    return np.asarray((bins - groups - clipped) / total)


METHOD = Method("entropy", range_of, needs_histogram=True)
