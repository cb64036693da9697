"""Signal-to-quantization-noise ratio.

    SQNR = 10 * log10( sum(x^2) / sum((x - y)^2) )   [dB]

x is the float output, y the quantized one; both sums run over all elements of all samples in float64, because energies
add and decibels do not. Source: B. Widrow, I. Kollar, Quantization Noise, Cambridge University Press 2008.

``inf`` if the outputs are equal (all zero too), ``-inf`` if the reference is all zero and the candidate is not,
``nan`` if one side holds a NaN or infinity that the other does not hold at the same place, or if the energy leaves the
range of float64 (values above 1e154), ``None`` if there was no element. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric, without_equal_specials


def energies(reference: Array, candidate: Array) -> Terms:
    """``x^2``, ``(x - y)^2`` and 1 per element."""
    x, y = without_equal_specials(reference, candidate)
    with np.errstate(invalid="ignore", over="ignore"):
        return x * x, (x - y) ** 2, x.size


def decibels(signal: Floats, noise: Floats) -> Floats:
    """The formula and its limits; of finite numbers the same as :func:`qtool.signal.db`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = 10.0 * np.log10(signal / noise)
    value = np.where(signal == 0.0, -np.inf, value)
    value = np.where(noise == 0.0, np.inf, value)
    return np.where(np.isfinite(signal) & np.isfinite(noise), value, np.nan)


class SqnrAccumulator(SumAccumulator):
    """Sums of signal and noise energy."""

    def terms(self, reference: Array, candidate: Array) -> Terms:
        """Energies per element."""
        return energies(reference, candidate)

    def value(self, sums: Floats) -> Floats:
        """Decibels."""
        return decibels(sums[..., 0], sums[..., 1])


METRIC = Metric("sqnr", "SQNR", "dB", higher_is_better=True, start=SqnrAccumulator, default=True)
