"""Edit distances against the textbook's table, and how scores and labels become sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.errors import DataError
from qtool.evaluate.metrics._edits import ErrorRateAccumulator, collapsed, distance, words


def table(first: Sequence[int], second: Sequence[int]) -> int:
    """Levenshtein distance by the table of R. Wagner and M. Fischer."""
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("", "", 0),
        ("flaw", "lawn", 2),
        ("ab" * 50, "ba" * 50, 2),
    ],
)
def test_distances(first: str, second: str, expected: int) -> None:
    assert distance(first, second) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=90), st.lists(st.integers(0, 3), max_size=90))
def test_distance_is_the_tables(first: list[int], second: list[int]) -> None:
    assert distance(first, second) == table(first, second)


def test_a_path_is_collapsed() -> None:
    assert collapsed(np.array([0, 1, 1, 0, 1, 2, 2, 0, 0]), 0) == [1, 1, 2]
    assert collapsed(np.array([0, 0]), 0) == []
    assert collapsed(np.array([], np.int64), 0) == []


def test_words() -> None:
    assert list(words([9, 1, 2, 9, 9, 3, 9], 9)) == [(1, 2), (3,)]
    assert list(words([], 9)) == []


def scores(*rows: Sequence[int], classes: int = 5) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.eye(classes, dtype=np.float32)[np.array(rows)]


def test_rates_position_by_position() -> None:
    accumulator = ErrorRateAccumulator()
    labels = np.array([[1, 2, 3], [4, -100, -100]])
    accumulator.update(scores([1, 2, 3], [4, 1, 1]), scores([1, 3, 3], [0, 0, 0]), labels, samples=2)
    assert (accumulator.baseline(), accumulator.result()) == (0.0, 2 / 4)
    # a shift by one is one deletion and one insertion, not three wrong places
    accumulator.update(scores([2, 3, 4]), scores([2, 3, 4]), np.array([[1, 2, 3]]), samples=1)
    assert accumulator.baseline() == 2 / 7
    resampling = accumulator.resampling()
    assert resampling is not None
    assert resampling.value(np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 0.0]])).tolist() == [4 / 7, 1.0]


def test_rates_of_paths() -> None:
    accumulator = ErrorRateAccumulator(blank=0)
    path = scores([0, 1, 1, 0, 2, 0], [3, 3, 3, 0, 0, 0])
    accumulator.update(path, scores([0, 1, 0, 1, 2, 0], [0] * 6), np.array([[1, 2], [3, -100]]), samples=2)
    assert (accumulator.baseline(), accumulator.result()) == (0.0, 2 / 3)  # one too many, one missing
    with pytest.raises(DataError, match="Label 7 is no class of an output with 5 classes"):
        accumulator.update(path, path, np.array([[7], [1]]), samples=2)
    with pytest.raises(DataError, match="The blank is 5; expected a class from 0 to 4"):
        ErrorRateAccumulator(blank=5).update(path, path, np.array([[1], [1]]), samples=2)


def test_word_errors() -> None:
    accumulator = ErrorRateAccumulator(separator=4)
    right = [1, 2, 4, 3, 4, 1]  # three words
    accumulator.update(scores(right), scores([1, 3, 4, 3, 3, 1]), np.array([right]), samples=1)
    # (1, 3) (3, 3, 1) against (1, 2) (3) (1): two replaced, one missing
    assert (accumulator.baseline(), accumulator.result()) == (0.0, 1.0)


def test_nan_is_an_answer_of_its_own() -> None:
    broken = scores([1, 2])
    broken[0, 1, 4] = np.nan
    accumulator = ErrorRateAccumulator()
    accumulator.update(scores([1, 2]), broken, np.array([[1, 2]]), samples=1)
    assert accumulator.result() == 0.5


def test_nothing_to_compare() -> None:
    accumulator = ErrorRateAccumulator()
    accumulator.update(scores([1, 2]), scores([1, 2]), np.full((1, 2), -100), samples=1)
    assert (accumulator.baseline(), accumulator.result()) == (None, None)
    flat = ErrorRateAccumulator()
    flat.update(scores([1, 2])[0], scores([1, 2])[0], np.array([1, 2]), samples=2)
    assert flat.result() is None
