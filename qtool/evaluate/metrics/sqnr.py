"""Signal-to-quantization-noise ratio.

    SQNR = 10 * log10( sum(x^2) / sum((x - y)^2) )   [dB]

x is the float output, y the quantized one; both sums run over all elements of all samples in float64, because energies
add and decibels do not. Source: B. Widrow, I. Kollar, Quantization Noise, Cambridge University Press 2008.
"""

from __future__ import annotations

import math

from qtool.evaluate.metrics.base import Accumulator, Array, Metric
from qtool.signal import db, signal_and_noise


class SqnrAccumulator(Accumulator):
    """Sums of signal and noise energy.

    ``inf`` if the outputs are equal (all zero too), ``-inf`` if the reference is all zero and the candidate is not,
    ``nan`` if one side holds a NaN or infinity that the other does not hold at the same place, or if the energy leaves
    the range of float64 (values above 1e154), ``None`` if there was no element. Bool counts as 0 and 1, integers as
    float64.
    """

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0
        self._count = 0

    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:  # noqa: ARG002
        """Add the energies of one batch; see the base class."""
        signal, noise = signal_and_noise(reference, candidate)
        self._signal += signal
        self._noise += noise
        self._count += reference.size

    def result(self) -> float | None:
        """Decibels over everything added."""
        if self._count == 0:
            return None
        if not math.isfinite(self._signal):
            return math.nan
        return db(self._signal, self._noise)


METRIC = Metric("sqnr", "SQNR", "dB", higher_is_better=True, start=SqnrAccumulator)
