"""Mean intersection over union against a label map.

    mIoU = mean over classes c of  TP_c / (TP_c + FP_c + FN_c)

over the classes that occur in the labels or the answers, counted over all samples together. The answer of a position is
the argmax over the class axis, ties to the lowest index; an output with one channel is a mask, set above 0.5, and its
classes are background and foreground. Source: M. Everingham et al., The PASCAL Visual Object Classes Challenge,
International Journal of Computer Vision 88, 2010.

A position with a NaN is no answer of any class: it counts against the labelled one. ``None`` without a label other than
-100. Bool and integer scores compare like numbers.
"""

from __future__ import annotations

from qtool.evaluate.metrics._confusion import ConfusionAccumulator, Margins, mean_iou
from qtool.evaluate.metrics.base import CLASS_KINDS, LabelKind, Metric


class MeanIouAccumulator(ConfusionAccumulator):
    """Counts of pairs; see :mod:`qtool.evaluate.metrics._confusion`."""

    def formula(self, margins: Margins) -> float | None:
        """Mean over the classes that occur."""
        return mean_iou(margins)


METRIC = Metric(
    "miou",
    "mIoU",
    "",
    higher_is_better=True,
    start=MeanIouAccumulator,
    needs_labels=True,
    bounds=(0.0, 1.0),
    kinds=CLASS_KINDS,
    default_for=frozenset({LabelKind.MAP}),
    share=True,
)
