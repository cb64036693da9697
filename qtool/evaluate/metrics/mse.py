"""Mean squared error against regression targets.

    MSE = sum (output - target)^2 / n

over all n elements with a target, in float64, in the squared unit of the output. Source: C. F. Gauss, Theoria
combinationis observationum erroribus minimis obnoxiae, 1823.

``nan`` if an output with a target is NaN, ``inf`` if one is infinite, ``None`` without a target that is not NaN. Bool
counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._sums import Terms
from qtool.evaluate.metrics._targets import TargetAccumulator
from qtool.evaluate.metrics.base import Array, Floats, LabelKind, Metric


class MseAccumulator(TargetAccumulator):
    """The sum of squared errors and their number."""

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Squared errors, and which count."""
        keep = ~np.isnan(labels)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(keep, (scores.astype(np.float64) - labels) ** 2, 0.0), keep

    def value(self, sums: Floats) -> Floats:
        """The mean."""
        mean: Floats = sums[..., 0] / sums[..., 1]
        return mean


METRIC = Metric(
    "mse",
    "MSE",
    "",
    higher_is_better=False,
    start=MseAccumulator,
    needs_labels=True,
    bounds=(0.0, math.inf),
    kinds=frozenset({LabelKind.TARGETS}),
    default_for=frozenset({LabelKind.TARGETS}),
)
