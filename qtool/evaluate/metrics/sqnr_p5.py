"""SQNR of a bad sample: the 5th percentile of the samples' own SQNR.

    the smallest q such that at least 5 % of the samples have  SQNR_i <= q   [dB]

(nearest rank; with fewer than 21 samples it is the worst of them). SQNR_i is the formula of ``sqnr`` over one sample.
The total hides a broken sample among many good ones; this does not. Source of the quantile: R. Hyndman, Y. Fan, Sample
Quantiles in Statistical Packages, The American Statistician 50, 1996, definition 1.

A sample whose outputs are equal counts as ``inf``, one with an all-zero reference and a candidate that is not as
``-inf``. ``nan`` if the SQNR of any sample is, ``None`` if there was no element or the samples' shares of the output
cannot be told apart. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics.base import Floats, Metric, Resampling
from qtool.evaluate.metrics.sqnr import SqnrAccumulator, decibels

SHARE = 0.05


class SqnrPercentileAccumulator(SqnrAccumulator):
    """Signal and noise energy of each sample."""

    def _values(self) -> Floats | None:
        """SQNR of each sample that has elements."""
        matrix = self._rows.matrix()
        if matrix is None or not self._rows.separable:
            return None
        matrix = matrix[matrix[:, 2] > 0]
        return decibels(matrix[:, 0], matrix[:, 1]) if len(matrix) else None

    def result(self) -> float | None:
        """The percentile over everything added."""
        values = self._values()
        if values is None:
            return None
        if np.isnan(values).any():
            return math.nan
        rank = math.ceil(len(values) * SHARE)
        return float(np.partition(values, rank - 1)[rank - 1])

    def resampling(self) -> Resampling | None:
        """The percentile of weighted samples."""
        values = self._values()
        if values is None or np.isnan(values).any():
            return None
        order = np.argsort(values)
        ordered = values[order]

        def estimate(weights: Floats) -> Floats:
            share = np.cumsum(weights[:, order], axis=1)
            rank = np.ceil(share[:, -1:] * SHARE)
            found: Floats = ordered[np.argmax(share >= rank, axis=1)]
            return found

        return Resampling(len(values), estimate)


METRIC = Metric("sqnr_p5", "SQNR p5", "dB", higher_is_better=True, start=SqnrPercentileAccumulator)
