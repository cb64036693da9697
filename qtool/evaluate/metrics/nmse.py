"""Normalized mean squared error: the noise as a share of the signal.

    NMSE = sum((x - y)^2) / sum(x^2) = 10^(-SQNR / 10)

over all elements of all samples in float64. Source: A. Gersho, R. Gray, Vector Quantization and Signal Compression,
1992 (the normalized distortion).

0 if the outputs are equal (all zero too), ``inf`` if the reference is all zero and the candidate is not, ``nan`` if one
side holds a NaN or infinity that the other does not hold at the same place, or if the energy leaves the range of
float64, ``None`` if there was no element. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics.base import Floats, Metric
from qtool.evaluate.metrics.sqnr import SqnrAccumulator


class NmseAccumulator(SqnrAccumulator):
    """Sums of signal and noise energy."""

    def value(self, sums: Floats) -> Floats:
        """Noise over signal."""
        signal, noise = sums[..., 0], sums[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.where(noise == 0.0, 0.0, noise / signal)
        return np.where(np.isfinite(signal) & np.isfinite(noise), value, np.nan)


METRIC = Metric("nmse", "NMSE", "", higher_is_better=False, start=NmseAccumulator, bounds=(0.0, math.inf))
