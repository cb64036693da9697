"""Labels that are classes: what all metrics of classification ask of them, and what an answer is."""

from __future__ import annotations

import numpy as np

from qtool.errors import DataError
from qtool.evaluate.metrics.base import Array, has_nan

IGNORED_LABEL = -100
"""Label of a position that has no answer (padding): the default ``ignore_index`` of PyTorch's cross entropy."""


def checked_labels(scores: Array, labels: Array | None) -> tuple[Array, Array]:
    """Labels as int64, 0 where they are ignored, and which count: none where there is only one class.

    Args:
        scores: Shape (..., classes).
        labels: Class indices, shape (...), any integer dtype; -100 is ignored.

    Raises:
        ValueError: If labels are missing or have another shape.
        DataError: If a label is no integer, or no class of this output.
    """
    if labels is None or labels.shape != scores.shape[:-1]:
        found = None if labels is None else labels.shape
        raise ValueError(f"Shapes differ: scores {scores.shape}, labels {found}.")
    if labels.dtype.kind not in "biu":
        raise DataError(
            f"Labels are {labels.dtype}; class indices are integers.", hint="Store the labels as an int64 array."
        )
    classes = scores.shape[-1]
    if classes < 2:  # no choice, whatever the label
        return np.zeros(labels.shape, np.int64), np.zeros(labels.shape, np.bool_)
    keep = labels != IGNORED_LABEL
    index = np.where(keep, labels, 0).astype(np.int64)
    outside = keep & ((index < 0) | (index >= classes))
    if outside.any():
        raise DataError(
            f"Label {labels[outside][0]} is no class of an output with {classes} classes; "
            f"expected 0 to {classes - 1}, or {IGNORED_LABEL} for a position to skip.",
            hint="Check that labels and model count classes from 0.",
        )
    return index, keep


def decisions(scores: Array) -> Array:
    """The best class of each row, the lowest among equal ones; -1 where the row holds a NaN: shape[:-1], int64."""
    if scores.shape[-1] == 0:
        return np.full(scores.shape[:-1], -1)
    best: Array = np.where(has_nan(scores), -1, np.argmax(scores, axis=-1))
    return best
