"""Largest absolute error (Chebyshev distance).

    max |x - y|

over all elements of all samples, in the unit of the output. Source: E. Deza, M. Deza, Encyclopedia of Distances, 2009.

``nan`` once a NaN stood on one side only, ``inf`` once an infinity did, ``None`` if there was no element. Bool counts
as 0 and 1; integers of one type are subtracted exactly.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Metric, absolute_error


class MaxAbsAccumulator(Accumulator):
    """The largest error so far."""

    def __init__(self) -> None:
        self._largest: float | None = None

    def update(
        self,
        reference: Array,
        candidate: Array,
        labels: Array | None = None,  # noqa: ARG002
        *,
        samples: int | None = None,  # noqa: ARG002
    ) -> None:
        """Take the largest error of one batch; see the base class."""
        error = absolute_error(reference, candidate)
        if error.size == 0:
            return
        largest = float(np.max(error))
        # Python's max would lose a NaN, depending on the order of its arguments
        if self._largest is None or math.isnan(largest) or largest > self._largest:
            self._largest = largest

    def result(self) -> float | None:
        """The largest error over everything added."""
        return self._largest


METRIC = Metric(
    "max_abs", "Max abs", "", higher_is_better=False, start=MaxAbsAccumulator, bounds=(0.0, math.inf), default=True
)
