"""Values by hand of the metrics between two models: noise shares, divergences, rankings, masks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qtool.evaluate.metrics import METRICS
from qtool.signal import sqnr_db

NAN, INF = math.nan, math.inf
LN2 = math.log(2)


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == expected or (math.isnan(value) and math.isnan(expected))


def f32(*values: object) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


NMSE = {
    "a quarter of the energy is noise": (f32(2, 0), f32(1, 0), 0.25),
    "equal": (f32(1, 2), f32(1, 2), 0.0),
    "both zero": (f32(0), f32(0), 0.0),
    "zero reference": (f32(0), f32(1), INF),
    "zero candidate": (f32(3, 4), f32(0, 0), 1.0),
    "nan": (f32(1, 2), f32(1, NAN), NAN),
    "inf": (f32(1, INF), f32(1, 2), NAN),
    "same inf": (f32(2, INF), f32(1, INF), 0.25),
    "bool": (np.array([True, True]), np.array([True, False]), 0.5),
    "int64": (np.array([4, 3]), np.array([4, -2]), 1.0),
    "overflow": (np.array([1e200]), np.array([1e200 * 2]), NAN),
}


@pytest.mark.parametrize("case", NMSE)
def test_nmse(case: str) -> None:
    reference, candidate, expected = NMSE[case]
    assert same(METRICS["nmse"](reference, candidate), expected)


def percentile(samples: list[tuple[Any, Any]]) -> float | None:
    accumulator = METRICS["sqnr_p5"].start()
    for reference, candidate in samples:
        accumulator.update(f32(reference), f32(candidate), samples=1)
    return accumulator.result()


def test_sqnr_p5_is_the_worst_of_few_and_the_second_worst_of_21() -> None:
    # signal 1, noise 0.1^k: 20 dB for each k
    pairs = [([1.0], [1.0 + 10.0**-k]) for k in (1, 2, 3)]
    assert percentile(pairs) == pytest.approx(20, abs=1e-4)
    assert percentile([pairs[0], *[pairs[1]] * 19]) == pytest.approx(20, abs=1e-4)  # rank ceil(20 / 20) = 1
    assert percentile([pairs[0], *[pairs[1]] * 20]) == pytest.approx(40, abs=1e-3)  # rank ceil(21 / 20) = 2


def test_sqnr_p5_of_degenerate_samples() -> None:
    good = ([1.0], [2.0])  # 0 dB
    assert percentile([([1.0], [1.0])]) == INF
    assert percentile([([0.0], [0.0]), good]) == 0.0
    assert percentile([([0.0], [1.0]), good]) == -INF
    assert same(percentile([([NAN], [1.0]), good]), NAN)
    assert percentile([([NAN], [NAN])]) == INF
    assert percentile([([], []), good]) == 0.0
    assert percentile([([], [])]) is None


def test_sqnr_p5_needs_samples_that_can_be_told_apart() -> None:
    accumulator = METRICS["sqnr_p5"].start()
    accumulator.update(np.ones((2, 3)), np.zeros((2, 3)), samples=None)
    assert accumulator.result() is None
    assert accumulator.resampling() is None


def test_sqnr_of_sums_is_that_of_the_arrays() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, 5)).astype(np.float32)
    y = x + rng.standard_normal((9, 5)).astype(np.float32) / 8
    assert METRICS["sqnr"](x, y) == pytest.approx(sqnr_db(x, y), rel=1e-14)
    assert METRICS["nmse"](x, y) == pytest.approx(10 ** (-sqnr_db(x, y) / 10), rel=1e-13)


# p = (1/2, 1/2) against q = (1/4, 3/4): scores are logarithms
HALVES, QUARTERS = [[0.0, 0.0]], [[math.log(0.25), math.log(0.75)]]
KL_HALVES = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
JS_HALVES = 0.5 * (0.5 * math.log(0.5 / 0.375) + 0.5 * math.log(0.5 / 0.625)) + 0.5 * (
    0.25 * math.log(0.25 / 0.375) + 0.75 * math.log(0.75 / 0.625)
)

# reference, candidate -> kl, js
DIVERGENCES = {
    "halves and quarters": (HALVES, QUARTERS, KL_HALVES, JS_HALVES),
    "a constant moves nothing": ([[1.0, 2.0]], [[101.0, 102.0]], 0.0, 0.0),
    "the mean over rows": ([[0.0, 0.0], [5.0, 5.0]], [*QUARTERS, [5.0, 5.0]], KL_HALVES / 2, JS_HALVES / 2),
    "apart": ([[0.0, -INF]], [[-INF, 0.0]], INF, LN2),
    "possible against impossible": ([[0.0, 0.0]], [[0.0, -INF]], INF, None),
    "impossible against possible": ([[0.0, -INF]], [[0.0, 0.0]], LN2, None),
    "both impossible": ([[0.0, 0.0, -INF]], [[*QUARTERS[0], -INF]], KL_HALVES, JS_HALVES),
    "large": ([[1e4, 0.0]], [[1e4, 0.0]], 0.0, 0.0),
    "nan": ([[0.0, NAN]], [[0.0, 1.0]], NAN, NAN),
    "the same nan": ([[0.0, NAN]], [[0.0, NAN]], 0.0, 0.0),
    "nan in both and another score": ([[0.0, NAN]], [[1.0, NAN]], NAN, NAN),
    "inf": ([[0.0, INF]], [[0.0, 1.0]], NAN, NAN),
    "the same inf": ([[0.0, INF]], [[0.0, INF]], 0.0, 0.0),
    "nothing possible": ([[-INF, -INF]], [[0.0, 0.0]], NAN, NAN),
    "one class": ([[1.0]], [[2.0]], None, None),
    "rank 1": ([1.0, 2.0], [2.0, 1.0], None, None),
}


@pytest.mark.parametrize("case", DIVERGENCES)
def test_divergences(case: str) -> None:
    reference, candidate, *expected = DIVERGENCES[case]
    undefined = case in ("one class", "rank 1")
    for name, value in zip(("kl", "js"), expected, strict=True):
        got = METRICS[name](np.array(reference), np.array(candidate))
        if value is None:
            assert (got is None) == undefined
        else:
            assert got is not None
            assert same(got, value) or got == pytest.approx(value, rel=1e-12, abs=1e-15)


def test_divergences_are_those_of_the_probabilities() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 3, (2, 40, 9))
    p, q = (np.exp(a) / np.exp(a).sum(-1, keepdims=True) for a in (x, y))
    m = (p + q) / 2
    assert METRICS["kl"](x, y) == pytest.approx(np.mean(np.sum(p * np.log(p / q), -1)), rel=1e-12)
    js = np.mean(np.sum(p * np.log(p / m) + q * np.log(q / m), -1)) / 2
    assert METRICS["js"](x, y) == METRICS["js"](y, x) == pytest.approx(js, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float16, ml_dtypes.bfloat16])
def test_divergence_of_other_types(dtype: Any) -> None:
    # softmax(1, 0) = (e, 1) / (e + 1) against (1, e) / (e + 1): KL = (e - 1) / (e + 1)
    x, y = np.array([[1, 0]]).astype(dtype), np.array([[0, 1]]).astype(dtype)
    assert METRICS["kl"](x, y) == pytest.approx((math.e - 1) / (math.e + 1), rel=1e-14)


OVERLAPS = {
    "two of five": ([[9, 8, 7, 6, 5, 0, 0, 0]], [[9, 8, 0, 0, 0, 7, 7, 7]], 0.4),
    "another order": ([[5, 4, 3, 2, 1, 0]], [[1, 2, 3, 4, 5, 0]], 1.0),
    "ties go to the lowest index": ([[1, 1, 1, 1, 1, 1, 1]], [[5, 4, 3, 2, 1, 0, 0]], 1.0),
    "tie that hides the last": ([[5, 4, 3, 2, 0, 0, 1]], [[5, 4, 3, 2, 1, 1, 1]], 0.8),
    "mean over rows": ([[5, 4, 3, 2, 1, 0]] * 2, [[5, 4, 3, 2, 1, 0], [0, 4, 3, 2, 1, 5]], 0.9),
    "nan on one side": ([[5, 4, 3, 2, 1, 0]], [[5, 4, 3, 2, NAN, 0]], 0.0),
    "nan on both": ([[NAN, 4, 3, 2, 1, 0]], [[NAN, 1, 2, 3, 4, 0]], 1.0),
    "masked": ([[5, -INF, 4, 3, 2, 1]], [[5, -INF, 4, 3, 2, 1]], 1.0),
    "infinity first": ([[INF, 4, 3, 2, 1, 0]], [[0, 4, 3, 2, 1, INF]], 0.8),
    "five classes": ([[5, 4, 3, 2, 1]], [[5, 4, 3, 2, 1]], None),
    "rank 1": ([5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0], None),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_top5_agreement(case: str) -> None:
    reference, candidate, expected = OVERLAPS[case]
    assert METRICS["top5_agreement"](np.array(reference, float), np.array(candidate, float)) == expected


def test_top5_agreement_of_bytes() -> None:
    x = np.array([[0, 255, 3, 3, 3, 3, 200]], np.uint8)
    y = np.array([[255, 0, 3, 3, 3, 3, 200]], np.uint8)
    # 1, 6, 2, 3, 4 against 0, 6, 2, 3, 4
    assert METRICS["top5_agreement"](x, y) == 0.8


MARGINS = {
    "the largest of two flips": ([[3, 1], [9, 8.5], [2, 0]], [[0, 1], [1, 2], [5, 1]], 2.0),
    "no flip": ([[3, 1]], [[9, 1]], 0.0),
    "a tie is decided by the index": ([[1, 1]], [[1, 2]], 0.0),
    "infinite lead": ([[INF, 1]], [[0, 1]], INF),
    "masked winner": ([[1, -INF]], [[0, 1]], INF),
    "nan on one side": ([[3, 1], [1, 0]], [[3, NAN], [0, 1]], NAN),
    "nan in both": ([[3, NAN]], [[1, NAN]], 0.0),
    "one class": ([[1]], [[1]], None),
    "rank 1": ([1, 2], [2, 1], None),
}


@pytest.mark.parametrize("case", MARGINS)
def test_flip_margin(case: str) -> None:
    reference, candidate, expected = MARGINS[case]
    assert same(METRICS["flip_margin"](np.array(reference, float), np.array(candidate, float)), expected)


def test_flip_margin_of_integers_does_not_wrap() -> None:
    assert METRICS["flip_margin"](np.array([[127, -128]], np.int8), np.array([[0, 1]], np.int8)) == 255.0


def maps(*values: float) -> np.ndarray[Any, Any]:
    """One sample, one channel, one row."""
    return f32(*values).reshape(1, 1, 1, -1)


MASKS = {
    "one of three": (maps(0.9, 0.8, 0.1, 0.2), maps(0.9, 0.3, 0.6, 0.2), 1 / 3),
    "the level is outside": (maps(0.5, 0.6), maps(0.4, 0.6), 1.0),
    "both empty": (maps(0, 0), maps(0.1, 0.2), 1.0),
    "one empty": (maps(0, 0), maps(0.1, 0.9), 0.0),
    "nan is outside": (maps(0.9, 0.9), maps(0.9, NAN), 0.5),
    "nan in both": (maps(0.9, NAN), maps(0.9, NAN), 1.0),
    "infinite": (maps(INF, -INF), maps(1, 0), 1.0),
    "bool": (np.array([[True, True, False]]), np.array([[True, False, False]]), 0.5),
    "bool of rank 1": (np.array([True]), np.array([True]), None),
    "rank 3": (f32([[1, 0]]), f32([[1, 0]]), None),
    "integers": (maps(3, 0).astype(np.int8), maps(1, 1).astype(np.int8), 0.5),
}


@pytest.mark.parametrize("case", MASKS)
def test_mask_iou(case: str) -> None:
    reference, candidate, expected = MASKS[case]
    assert METRICS["mask_iou"](reference, candidate) == expected


def test_mask_iou_of_classes_is_their_mean() -> None:
    # classes at four positions: 0 0 1 1 against 0 1 1 1; class 2 occurs nowhere
    scores = np.eye(3, dtype=np.float32)
    x, y = (scores[list(answers)].T.reshape(1, 3, 2, 2) for answers in ((0, 0, 1, 1), (0, 1, 1, 1)))
    assert METRICS["mask_iou"](x, y) == (1 / 2 + 2 / 3) / 2
    broken = y.copy()
    broken[0, 0, 0, 0] = NAN  # the first position has no answer: class 0 is never right
    assert METRICS["mask_iou"](x, broken) == (0 + 2 / 3) / 2
    assert METRICS["mask_iou"](broken, broken) == 1.0


def test_mask_iou_counts_all_samples_together() -> None:
    accumulator = METRICS["mask_iou"].start()
    accumulator.update(maps(1, 1, 1, 1), maps(1, 1, 1, 1), samples=1)
    accumulator.update(maps(1, 0, 0, 0), maps(0, 0, 0, 0), samples=1)
    assert accumulator.result() == 4 / 5
    resampling = accumulator.resampling()
    assert resampling is not None
    assert resampling.value(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])).tolist() == [4 / 5, 1.0, 0.0]
