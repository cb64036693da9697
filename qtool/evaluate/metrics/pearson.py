"""Pearson's correlation of an output with regression targets.

    r = sum (x - mean x)(t - mean t) / sqrt( sum (x - mean x)^2 * sum (t - mean t)^2 )

over all elements with a target, seen as one long vector, in float64: 1 on a rising line, whatever its slope. Source: K.
Pearson, Note on regression and inheritance in the case of two parents, Proceedings of the Royal Society of London 58,
1895.

0 if all outputs are equal, ``nan`` if an output with a target is NaN or infinite. ``None`` without a target that is not
NaN, or if all targets are equal. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics._sums import Terms
from qtool.evaluate.metrics._targets import TargetAccumulator, checked_targets, correlation, origin
from qtool.evaluate.metrics.base import Array, Floats, LabelKind, Metric, require_same_shape


class PearsonAccumulator(TargetAccumulator):
    """The sums of the formula, of numbers from an origin near them."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: tuple[float, float, float] | None = None

    def update(
        self, reference: Array, candidate: Array, labels: Array | None = None, *, samples: int | None = None
    ) -> None:
        """Add the sums of one batch; see the base class."""
        require_same_shape(reference, candidate)
        arrays = reference.astype(np.float64), candidate.astype(np.float64), checked_targets(reference, labels)
        if self._origins is None and not np.isnan(arrays[2]).all():
            x, y, t = (origin(array) for array in arrays)
            self._origins = x, y, t
        moved = [array - start for array, start in zip(arrays, self._origins or (0.0, 0.0, 0.0), strict=True)]
        super().update(*moved, samples=samples)

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Products per element, and which count."""
        keep = ~np.isnan(labels)
        x, t = np.where(keep, scores, 0.0), np.where(keep, labels, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            return x, t, x * x, t * t, x * t, keep

    def value(self, sums: Floats) -> Floats:
        """The coefficient; nan if the targets are constant."""
        return correlation(sums)

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
        t, tt, n = np.sum(matrix[:, [1, 3, 5]], axis=0)
        return value if tt - t * t / n > 0.0 else None


METRIC = Metric(
    "pearson",
    "Pearson",
    "",
    higher_is_better=True,
    start=PearsonAccumulator,
    needs_labels=True,
    bounds=(-1.0, 1.0),
    kinds=frozenset({LabelKind.TARGETS}),
    share=True,
)
