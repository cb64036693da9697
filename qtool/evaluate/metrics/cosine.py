"""Cosine similarity.

    cos = sum(x * y) / sqrt( sum(x^2) * sum(y^2) )

over all elements of all samples of an output, seen as one long vector, in float64; 1 means the same direction. It does
not see a common factor: read it beside SQNR. Source: G. Salton, M. McGill, Introduction to Modern Information
Retrieval, 1983.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Metric, require_same_shape


class CosineAccumulator(Accumulator):
    """The three sums of the formula.

    1 if both are all zero (they are equal), 0 if exactly one is, ``nan`` if one side holds a NaN or infinity that the
    other does not hold at the same place (equal ones carry nothing), or if a product of sums leaves the range of
    float64, ``None`` if there was no element. Bool counts as 0 and 1, integers as float64.
    """

    def __init__(self) -> None:
        self._xy = 0.0
        self._xx = 0.0
        self._yy = 0.0
        self._count = 0

    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:  # noqa: ARG002
        """Add the three sums of one batch; see the base class."""
        require_same_shape(reference, candidate)
        x = reference.astype(np.float64)
        y = candidate.astype(np.float64)
        special = ~np.isfinite(x) & ((x == y) | (np.isnan(x) & np.isnan(y)))
        x[special] = 0.0
        y[special] = 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            self._xy += float(np.sum(x * y))
            self._xx += float(np.sum(x * x))
            self._yy += float(np.sum(y * y))
        self._count += reference.size

    def result(self) -> float | None:
        """The cosine over everything added."""
        if self._count == 0:
            return None
        if not all(map(math.isfinite, (self._xy, self._xx, self._yy))):
            return math.nan
        if self._xx == 0.0 or self._yy == 0.0:
            return 1.0 if self._xx == self._yy else 0.0
        # sqrt of the product, not product of the roots: exactly 1 for equal outputs
        norm = math.sqrt(self._xx * self._yy)
        if norm == 0.0 or math.isinf(norm):
            return math.nan
        return max(-1.0, min(1.0, self._xy / norm))


METRIC = Metric("cosine", "Cosine", "", higher_is_better=True, start=CosineAccumulator, bounds=(-1.0, 1.0))
