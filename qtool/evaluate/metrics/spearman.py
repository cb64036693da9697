"""Spearman's rank correlation of an output with regression targets.

    rho = Pearson's r of the ranks of the outputs and the ranks of the targets

over all elements with a target, seen as one long vector; equal numbers share the mean of their ranks. 1 if a larger
target always has a larger output. Ranks need all values at once, so as many numbers are kept as there are targets. The
interval holds the ranks fixed. Source: C. Spearman, The Proof and Measurement of Association between Two Things,
American Journal of Psychology 15, 1904.

0 if all outputs are equal, ``nan`` if an output with a target is NaN; infinities are ranked. ``None`` without a target
that is not NaN, or if all targets are equal. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._targets import checked_targets, correlation
from qtool.evaluate.metrics.base import (
    Accumulator,
    Array,
    Floats,
    LabelKind,
    Metric,
    Resampling,
    require_same_shape,
)


class SpearmanAccumulator(Accumulator):
    """Sample, target, and the outputs of both models, of every element with a target."""

    def __init__(self) -> None:
        self._blocks: list[Floats] = []
        self._samples = 0
        self._separable = True

    def update(
        self, reference: Array, candidate: Array, labels: Array | None = None, *, samples: int | None = None
    ) -> None:
        """Keep the values of one batch; see the base class."""
        require_same_shape(reference, candidate)
        targets = checked_targets(reference, labels)
        if samples is None:
            self._separable, samples = False, 1
        elif not samples:
            return
        sample = np.repeat(np.arange(self._samples, self._samples + samples), targets.size // samples)
        self._samples += samples
        columns = [sample, targets.reshape(-1), reference.reshape(-1), candidate.reshape(-1)]
        block = np.stack([column.astype(np.float64) for column in columns])
        self._blocks.append(block[:, ~np.isnan(block[1])])

    def _values(self) -> Floats | None:
        """The four rows; None if they define no correlation."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks, axis=1)]
        if not self._blocks or not self._blocks[0].size or np.ptp(self._blocks[0][1]) == 0.0:
            return None
        return self._blocks[0]

    def _of(self, row: int) -> float | None:
        values = self._values()
        if values is None:
            return None
        if np.isnan(values[row]).any():
            return math.nan
        return float(correlation(_products(values[row], values[1]).sum(axis=0)))

    def result(self) -> float | None:
        """The quantized model's coefficient."""
        return self._of(3)

    def baseline(self) -> float | None:
        """The float model's coefficient."""
        return self._of(2)

    def resampling(self) -> Resampling | None:
        """Pearson's r of weighted ranks."""
        values = self._values()
        if values is None or not self._separable or np.isnan(values).any():
            return None
        sample = values[0].astype(np.int64)
        ours, theirs = (
            np.stack([np.bincount(sample, column, self._samples) for column in _products(values[row], values[1]).T], 1)
            for row in (2, 3)
        )
        return Resampling(
            self._samples, lambda weights: correlation(weights @ theirs), lambda weights: correlation(weights @ ours)
        )


def _products(outputs: Floats, targets: Floats) -> Floats:
    """Sums' terms (x, t, x^2, t^2, x*t, 1) of centred ranks, (values, 6)."""
    x, t = ranks(outputs), ranks(targets)
    return np.stack([x, t, x * x, t * t, x * t, np.ones(len(x))], axis=1)


def ranks(values: Floats) -> Floats:
    """Rank of each value, equal ones share the mean, minus the mean rank: halves, summed without rounding."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    centred: Floats = (last - (counts - 1) / 2)[inverse] - (len(values) + 1) / 2
    return centred


METRIC = Metric(
    "spearman",
    "Spearman",
    "",
    higher_is_better=True,
    start=SpearmanAccumulator,
    needs_labels=True,
    bounds=(-1.0, 1.0),
    kinds=frozenset({LabelKind.TARGETS}),
    share=True,
)
