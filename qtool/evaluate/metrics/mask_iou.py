"""Intersection over union of the masks that both models draw. No labels needed.

    IoU = |X & Y| / |X | Y|

over all samples together. An output of rank >= 4 (sample, channel, space...) with one channel is a mask, set above 0.5;
with more channels the masks are the classes' shares of the argmax over axis 1, and the value is the mean over the
classes that occur. A bool output of rank >= 2 is a mask as it is. Source: P. Jaccard, The Distribution of the Flora in
the Alpine Zone, New Phytologist 11, 1912.

1 if both masks are empty. A position with a NaN is in no mask; one with a NaN on both sides counts as agreement of
nothing. Infinities and integers compare like numbers. ``None`` for other outputs and without elements.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._classes import decisions
from qtool.evaluate.metrics._confusion import Margins, Pairs, estimator, mean_iou, value_of
from qtool.evaluate.metrics.base import Accumulator, Array, Metric, Resampling, require_same_shape

LEVEL = 0.5


class MaskIouAccumulator(Accumulator):
    """Counts of pairs of the float model's class and the quantized model's."""

    def __init__(self) -> None:
        self._pairs = Pairs()
        self._single = False

    def update(
        self,
        reference: Array,
        candidate: Array,
        labels: Array | None = None,  # noqa: ARG002
        *,
        samples: int | None = None,
    ) -> None:
        """Count the positions of one batch; see the base class."""
        require_same_shape(reference, candidate)
        is_mask = reference.dtype.kind == "b" and reference.ndim >= 2
        if reference.size == 0 or not (is_mask or reference.ndim >= 4):
            return
        self._single = is_mask or reference.shape[1] == 1
        ours, theirs = (
            (array > LEVEL).astype(np.int64) if self._single else decisions(np.moveaxis(array, 1, -1))
            for array in (reference, candidate)
        )
        classes = 2 if self._single else reference.shape[1]
        # what neither decides is left out; what only one does counts against its class
        self._pairs.add(ours + 1, theirs + 1, (ours >= 0) | (theirs >= 0), classes + 1, samples)

    def _formula(self, margins: Margins) -> float | None:
        for counts in (margins.hits, margins.truths, margins.answers):
            counts[0] = 0.0  # no decision
            if self._single:
                counts[1] = 0.0  # background
        found = mean_iou(margins)
        return 1.0 if found is None else found

    def result(self) -> float | None:
        """The share over everything added."""
        return value_of(self._formula, self._pairs.table())

    def resampling(self) -> Resampling | None:
        """The share of weighted samples."""
        if not self._pairs.separable or not self._pairs.samples:
            return None
        return Resampling(self._pairs.samples, estimator(self._formula, self._pairs.table()))


METRIC = Metric(
    "mask_iou", "Mask IoU", "", higher_is_better=True, start=MaskIouAccumulator, bounds=(0.0, 1.0), share=True
)
