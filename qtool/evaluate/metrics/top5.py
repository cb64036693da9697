"""Top-5 accuracy: share of labelled rows whose label is among the five best scores of the class axis.

    top5 = #{rows: fewer than 5 classes before the label} / #{rows with a label}

Source: O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, arXiv 1409.0575. Not defined with five
classes or fewer. Ties, NaN and ignored labels: see ``_ranking``.
"""

from __future__ import annotations

from functools import partial

from qtool.evaluate.metrics._ranking import TopKAccumulator
from qtool.evaluate.metrics.base import CLASS_KINDS, LabelKind, Metric

METRIC = Metric(
    "top5",
    "Top-5",
    "",
    higher_is_better=True,
    start=partial(TopKAccumulator, 5),
    needs_labels=True,
    bounds=(0.0, 1.0),
    kinds=CLASS_KINDS,
    default_for=frozenset({LabelKind.CLASSES, LabelKind.TOKENS}),
    share=True,
)
