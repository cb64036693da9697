"""Cosine similarity.

    cos = sum(x * y) / sqrt( sum(x^2) * sum(y^2) )

over all elements of all samples of an output, seen as one long vector, in float64; 1 means the same direction. It does
not see a common factor: read it beside SQNR. Source: G. Salton, M. McGill, Introduction to Modern Information
Retrieval, 1983.

1 if both are all zero (they are equal), 0 if exactly one is, ``nan`` if one side holds a NaN or infinity that the other
does not hold at the same place (equal ones carry nothing), or if a product of sums leaves the range of float64,
``None`` if there was no element. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric, without_equal_specials


class CosineAccumulator(SumAccumulator):
    """The three sums of the formula."""

    def terms(self, reference: Array, candidate: Array) -> Terms:
        """Products per element."""
        x, y = without_equal_specials(reference, candidate)
        with np.errstate(invalid="ignore", over="ignore"):
            return x * y, x * x, y * y, x.size

    def value(self, sums: Floats) -> Floats:
        """The cosine and its limits."""
        xy, xx, yy = sums[..., 0], sums[..., 1], sums[..., 2]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # sqrt of the product, not product of the roots: exactly 1 for equal outputs
            norm = np.sqrt(xx * yy)
            value = np.clip(xy / norm, -1.0, 1.0)
        value = np.where((norm == 0.0) | np.isinf(norm), np.nan, value)
        value = np.where((xx == 0.0) | (yy == 0.0), np.where(xx == yy, 1.0, 0.0), value)
        return np.where(np.isfinite(xy) & np.isfinite(xx) & np.isfinite(yy), value, np.nan)


METRIC = Metric(
    "cosine", "Cosine", "", higher_is_better=True, start=CosineAccumulator, bounds=(-1.0, 1.0), default=True
)
