"""Mean absolute error.

    sum |x - y| / n

over all n elements of all samples, summed in float64, in the unit of the output. Source: C. Willmott, K. Matsuura,
Advantages of the mean absolute error over the root mean square error, Climate Research 30, 2005.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Metric, absolute_error


class MeanAbsAccumulator(Accumulator):
    """The sum of errors and their number.

    ``nan`` once a NaN stood on one side only, ``inf`` once an infinity did, ``None`` if there was no element. Bool
    counts as 0 and 1; integers of one type are subtracted exactly.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:  # noqa: ARG002
        """Add the errors of one batch; see the base class."""
        error = absolute_error(reference, candidate)
        with np.errstate(over="ignore"):
            self._sum += float(np.sum(error))
        self._count += error.size

    def result(self) -> float | None:
        """The mean over everything added."""
        return self._sum / self._count if self._count else None


METRIC = Metric("mean_abs", "Mean abs", "", higher_is_better=False, start=MeanAbsAccumulator, bounds=(0.0, math.inf))
