"""Mean absolute error against regression targets.

    MAE = sum |output - target| / n

over all n elements with a target, in float64, in the unit of the output. Source: C. Willmott, K. Matsuura, Advantages
of the mean absolute error over the root mean square error, Climate Research 30, 2005.

``nan`` if an output with a target is NaN, ``inf`` if one is infinite, ``None`` without a target that is not NaN. Bool
counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._sums import Terms
from qtool.evaluate.metrics.base import Array, LabelKind, Metric
from qtool.evaluate.metrics.mse import MseAccumulator


class MaeAccumulator(MseAccumulator):
    """The sum of errors and their number."""

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Absolute errors, and which count."""
        keep = ~np.isnan(labels)
        return np.where(keep, np.abs(scores.astype(np.float64) - labels), 0.0), keep


METRIC = Metric(
    "mae",
    "MAE",
    "",
    higher_is_better=False,
    start=MaeAccumulator,
    needs_labels=True,
    bounds=(0.0, math.inf),
    kinds=frozenset({LabelKind.TARGETS}),
    default_for=frozenset({LabelKind.TARGETS}),
)
