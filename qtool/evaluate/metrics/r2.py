"""Coefficient of determination against regression targets.

    R2 = 1 - sum (output - target)^2 / sum (target - mean(target))^2

over all elements with a target, seen as one long vector, in float64: 1 is perfect, 0 no better than the mean, and there
is no lower end. Source: S. Wright, Correlation and Causation, Journal of Agricultural Research 20, 1921.

``nan`` if an output with a target is NaN, ``-inf`` if one is infinite. ``None`` without a target that is not NaN, or if
all targets are equal. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._sums import Terms
from qtool.evaluate.metrics._targets import TargetAccumulator, origin
from qtool.evaluate.metrics.base import Array, Floats, LabelKind, Metric


class R2Accumulator(TargetAccumulator):
    """Sums of squared errors, of targets and of their squares, and their number."""

    def __init__(self) -> None:
        super().__init__()
        self._origin: float | None = None

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Squared errors, targets from an origin near them, and which count."""
        keep = ~np.isnan(labels)
        if self._origin is None and keep.any():
            self._origin = origin(labels)
        targets = np.where(keep, labels - (self._origin or 0.0), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.where(keep, (scores.astype(np.float64) - labels) ** 2, 0.0)
        return error, targets, targets * targets, keep

    def value(self, sums: Floats) -> Floats:
        """The coefficient; nan if the targets are constant."""
        error, y, yy, n = (sums[..., k] for k in range(4))
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = yy - y * y / n
            return np.where(spread > 0.0, 1.0 - error / spread, np.nan)

    def result(self) -> float | None:
        """The quantized model's coefficient."""
        return self._defined(super().result())

    def baseline(self) -> float | None:
        """The float model's coefficient."""
        return self._defined(super().baseline())

    def _defined(self, value: float | None) -> float | None:
        matrix = self._rows.matrix()
        if matrix is None or value is None:
            return None
        y, yy, n = np.sum(matrix[:, 1:], axis=0)
        return value if yy - y * y / n > 0.0 else None


METRIC = Metric(
    "r2",
    "R²",
    "",
    higher_is_better=True,
    start=R2Accumulator,
    needs_labels=True,
    bounds=(-math.inf, 1.0),
    kinds=frozenset({LabelKind.TARGETS}),
    default_for=frozenset({LabelKind.TARGETS}),
    share=True,
)
