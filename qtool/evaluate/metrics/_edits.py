"""Edit distance of sequences of ids, and how scores become one: the shared part of ``cer`` and ``wer``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from qtool.errors import DataError
from qtool.evaluate.metrics._classes import IGNORED_LABEL, checked_labels, decisions
from qtool.evaluate.metrics._sums import JudgeAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats


class ErrorRateAccumulator(JudgeAccumulator):
    """Edits and length of the labels, for each model.

    Args:
        blank: Class that stands for "nothing" in CTC scores: repeats are merged, then it is dropped, and labels may be
            shorter than the scores. None: one answer per position, where there is a label.
        separator: Id between words, so that words are compared; None: ids are compared.
    """

    def __init__(self, blank: int | None = None, separator: int | None = None) -> None:
        super().__init__()
        self._blank, self._separator = blank, separator

    def check(self, scores: Array, labels: Array | None) -> Array | None:
        """Ids, -100 where there is none.

        Raises:
            ValueError: If labels are missing or do not belong to these scores.
            DataError: If they are no integers, or no class.
        """
        if self._blank is None:
            index, keep = checked_labels(scores, labels)
            return np.where(keep, index, IGNORED_LABEL) if scores.ndim >= 3 else None
        if labels is None or scores.ndim != 3 or labels.ndim != 2 or len(labels) != len(scores):
            found = None if labels is None else labels.shape
            raise ValueError(f"Shapes differ: scores {scores.shape}, labels {found}.")
        if not 0 <= self._blank < scores.shape[-1]:
            raise DataError(f"The blank is {self._blank}; expected a class from 0 to {scores.shape[-1] - 1}.")
        one_hot_shape = np.broadcast_to(np.zeros((), np.bool_), (*labels.shape, scores.shape[-1]))
        index, keep = checked_labels(one_hot_shape, labels)
        return np.where(keep, index, IGNORED_LABEL)

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Edits and number of labels of each sequence, (sequences,) in order of the batch."""
        answers = decisions(scores)
        if self._blank is None:
            flat = math.prod(labels.shape[:-1]), labels.shape[-1]
            answers, labels = answers.reshape(flat), labels.reshape(flat)
        edits, lengths = [], []
        for answer, label in zip(answers, labels, strict=True):
            keep = label != IGNORED_LABEL
            found = collapsed(answer, self._blank) if self._blank is not None else answer[keep].tolist()
            right = self._units(label[keep].tolist())
            edits.append(distance(right, self._units(found)))
            lengths.append(len(right))
        return np.array(edits, np.float64), np.array(lengths, np.float64)

    def _units(self, ids: Sequence[int]) -> Sequence[Hashable]:
        return ids if self._separator is None else list(words(ids, self._separator))

    def value(self, sums: Floats) -> Floats:
        """Edits per label."""
        rate: Floats = sums[..., 0] / sums[..., 1]
        return rate


def collapsed(answers: Array, blank: int) -> list[int]:
    """CTC's reading of a path: of equal neighbours one, then without blanks."""
    changes = np.ones(len(answers), np.bool_)
    changes[1:] = answers[1:] != answers[:-1]
    kept: list[int] = answers[changes & (answers != blank)].tolist()
    return kept


def words(ids: Sequence[int], separator: int) -> Iterator[tuple[int, ...]]:
    """Non-empty runs between separators."""
    word: list[int] = []
    for one in ids:
        if one != separator:
            word.append(one)
        elif word:
            yield tuple(word)
            word = []
    if word:
        yield tuple(word)


def distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Levenshtein distance: fewest insertions, deletions and substitutions that make one of the other.

    Bit-parallel after G. Myers, Journal of the ACM 46, 1999, in H. Hyyro's form: a column of the table is one integer.
    """
    if not first:
        return len(second)
    places: dict[Hashable, int] = {}
    for i, one in enumerate(first):
        places[one] = places.get(one, 0) | 1 << i
    mask, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    up, down, score = mask, 0, len(first)  # vertical differences of +1 and of -1
    for one in second:
        match = places.get(one, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right, left = down | ~(diagonal | up), up & diagonal  # horizontal differences of +1 and of -1
        score += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & mask, (left << 1) & mask
        up, down = (left | ~(diagonal | right)) & mask, right & diagonal & mask
    return score
