"""Top-k accuracy against labels: the shared part of ``top1`` and ``top5``."""

from __future__ import annotations

import numpy as np

from qtool.errors import DataError
from qtool.evaluate.metrics.base import Accumulator, Array

IGNORED_LABEL = -100
"""Label of a position that has no answer (padding): the default ``ignore_index`` of PyTorch's cross entropy."""


class TopKAccumulator(Accumulator):
    """Hits of both models and the number of labelled rows.

    A row is a hit if fewer than k classes stand before the labelled one in order of falling score, equal scores in
    order of index, which makes k=1 the row's argmax. A row that holds a NaN is a miss. ``result`` is the quantized
    model's accuracy, ``baseline`` the float model's. ``None`` if no row has a label other than -100, or if there are
    not more than k classes, where every answer would be a hit.

    Args:
        k: How many guesses count.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._hits = 0
        self._baseline_hits = 0
        self._count = 0

    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:
        """Count one batch.

        Args:
            reference: Scores of the float model, shape (..., classes), any real dtype.
            candidate: Scores of the quantized model, same shape.
            labels: Class indices, shape (...), any integer dtype; -100 is skipped.

        Raises:
            ValueError: If a shape differs, or labels are missing.
            DataError: If a label is no integer, or no class of this output.
        """
        if labels is None or labels.shape != reference.shape[:-1] or reference.shape != candidate.shape:
            found = None if labels is None else labels.shape
            raise ValueError(
                f"Shapes differ: reference {reference.shape}, candidate {candidate.shape}, labels {found}."
            )
        if labels.dtype.kind not in "iu":
            raise DataError(
                f"Labels are {labels.dtype}; class indices are integers.", hint="Store the labels as an int64 array."
            )
        classes = reference.shape[-1]
        if classes <= self._k:
            return
        keep = labels != IGNORED_LABEL
        index = labels[keep].astype(np.int64)
        outside = (index < 0) | (index >= classes)
        if outside.any():
            raise DataError(
                f"Label {index[outside][0]} is no class of an output with {classes} classes; "
                f"expected 0 to {classes - 1}, or {IGNORED_LABEL} for a position to skip.",
                hint="Check that labels and model count classes from 0.",
            )
        self._baseline_hits += count_hits(reference[keep], index, self._k)
        self._hits += count_hits(candidate[keep], index, self._k)
        self._count += index.size

    def result(self) -> float | None:
        """Accuracy of the quantized model."""
        return self._hits / self._count if self._count else None

    def baseline(self) -> float | None:
        """Accuracy of the float model."""
        return self._baseline_hits / self._count if self._count else None


def count_hits(scores: Array, labels: Array, k: int) -> int:
    """Number of rows whose label is among the k best; scores (rows, classes), labels (rows,) int64."""
    own = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)
    before = scores > own
    before |= (scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis])
    whole = ~np.any(scores != scores, axis=1)  # a NaN is what differs from itself
    return int(np.count_nonzero(whole & (np.count_nonzero(before, axis=1) < k)))
