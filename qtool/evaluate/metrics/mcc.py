"""Matthews correlation coefficient, for two or more classes.

    MCC = (c * s - sum_k p_k * t_k) / sqrt( (s^2 - sum_k p_k^2) * (s^2 - sum_k t_k^2) )

with s decisions, c of them right, class k being right t_k times and the answer p_k times. 1 is perfect, 0 no better
than chance; unlike accuracy it does not reward naming the commonest class always. 0 where the denominator is 0 (one
class only). Source: J. Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient,
Computational Biology and Chemistry 28, 2004.

A row with a NaN is no answer of any class: it counts as a miss. ``None`` without a label other than -100, or with fewer
than two classes. Bool and integer scores compare like numbers.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._confusion import ConfusionAccumulator, Margins
from qtool.evaluate.metrics.base import CLASS_KINDS, Metric


class MccAccumulator(ConfusionAccumulator):
    """Counts of pairs; see :mod:`qtool.evaluate.metrics._confusion`."""

    def formula(self, margins: Margins) -> float | None:
        """The coefficient; rows without an answer are a class of their own, which is never right."""
        total, silent = margins.total, margins.total - float(np.sum(margins.answers))
        above = float(np.sum(margins.hits)) * total - float(margins.answers @ margins.truths)
        answers = total**2 - float(margins.answers @ margins.answers) - silent**2
        truths = total**2 - float(margins.truths @ margins.truths)
        below = math.sqrt(max(answers, 0.0)) * math.sqrt(max(truths, 0.0))
        return max(-1.0, min(1.0, above / below)) if below else 0.0


METRIC = Metric(
    "mcc",
    "MCC",
    "",
    higher_is_better=True,
    start=MccAccumulator,
    needs_labels=True,
    bounds=(-1.0, 1.0),
    kinds=CLASS_KINDS,
    share=True,
)
