"""The memory of the reference: equal arguments are computed once, and only those."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import qtool.reference
from qtool.dtypes import QDTYPES
from qtool.errors import KernelError
from tests.kernels.remembered import Remembered, reference


@pytest.fixture
def counted():
    """A function that says how often it was called, with room for two of its results."""
    calls = []

    def double(x, *, by=2, shape=()):
        calls.append(by)
        return np.asarray(x) * np.float32(by)

    return calls, Remembered(SimpleNamespace(double=double), budget=2 * 12).double


def test_equal_arguments_are_computed_once(counted):
    calls, double = counted
    x = np.float32([1, 2, 3])
    assert double(x, by=3).tolist() == [3, 6, 9]
    assert double(x[::1].copy(), by=3).tolist() == [3, 6, 9]
    assert double(np.float32([3, 2, 1])[::-1], by=3).tolist() == [3, 6, 9]
    assert calls == [3]


def test_other_values_types_shapes_and_options_are_computed(counted):
    calls, double = counted
    x = np.float32([0, 2, 3])
    others = (x, x.view(np.int32), x.reshape(3, 1), -x, x.astype(np.float16), [0.0, 2.0, 3.0], (0.0, 2.0, 3.0))
    assert [double(other).tolist() for other in others] == [(np.asarray(o) * np.float32(2)).tolist() for o in others]
    options = ({"by": 1}, {"by": True}, {"by": 1.0}, {"by": 0.0}, {"by": -0.0}, {"shape": [3]}, {"shape": (3,)})
    for option in options:
        double(x, **option)
    assert len(calls) == len(others) + len(options)


def test_what_was_changed_in_place_is_computed_again_and_results_are_read_only(counted):
    _, double = counted
    x = np.float32([1, 2, 3])
    first = double(x)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    x[0] = 5
    assert double(x).tolist() == [10, 4, 6]
    assert first.tolist() == [2, 4, 6]


def test_what_was_asked_for_the_longest_ago_goes(counted):
    calls, double = counted
    x = np.float32([1, 2, 3])
    for by in (1, 2, 1, 3, 1, 2):
        double(x, by=by)
    assert calls == [1, 2, 3, 2]


def test_a_result_that_is_a_view_of_the_argument_is_copied():
    codes = np.zeros(3, np.uint8)
    first = reference.pack(codes, QDTYPES["uint8"])
    codes[:] = 7
    assert first.tolist() == [0, 0, 0]
    assert reference.pack(np.zeros(3, np.uint8), QDTYPES["uint8"]).tolist() == [0, 0, 0]


def test_errors_are_raised_each_time():
    for _ in range(2):
        with pytest.raises(KernelError, match="Value below zero"):
            reference.to_e8m0(np.float32([-1]))


def test_it_is_the_module():
    x = np.float32([1.4, -3.0])
    assert reference.quantize_linear.__name__ == "quantize_linear"
    np.testing.assert_array_equal(
        reference.quantize_linear(x, np.float32(0.5)), qtool.reference.quantize_linear(x, np.float32(0.5))
    )
