"""Top-k accuracy against labels: the shared part of ``top1`` and ``top5``."""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._classes import checked_labels
from qtool.evaluate.metrics._sums import JudgeAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Resampling, has_nan


class TopKAccumulator(JudgeAccumulator):
    """Hits of both models and the number of labelled rows.

    A row is a hit if fewer than k classes stand before the labelled one in order of falling score, equal scores in
    order of index, which makes k=1 the row's argmax. A row that holds a NaN is a miss. ``result`` is the quantized
    model's accuracy, ``baseline`` the float model's. ``None`` if no row has a label other than -100, or if there are
    not more than k classes, where every answer would be a hit. Bool and integers compare like numbers.

    Args:
        k: How many guesses count.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self._k = k

    def check(self, scores: Array, labels: Array | None) -> Array | None:
        """Class indices; see :func:`checked_labels` for what is raised."""
        index, keep = checked_labels(scores, labels)
        return np.where(keep, index, -1) if scores.shape[-1] > self._k else None

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Whether each row is a hit, and whether it counts."""
        keep = labels >= 0
        hits = np.zeros(labels.shape)
        hits[keep] = hit_rows(scores[keep], labels[keep], self._k)
        return hits, keep

    def value(self, sums: Floats) -> Floats:
        """The accuracy."""
        share: Floats = sums[..., 0] / sums[..., 1]
        return share

    def resampling(self) -> Resampling | None:
        """The accuracy of weighted samples, and the single answers where a sample has no more than one."""
        found = super().resampling()
        ours, theirs = self._baseline.matrix(), self._rows.matrix()
        if found is None or ours is None or theirs is None or np.any(ours[:, 1] > 1):
            return found
        answered = ours[:, 1] == 1
        hits = ours[answered, 0] > 0, theirs[answered, 0] > 0
        return Resampling(found.samples, found.value, found.baseline, hits)


def hit_rows(scores: Array, labels: Array, k: int) -> Array:
    """Which rows' label is among the k best; scores (rows, classes), labels (rows,) int64."""
    own = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)
    before = scores > own
    before |= (scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis])
    hits: Array = ~has_nan(scores) & (np.count_nonzero(before, axis=1) < k)
    return hits
