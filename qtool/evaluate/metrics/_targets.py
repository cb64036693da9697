"""Labels that are numbers: what all metrics of regression ask of them."""

from __future__ import annotations

import numpy as np

from qtool.errors import DataError
from qtool.evaluate.metrics._sums import JudgeAccumulator
from qtool.evaluate.metrics.base import Array, Floats


class TargetAccumulator(JudgeAccumulator):
    """Base of metrics between an output and the numbers that it should hold."""

    def check(self, scores: Array, labels: Array | None) -> Array | None:
        """Targets in float64, NaN where there is none."""
        return checked_targets(scores, labels)


def checked_targets(scores: Array, labels: Array | None) -> Floats:
    """Targets in float64.

    Args:
        scores: Output of a model, any shape.
        labels: Targets, same shape, floats; NaN where a position has none.

    Raises:
        ValueError: If labels are missing or have another shape.
        DataError: If they are no floats, or one is infinite.
    """
    if labels is None or labels.shape != scores.shape:
        found = None if labels is None else labels.shape
        raise ValueError(f"Shapes differ: output {scores.shape}, labels {found}.")
    if labels.dtype.kind != "f":
        raise DataError(
            f"Labels are {labels.dtype}; regression targets are floats.", hint="Store the labels as a float32 array."
        )
    targets = labels.astype(np.float64)
    if np.isinf(targets).any():
        raise DataError("Labels hold an infinity; regression targets are finite, or NaN where there is none.")
    return targets


def origin(values: Array) -> float:
    """A number near all of these, to subtract before squaring: the first finite one, else 0."""
    finite = values[np.isfinite(values)]
    return float(finite[0]) if finite.size else 0.0


def correlation(sums: Floats) -> Floats:
    """Pearson's coefficient of sums (x, y, x^2, y^2, x*y, n) in the last axis.

    0 if x is constant (it says nothing about y), nan if y is.
    """
    x, y, xx, yy, xy, n = (sums[..., k] for k in range(6))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        var_x, var_y = np.maximum(xx - x * x / n, 0.0), np.maximum(yy - y * y / n, 0.0)
        product = var_x * var_y
        # the root of the product is exact for equal variances, where the product has not left the range of float64
        root = np.where((product > 0.0) & np.isfinite(product), np.sqrt(product), np.sqrt(var_x) * np.sqrt(var_y))
        value = np.clip((xy - x * y / n) / root, -1.0, 1.0)
        return np.where((var_x == 0.0) & (var_y > 0.0), 0.0, value)
