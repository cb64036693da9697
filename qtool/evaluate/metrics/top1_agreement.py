"""Share of decisions that stay the same: the mean of [argmax(x) == argmax(y)] over the last axis. No labels needed.

A decision is one row along the last axis of an output of rank >= 2 (a class axis after the sample axis), so a language
model counts one decision per token. Among equal scores the lowest index wins (``numpy.argmax``); 8-bit outputs do tie.

``None`` for an output of rank below 2, with a last axis of length 0 or 1, or without rows: there is nothing to choose.
A row with a NaN on one side only is a disagreement; infinities compare like numbers.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._softmax import has_classes
from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric, has_nan


class AgreementAccumulator(SumAccumulator):
    """Number of equal decisions and of decisions."""

    def terms(self, reference: Array, candidate: Array) -> Terms | None:
        """Whether each decision is the same."""
        if not has_classes(reference):
            return None
        same = np.argmax(reference, axis=-1) == np.argmax(candidate, axis=-1)
        same &= has_nan(reference) == has_nan(candidate)
        return same, same.size

    def value(self, sums: Floats) -> Floats:
        """The share."""
        share: Floats = sums[..., 0] / sums[..., 1]
        return share


METRIC = Metric(
    "top1_agreement",
    "Top-1 agreement",
    "",
    higher_is_better=True,
    start=AgreementAccumulator,
    bounds=(0.0, 1.0),
    default=True,
    share=True,
)
