"""Share of decisions that stay the same: the mean of [argmax(x) == argmax(y)] over the last axis. No labels needed.

A decision is one row along the last axis of an output of rank >= 2 (a class axis after the sample axis), so a language
model counts one decision per token. Among equal scores the lowest index wins (``numpy.argmax``); 8-bit outputs do tie.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Metric, require_same_shape


class AgreementAccumulator(Accumulator):
    """Number of equal decisions and of decisions.

    ``None`` for an output of rank below 2, with a last axis of length 0 or 1, or without rows: there is nothing to
    choose. A row with a NaN on one side only is a disagreement; infinities compare like numbers.
    """

    def __init__(self) -> None:
        self._equal = 0
        self._count = 0

    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:  # noqa: ARG002
        """Count the decisions of one batch; see the base class."""
        require_same_shape(reference, candidate)
        if reference.ndim < 2 or reference.shape[-1] < 2 or reference.size == 0:
            return
        same = np.argmax(reference, axis=-1) == np.argmax(candidate, axis=-1)
        same &= has_nan(reference) == has_nan(candidate)
        self._equal += int(np.count_nonzero(same))
        self._count += same.size

    def result(self) -> float | None:
        """The share over everything added."""
        return self._equal / self._count if self._count else None


def has_nan(array: Array) -> Array:
    """Whether each row along the last axis holds a NaN: shape ``array.shape[:-1]``, bool."""
    # a NaN is the only value that differs from itself, in every dtype
    nan: Array = np.any(array != array, axis=-1)
    return nan


METRIC = Metric(
    "top1_agreement", "Top-1 agreement", "", higher_is_better=True, start=AgreementAccumulator, bounds=(0.0, 1.0)
)
