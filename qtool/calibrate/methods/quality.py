"""What a range does to the values of a tensor, told from its histogram."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10

import numpy as np

from qtool.calibrate.methods._bins import filled_bins
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType
from qtool.qparams import activation_qparams

_POINTS = 8  # of each bin


@dataclass(frozen=True)
class Quality:
    """What is lost.

    Attributes:
        clipped_fraction: Of the finite values, those that lie outside what the codes reach.
        sqnr_db: 10 log10(sum x^2 / sum (x - Q(x))^2); ``inf`` where nothing is lost, 0 where there is nothing to lose.
    """

    clipped_fraction: float
    sqnr_db: float


def quality(stats: TensorStatistics, low: float, high: float, dtype: QDType, *, symmetric: bool) -> Quality:
    """Error and clipping of a range, the values of a bin being spread evenly over it.

    Args:
        stats: With a histogram.
        low: Lower end of the range.
        high: Upper end.
        dtype: An integer type.
        symmetric: Whether the zero point is fixed.

    Raises:
        ValueError: If the statistics hold no histogram.
    """
    bins = filled_bins(stats)
    signal = float(bins.counts @ (bins.centers**2 + bins.widths**2 / 12))
    if signal == 0.0:
        return Quality(0.0, inf if stats.zeros else 0.0)
    params = activation_qparams(low, high, dtype, symmetric=symmetric)
    scale, zero = float(params.scale), float(params.zero_point)
    places = (np.arange(_POINTS) + 0.5) / _POINTS
    values = bins.low[:, np.newaxis] + bins.widths[:, np.newaxis] * places
    codes = values / scale
    rounded = np.clip(np.rint(codes), dtype.qmin - zero, dtype.qmax - zero)
    outside = np.abs(codes - rounded) > 0.5
    spread = bins.widths[:, np.newaxis] / _POINTS  # what a point stands for
    errors = np.where((scale < spread) & ~outside, scale**2 / 12, (values - rounded * scale) ** 2 + spread**2 / 12)
    noise = float(bins.counts @ errors.mean(axis=1))
    clipped = float(bins.counts @ outside.mean(axis=1)) / stats.finite
    return Quality(clipped, 10.0 * log10(signal / noise) if noise > 0.0 else inf)
