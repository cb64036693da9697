"""F1 score, macro average: the mean over classes of the harmonic mean of precision and recall.

    F1 = mean over classes c of  2 * TP_c / (2 * TP_c + FP_c + FN_c)

over the classes that occur among the labels or the answers; a class without a hit has 0. All classes count alike,
however rare. The answer of a row is its argmax over the class axis, ties to the lowest index. Source: C. van
Rijsbergen, Information Retrieval, 1979; macro average as in D. Lewis, Evaluating Text Categorization, 1991.

A row with a NaN is no answer of any class: it counts against the labelled one. ``None`` without a label other than
-100, or with fewer than two classes. Bool and integer scores compare like numbers.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._confusion import ConfusionAccumulator, Margins
from qtool.evaluate.metrics.base import CLASS_KINDS, Metric


class F1Accumulator(ConfusionAccumulator):
    """Counts of pairs; see :mod:`qtool.evaluate.metrics._confusion`."""

    def formula(self, margins: Margins) -> float | None:
        """Macro F1."""
        either = margins.truths + margins.answers
        there = either > 0
        return float(np.mean(2.0 * margins.hits[there] / either[there]))


METRIC = Metric(
    "f1",
    "F1 (macro)",
    "",
    higher_is_better=True,
    start=F1Accumulator,
    needs_labels=True,
    bounds=(0.0, 1.0),
    kinds=CLASS_KINDS,
    share=True,
)
