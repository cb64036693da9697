"""The default: the range with the smallest error of what the tensor's readers compute from it.

    E(lo, hi) = sum_b h_b * w(|x_b|) * e_b * (k if b is clipped, else 1)

e_b is the mean squared error in bin b (``_search.py``). A product y = W x turns an error of channel j into
||W[:, j]||^2 times its square, so an error in a bin weighs w(t), the mean of these energies over the channels that
reach t at all: a value that large can only be in them. Without channels w is 1.

Errors of rounding are of either sign and add up like noise; those of clipping are of one sign, on the same channel, and
in neighbouring places at once. Where a reader sums neighbours, or all positions, they add up as they are, which their
squares do not say: the model's graph gives the factor k of a tensor (``plan/channels.py``), and says below which value
the readers see next to nothing. A mean error, of values that gather between two codes, adds up likewise: its square
counts ``coherence`` times more, which the weights give.

Candidates are the whole range, percentiles 99.999 and 99.99, and the minimum of E that a search finds (which is ``mse``
where all weights are 1). Nothing is clipped unless that lowers E by a tenth: E is known from samples, and unseen ones
reach further. Of candidates within 2 % of the least, the widest is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf, isinf

import numpy as np

from qtool.calibrate.methods import percentile
from qtool.calibrate.methods._bins import Bins, Floats, filled_bins
from qtool.calibrate.methods._method import Method, observed_range, require_integer
from qtool.calibrate.methods._search import RangeSearch
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType

_PERCENTILES = (99.999, 99.99)
_WORTH_CLIPPING = 0.9  # of the error of the whole range
_EQUAL = 1.02
_RESOLVED = 64  # bins to the largest value; only the least exponent of a histogram has fewer, below 2^-69


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """The range of smallest error at the readers, for an integer type.

    Raises:
        ConfigError: If the type is no integer.
    """
    del parameter
    return explained(stats, dtype, symmetric=symmetric)[0]


def explained(stats: TensorStatistics, dtype: QDType, *, symmetric: bool) -> tuple[tuple[float, float], str]:
    """The range, and in a few words why it is that one.

    Raises:
        ConfigError: If the type is no integer.
    """
    require_integer("auto", dtype)
    seen = without_unseen(stats)
    span, why = _chosen(seen, dtype, symmetric=symmetric)
    return span, why if seen is stats else f"{why}; readers see next to nothing below {stats.floor:g}"


def _chosen(stats: TensorStatistics, dtype: QDType, *, symmetric: bool) -> tuple[tuple[float, float], str]:
    whole = observed_range(stats)
    if whole[0] == whole[1]:
        return whole, "no value but 0" if stats.finite else "no finite value"
    if isinf(stats.clip_weight):
        return whole, "only the largest values are read on"
    if stats.histogram is not None and max(-whole[0], whole[1]) < _RESOLVED * stats.bin_width:
        return whole, "too small for the histogram"
    bins = filled_bins(stats)
    weighted = Bins(bins.low, bins.high, bins.counts * channel_weights(stats, bins))
    search = RangeSearch(
        weighted,
        *whole,
        dtype,
        symmetric=symmetric,
        clip_weight=stats.clip_weight,
        coherence=stats.coherence,
        zeros=float(stats.zeros),
    )
    named = {"minmax": whole}
    for percent in _PERCENTILES:
        named[f"percentile:{percent}"] = percentile.range_of(stats, dtype, symmetric=symmetric, parameter=percent)
    named["least error"] = search.best()
    names, ranges = list(named), list(named.values())
    errors = search.errors(ranges)
    least = float(errors.min())
    if errors[0] * _WORTH_CLIPPING <= least:
        return whole, "clipping gains less than a tenth"
    equal = [index for index, error in enumerate(errors) if error <= least * _EQUAL]
    best = max(equal, key=lambda index: (ranges[index][1] - ranges[index][0], -index))
    return ranges[best], f"{names[best]}: {_percent(errors[best] / errors[0])} of the error of minmax"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def without_unseen(stats: TensorStatistics) -> TensorStatistics:
    """Statistics of max(x, floor): what a tensor's readers see of it."""
    if not stats.minimum < stats.floor or isinf(stats.minimum):
        return stats
    bottom, top = stats.floor, max(stats.maximum, stats.floor)
    if stats.histogram is None:
        return replace(stats, minimum=bottom, maximum=top, floor=-inf)
    histogram = stats.histogram.copy()
    index = max(0, len(histogram) // 2 + floor(bottom / stats.bin_width))
    histogram[index] += histogram[:index].sum()
    histogram[:index] = 0
    return replace(stats, histogram=histogram, minimum=bottom, maximum=top, floor=-inf)


def channel_weights(stats: TensorStatistics, bins: Bins) -> Floats:
    """Weights w of the bins, shape (bins,), relative to the mean energy of all channels."""
    energy, reach = stats.channel_energy, stats.channel_absmax
    if energy is None or reach is None or not energy.any():
        return np.ones(len(bins.counts))
    order = np.argsort(-reach, kind="stable")
    first = np.cumsum(energy[order]) / np.arange(1, len(order) + 1)  # means over the channels of largest reach
    magnitude = np.minimum(np.abs(bins.low), np.abs(bins.high))
    reaching = len(order) - np.searchsorted(np.sort(reach), magnitude, side="left")
    weights = first[np.maximum(reaching, 1) - 1] / first[-1]
    # channels without weights carry nothing; a floor keeps a tensor of them from having no error at all
    return np.asarray(np.maximum(weights, 1e-6))


METHOD = Method("auto", range_of, needs_histogram=True)
