"""Metrics that are a function of sums: the sums of every sample are kept, and nothing else.

A sample leaves as many float64 numbers as the formula has sums, so that memory grows by some bytes per sample and not
with the size of outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Floats, Resampling, require_same_shape

Terms: TypeAlias = Sequence[Array | int]

_PENDING = 256


class Rows:
    """Sums per sample: a float64 matrix (samples, sums) that grows.

    Attributes:
        separable: Whether each row is one sample; False once a batch came whose samples could not be told apart.
    """

    def __init__(self) -> None:
        self._blocks: list[Floats] = []
        self._pending: list[Floats] = []
        self.separable = True

    def add(self, terms: Terms, samples: int | None) -> None:
        """Add a batch.

        Args:
            terms: For each sum an array of what is summed, whose axis 0 is the batch's (or all is one sample); or the
                sum itself, where every sample has the same part in it.
            samples: See :meth:`Accumulator.update`.
        """
        if samples is None:
            self.separable, samples = False, 1
        elif not samples:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            rows = [
                np.full(samples, term / samples)
                if isinstance(term, int)
                else np.sum(term.reshape(samples, -1), axis=1, dtype=np.float64)
                for term in terms
            ]
        self._pending.append(np.stack(rows, axis=1))
        if len(self._pending) == _PENDING:
            self._blocks.append(np.concatenate(self._pending))
            self._pending.clear()

    def matrix(self) -> Floats | None:
        """All rows, or None before the first one."""
        blocks = [*self._blocks, *self._pending]
        return np.concatenate(blocks) if blocks else None


class SumAccumulator(Accumulator):
    """Base of metrics that compare the two models by sums over elements or rows.

    The last sum counts what was compared: where it is 0, the metric is not defined.
    """

    def __init__(self) -> None:
        self._rows = Rows()

    @abstractmethod
    def terms(self, reference: Array, candidate: Array) -> Terms | None:
        """What is summed, see :meth:`Rows.add`; None if the formula does not apply."""

    @abstractmethod
    def value(self, sums: Floats) -> Floats:
        """The formula on sums (..., number of sums), where at least one thing was compared."""

    def update(
        self,
        reference: Array,
        candidate: Array,
        labels: Array | None = None,  # noqa: ARG002
        *,
        samples: int | None = None,
    ) -> None:
        """Add the sums of one batch; see the base class."""
        require_same_shape(reference, candidate)
        terms = self.terms(reference, candidate)
        if terms is not None:
            self._rows.add(terms, samples)

    def result(self) -> float | None:
        """The formula on the sums of everything added."""
        return _total(self, self._rows)

    def resampling(self) -> Resampling | None:
        """The formula on weighted sums."""
        return _resampling(self, self._rows)


class JudgeAccumulator(Accumulator):
    """Base of metrics that judge each model by itself against labels, by sums.

    The last sum counts what was judged: where it is 0, the metric is not defined.
    """

    def __init__(self) -> None:
        self._rows = Rows()
        self._baseline = Rows()

    @abstractmethod
    def check(self, scores: Array, labels: Array | None) -> Array | None:
        """The labels, once they are found to fit the scores' shape; None if the formula does not apply.

        Raises:
            ValueError: If labels are missing or have another shape.
            DataError: If a label cannot be one of this output.
        """

    @abstractmethod
    def terms(self, scores: Array, labels: Array) -> Terms:
        """What is summed for one model, see :meth:`Rows.add`."""

    @abstractmethod
    def value(self, sums: Floats) -> Floats:
        """The formula on sums (..., number of sums), where at least one thing was judged."""

    def update(
        self, reference: Array, candidate: Array, labels: Array | None = None, *, samples: int | None = None
    ) -> None:
        """Add the sums of one batch; see the base class."""
        require_same_shape(reference, candidate)
        checked = self.check(reference, labels)
        if checked is not None:
            self._baseline.add(self.terms(reference, checked), samples)
            self._rows.add(self.terms(candidate, checked), samples)

    def result(self) -> float | None:
        """The quantized model's value."""
        return _total(self, self._rows)

    def baseline(self) -> float | None:
        """The float model's value."""
        return _total(self, self._baseline)

    def resampling(self) -> Resampling | None:
        """The formula on weighted sums of either model."""
        found, other = _resampling(self, self._rows), _resampling(self, self._baseline)
        if found is None or other is None:
            return None
        return Resampling(found.samples, found.value, other.value)


def _total(owner: SumAccumulator | JudgeAccumulator, rows: Rows) -> float | None:
    matrix = rows.matrix()
    if matrix is None:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.sum(matrix, axis=0)
    return float(owner.value(sums)) if sums[-1] else None


def _resampling(owner: SumAccumulator | JudgeAccumulator, rows: Rows) -> Resampling | None:
    matrix = rows.matrix()
    if matrix is None or not rows.separable:
        return None

    def estimate(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            sums = weights @ matrix
            return np.where(sums[..., -1] > 0, owner.value(sums), np.nan)

    return Resampling(len(matrix), estimate)
