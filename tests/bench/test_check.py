"""The exactness check: that it runs, that it counts, and that it sees a wrong bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qtool import kernels
from qtool.bench import check
from qtool.bench.cases.case import allowed_isas


@pytest.mark.parametrize("kernel", check.DRAWS)
def test_every_kernel_is_exact_on_some_draws(kernel: str):
    per_draw = len(allowed_isas()) * 2
    outcome = check.check(kernel, 3 * per_draw, seed=1001)
    assert outcome == check.Outcome(kernel, 3 * per_draw, 0, None)


def test_a_wrong_value_is_counted_and_the_first_is_named(monkeypatch: pytest.MonkeyPatch):
    right = np.arange(3)
    monkeypatch.setitem(check.DRAWS, "broken", lambda _: (right, lambda threads: right + (threads == 2)))
    before = kernels.isa_info().cap
    outcome = check.check("broken", 1, seed=7)
    isas = allowed_isas()
    assert outcome == check.Outcome("broken", 2 * len(isas), len(isas), "seed 7, scalar, 2 threads")
    assert kernels.isa_info().cap == before


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        (np.float32(0.0), np.float32(-0.0), False),
        (np.float32(np.nan), -np.float32(np.nan), True),
        (np.float32(np.nan), np.float32(1), False),
        (np.array([1], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16), True),
        (np.array([1], ml_dtypes.int4), np.array([2], ml_dtypes.int4), False),
        (np.array([1], np.int8), np.array([1], np.uint8), False),
        (np.zeros(2), np.zeros(3), False),
        ((np.int8(1), np.int8(2)), (np.int8(1), np.int8(3)), False),
        ((np.int8(1),), (np.int8(1), np.int8(3)), False),
    ],
)
def test_equality_is_of_bits(found, expected, equal: bool):
    assert check.same(found, expected) is equal


def test_an_eighth_of_the_draws_has_an_odd_number_of_threads():
    assert [seed for seed in range(17) if 3 in check.thread_counts(seed)] == [0, 8, 16]
