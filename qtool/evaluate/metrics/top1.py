"""Top-1 accuracy: share of labelled rows whose argmax over the class axis is the label.

    top1 = #{rows: argmax(scores) == label} / #{rows with a label}

Of a label map it is the pixel accuracy. Source: O. Russakovsky et al., ImageNet Large Scale Visual Recognition
Challenge, arXiv 1409.0575. Ties, NaN and ignored labels: see ``_ranking``.
"""

from __future__ import annotations

from functools import partial

from qtool.evaluate.metrics._ranking import TopKAccumulator
from qtool.evaluate.metrics.base import CLASS_KINDS, Metric

METRIC = Metric(
    "top1",
    "Top-1",
    "",
    higher_is_better=True,
    start=partial(TopKAccumulator, 1),
    needs_labels=True,
    bounds=(0.0, 1.0),
    kinds=CLASS_KINDS,
    default_for=CLASS_KINDS,
    share=True,
)
