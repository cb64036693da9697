"""The mean over the samples of their extremes, for parity: what onnxruntime calls a moving average of min-max.

A sample that is out of the ordinary moves the range by its share only, and its values are clipped. How many samples ran
in a batch does not matter: the sums of the extremes are those of single samples, and exact.
"""

from __future__ import annotations

from qtool.calibrate.methods._method import Method, observed_range
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """[min(0, mean of minima), max(0, mean of maxima)].

    Where both means lie on the wrong side of 0, as those of single values of either sign may, it is the observed range.
    """
    del dtype, symmetric, parameter
    low, high = observed_range(stats)
    # means are rounded, and may step over an extreme that all samples share
    mean_low, mean_high = max(low, min(0.0, stats.mean_minimum)), min(high, max(0.0, stats.mean_maximum))
    return (low, high) if mean_low == mean_high else (mean_low, mean_high)


METHOD = Method("mean_minmax", range_of, needs_histogram=False)
