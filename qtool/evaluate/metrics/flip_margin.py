"""How sure the float model was of the decisions that changed.

    max over rows with a != b of  x_a - x_b,   a = argmax(x), b = argmax(y)

in the unit of the output: the largest lead that the quantized model turned around. Small next to the range of the
scores, the flips are coins that fell on the other side; large, they are damage. 0 if no decision changed.

Rows run along the last axis of an output of rank >= 2, ties go to the lowest index. ``nan`` once a row holds a NaN on
one side only, ``inf`` once a lead is infinite. ``None`` for an output of rank below 2, with a last axis of length 0 or
1, or without rows. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._softmax import has_classes
from qtool.evaluate.metrics.base import Accumulator, Array, Metric, has_nan, require_same_shape


class FlipMarginAccumulator(Accumulator):
    """The largest lead so far."""

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
        """Look at the decisions of one batch that changed; see the base class."""
        require_same_shape(reference, candidate)
        if not has_classes(reference):
            return
        self._largest = self._largest or 0.0
        if np.any(has_nan(reference) != has_nan(candidate)):
            self._largest = math.nan
        ours, theirs = np.argmax(reference, axis=-1), np.argmax(candidate, axis=-1)
        flipped = ours != theirs
        if not flipped.any():
            return
        rows = reference[flipped].astype(np.float64)
        at = np.arange(len(rows))
        with np.errstate(invalid="ignore", over="ignore"):
            largest = float(np.max(rows[at, ours[flipped]] - rows[at, theirs[flipped]]))
        if math.isnan(largest) or largest > self._largest:
            self._largest = largest

    def result(self) -> float | None:
        """The largest lead over everything added."""
        return self._largest


METRIC = Metric(
    "flip_margin", "Flip margin", "", higher_is_better=False, start=FlipMarginAccumulator, bounds=(0.0, math.inf)
)
