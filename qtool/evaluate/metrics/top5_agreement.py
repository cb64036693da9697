"""How much the five best classes have in common, whatever their order. No labels needed.

    mean over rows of  |top5(x) & top5(y)| / 5

over the last axis of an output of rank >= 2. Among equal scores the lower index stands first; NaN stands before every
number, as for ``numpy.argmax``. Source: R. Fagin, R. Kumar, D. Sivakumar, Comparing Top k Lists, SIAM Journal on
Discrete Mathematics 17, 2003 (the overlap of two lists).

``None`` for an output of rank below 2, with five classes or fewer, where nothing else could come out, or without rows.
A row with a NaN on one side only has nothing in common; infinities compare like numbers.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._softmax import has_classes
from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric, has_nan

K = 5


class OverlapAccumulator(SumAccumulator):
    """The sum of overlaps and the number of rows."""

    def terms(self, reference: Array, candidate: Array) -> Terms | None:
        """The overlap of each row."""
        if not has_classes(reference) or reference.shape[-1] <= K:
            return None
        ours, theirs = best(reference, K), best(candidate, K)
        common = np.count_nonzero(ours[..., :, np.newaxis] == theirs[..., np.newaxis, :], axis=(-2, -1)) / K
        return np.where(has_nan(reference) == has_nan(candidate), common, 0.0), common.size

    def value(self, sums: Floats) -> Floats:
        """The mean overlap."""
        mean: Floats = sums[..., 0] / sums[..., 1]
        return mean


def best(scores: Array, k: int) -> Array:
    """Indices of the k largest of each row, equal ones in order of index: shape (..., k)."""
    # a stable sort of the row backwards, read backwards, puts the lower of two equal ones first
    order = scores.shape[-1] - 1 - np.argsort(scores[..., ::-1], axis=-1, kind="stable")
    found: Array = order[..., : -k - 1 : -1]
    return found


METRIC = Metric(
    "top5_agreement",
    "Top-5 agreement",
    "",
    higher_is_better=True,
    start=OverlapAccumulator,
    bounds=(0.0, 1.0),
    share=True,
)
