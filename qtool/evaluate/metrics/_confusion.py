"""Metrics that are a function of the confusion matrix: ``f1``, ``mcc``, ``miou``, ``mask_iou``.

What is kept is, for each sample, how often each pair of (right class, answer) came: as many numbers as a sample has
different pairs, so one per sample of a classifier and a handful per label map.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from qtool.evaluate.metrics._classes import checked_labels, decisions
from qtool.evaluate.metrics.base import Accumulator, Array, Floats, Resampling, require_same_shape


class Pairs:
    """Counts of (sample, right class, answer) of one model.

    Attributes:
        separable: Whether samples could be told apart in every batch.
        samples: Number of samples so far.
    """

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self.separable = True
        self.samples = 0

    def add(self, truth: Array, answer: Array, keep: Array, classes: int, samples: int | None) -> None:
        """Count a batch.

        Args:
            truth: Right class of each decision, int64, axis 0 is the batch's.
            answer: Class that the model chose, same shape; -1 for none.
            keep: Which decisions count, same shape, bool.
            classes: How many classes there are.
            samples: See :meth:`Accumulator.update`.
        """
        if samples is None:
            self.separable, samples = False, 1
        elif not samples:
            return
        sample = np.repeat(np.arange(self.samples, self.samples + samples), truth.size // samples)
        self.samples += samples
        kept = keep.reshape(-1)
        pair = truth.reshape(-1)[kept] * (classes + 1) + answer.reshape(-1)[kept] + 1
        codes, counts = np.unique(sample[kept] * (classes * (classes + 1)) + pair, return_counts=True)
        rest, answers = np.divmod(codes, classes + 1)
        self._blocks.append(np.stack([*np.divmod(rest, classes), answers - 1, counts], axis=1))

    def table(self) -> Array:
        """Rows of (sample, right class, answer, count), int64."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0] if self._blocks else np.zeros((0, 4), np.int64)


class Margins:
    """What the formulas need of a confusion matrix.

    Attributes:
        hits: How often each class was right and the answer, (classes,).
        truths: How often each class was right, (classes,).
        answers: How often each class was the answer, (classes,).
        total: Number of decisions, those without an answer among them.

    Args:
        table: Counts as of :meth:`Pairs.table`.
        weights: Of the samples; None: 1 each.
    """

    def __init__(self, table: Array, weights: Floats | None = None) -> None:
        sample, truth, answer, count = table.T
        weighed = count.astype(np.float64) if weights is None else weights[sample] * count
        classes = int(max(truth.max(initial=0), answer.max(initial=0))) + 1
        hit, answered = truth == answer, answer >= 0
        self.hits = np.bincount(truth[hit], weighed[hit], classes)
        self.truths = np.bincount(truth, weighed, classes)
        self.answers = np.bincount(answer[answered], weighed[answered], classes)
        self.total = float(weighed.sum())


def value_of(formula: Callable[[Margins], float | None], table: Array, weights: Floats | None = None) -> float | None:
    """A formula of a confusion matrix; None if it holds no decision."""
    margins = Margins(table, weights)
    return formula(margins) if margins.total > 0 else None


def estimator(formula: Callable[[Margins], float | None], table: Array) -> Callable[[Floats], Floats]:
    """The formula for each row of weights (draws, samples); nan where it is not defined."""

    def estimate(weights: Floats) -> Floats:
        values = [value_of(formula, table, row) for row in weights]
        return np.array([np.nan if value is None else value for value in values])

    return estimate


def mean_iou(margins: Margins) -> float | None:
    """Mean over the classes that are right or an answer somewhere of hits / (truths + answers - hits)."""
    union = margins.truths + margins.answers - margins.hits
    there = union > 0
    return float(np.mean(margins.hits[there] / union[there])) if there.any() else None


class ConfusionAccumulator(Accumulator):
    """Base of metrics that judge each model by its confusion matrix against labels.

    A row that holds a NaN is no answer of any class: a miss. ``None`` if no row has a label other than -100, or with
    fewer than two classes.
    """

    def __init__(self) -> None:
        self._pairs, self._baseline = Pairs(), Pairs()

    @abstractmethod
    def formula(self, margins: Margins) -> float | None:
        """The value of a confusion matrix of at least one decision."""

    def update(
        self, reference: Array, candidate: Array, labels: Array | None = None, *, samples: int | None = None
    ) -> None:
        """Count one batch.

        Args:
            reference: Scores of the float model, shape (..., classes), any real dtype.
            candidate: Scores of the quantized model, same shape.
            labels: Class indices, shape (...), any integer dtype; -100 is skipped.
            samples: See the base class.

        Raises:
            ValueError: If a shape differs, or labels are missing.
            DataError: If a label is no integer, or no class of this output.
        """
        require_same_shape(reference, candidate)
        truth, keep = checked_labels(reference, labels)
        classes = reference.shape[-1]
        if classes >= 2:
            self._baseline.add(truth, decisions(reference), keep, classes, samples)
            self._pairs.add(truth, decisions(candidate), keep, classes, samples)

    def result(self) -> float | None:
        """The quantized model's value."""
        return value_of(self.formula, self._pairs.table())

    def baseline(self) -> float | None:
        """The float model's value."""
        return value_of(self.formula, self._baseline.table())

    def resampling(self) -> Resampling | None:
        """The formula on weighted counts of either model."""
        if not self._pairs.separable or not self._pairs.samples:
            return None
        found, ours = (estimator(self.formula, pairs.table()) for pairs in (self._pairs, self._baseline))
        return Resampling(self._pairs.samples, found, ours)
