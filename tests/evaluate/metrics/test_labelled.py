"""Values by hand of the metrics against labels, and the same from formulas written out another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qtool.errors import DataError
from qtool.evaluate.metrics import METRICS

NAN, INF = math.nan, math.inf


def one_hot(*answers: int, classes: int = 3) -> np.ndarray[Any, Any]:
    """Scores whose argmax is given."""
    return np.eye(classes, dtype=np.float32)[list(answers)]


def both(name: str, reference: Any, candidate: Any, labels: Any) -> tuple[float | None, float | None]:
    """A metric of the float and of the quantized model."""
    accumulator = METRICS[name].start()
    accumulator.update(np.asarray(reference), np.asarray(candidate), np.asarray(labels), samples=len(reference))
    return accumulator.baseline(), accumulator.result()


LABELS = np.array([0, 0, 1, 2])
# answers 0 1 1 2: class 0 precision 1 recall 1/2, class 1 precision 1/2 recall 1, class 2 both 1
BETTER = one_hot(0, 1, 1, 2)
# answers 1 1 1 1: class 1 precision 1/4 recall 1, the others never
WORSE = one_hot(1, 1, 1, 1)


def test_f1() -> None:
    assert both("f1", BETTER, WORSE, LABELS) == ((2 / 3 + 2 / 3 + 1) / 3, (0 + 2 / 5 + 0) / 3)
    assert both("f1", one_hot(0, 0, 1, 2), BETTER, LABELS)[0] == 1.0


def test_f1_counts_classes_that_occur() -> None:
    # class 2 neither occurs nor is an answer; class 1 is an answer only
    assert both("f1", one_hot(0, 0), one_hot(0, 1), [0, 0]) == (1.0, (2 / 3 + 0) / 2)


def test_mcc_of_two_classes_is_the_classic_formula() -> None:
    rng = np.random.default_rng(3)
    labels, answers = rng.integers(0, 2, (2, 50))
    tp, tn, fp, fn = (np.sum((answers == a) & (labels == b)) for a, b in ((1, 1), (0, 0), (1, 0), (0, 1)))
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert both("mcc", one_hot(*answers, classes=2), one_hot(*(1 - answers), classes=2), labels) == (
        pytest.approx(expected, rel=1e-13),
        pytest.approx(-expected, rel=1e-13),
    )


def test_mcc() -> None:
    # c = 3, s = 4, p = 1 2 1, t = 2 1 1: (12 - 5) / sqrt((16 - 6) (16 - 6)); constant answers: 0
    ours, theirs = both("mcc", BETTER, WORSE, LABELS)
    assert ours == pytest.approx(0.7, rel=1e-15)
    assert theirs == 0.0
    assert both("mcc", one_hot(0, 0, 1, 2), BETTER, LABELS)[0] == pytest.approx(1.0, rel=1e-15)
    assert both("mcc", one_hot(1, 1), one_hot(0, 1), [1, 1]) == (0.0, 0.0)


def test_mcc_is_the_correlation_of_indicators() -> None:
    rng = np.random.default_rng(4)
    labels, answers = rng.integers(0, 4, (2, 60))
    x, t = np.eye(4)[answers], np.eye(4)[labels]
    cov = [np.sum((a - a.mean(0)) * (b - b.mean(0))) for a, b in ((x, t), (x, x), (t, t))]
    assert both("mcc", one_hot(*answers, classes=4), one_hot(*answers, classes=4), labels)[1] == pytest.approx(
        cov[0] / math.sqrt(cov[1] * cov[2]), rel=1e-12
    )


def test_miou() -> None:
    # class 0: 1 / 2, class 1: 1 / 2, class 2: 1; then 0 / 2, 1 / 4, 0 / 1
    assert both("miou", BETTER, WORSE, LABELS) == ((0.5 + 0.5 + 1) / 3, (0 + 0.25 + 0) / 3)


@pytest.mark.parametrize("name", ["f1", "mcc", "miou"])
def test_a_row_with_nan_is_no_answer(name: str) -> None:
    broken = one_hot(0, 1, 1, 2)
    broken[3, 0] = NAN
    without = {"f1": (2 / 3 + 2 / 3 + 0) / 3, "miou": (0.5 + 0.5 + 0) / 3}
    _, value = both(name, BETTER, broken, LABELS)
    if name in without:
        assert value == without[name]
    else:
        # c = 2, p = 1 2 0 and one of no class, t = 2 1 1: (8 - 4) / sqrt((16 - 1 - 4 - 1) (16 - 6))
        assert value == pytest.approx(0.4, rel=1e-15)


@pytest.mark.parametrize("name", ["f1", "mcc", "miou", "perplexity", "top1"])
def test_ignored_and_missing_labels(name: str) -> None:
    assert both(name, BETTER, WORSE, np.full(4, -100)) == (None, None)
    assert both(name, BETTER[:, :1], WORSE[:, :1], np.zeros(4, np.int64)) == (None, None)
    shorter = both(name, BETTER[:3], WORSE[:3], LABELS[:3])
    assert both(name, BETTER, WORSE, [0, 0, 1, -100]) == shorter
    with pytest.raises(DataError, match="Label 3 is no class of an output with 3 classes; expected 0 to 2"):
        both(name, BETTER, WORSE, [0, 0, 1, 3])
    with pytest.raises(DataError, match="class indices are integers"):
        both(name, BETTER, WORSE, LABELS.astype(np.float32))
    with pytest.raises(ValueError, match="Shapes differ"):
        both(name, BETTER, WORSE, LABELS[:3])


def test_perplexity() -> None:
    scores = np.log([[0.5, 0.5], [0.25, 0.75]])
    even = np.zeros((2, 2))
    ours, theirs = both("perplexity", scores, even, [0, 1])
    assert ours == pytest.approx(math.sqrt(1 / (0.5 * 0.75)), rel=1e-14)
    assert theirs == pytest.approx(2.0, rel=1e-15)
    assert both("perplexity", scores + 1000, even, [0, 1])[0] == pytest.approx(ours, rel=1e-12)


def test_perplexity_of_special_scores() -> None:
    fine = [[0.0, 0.0]]
    assert both("perplexity", fine, [[-INF, 0.0]], [0])[1] == INF
    assert both("perplexity", fine, [[-INF, 0.0]], [1])[1] == 1.0
    for row in ([NAN, 0.0], [INF, 0.0], [-INF, -INF]):
        value = both("perplexity", fine, [row], [1])[1]
        assert value is not None
        assert math.isnan(value)
    assert both("perplexity", [[0.0, 0.0], [NAN, 0.0]], [[0.0, 0.0]] * 2, [1, -100])[0] == pytest.approx(2.0)
    assert both("perplexity", [[1, 0]], [[True, False]], [0]) == (
        pytest.approx(1 + 1 / math.e, rel=1e-14),
        pytest.approx(1 + 1 / math.e, rel=1e-14),
    )


TARGETS = np.array([1.0, 2.0, 4.0])
CLOSE, FLAT = np.array([1.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0])


def test_errors_against_targets() -> None:
    assert both("mse", CLOSE, FLAT, TARGETS) == (1 / 3, (1 + 0 + 4) / 3)
    assert both("mae", CLOSE, FLAT, TARGETS) == (1 / 3, 1.0)
    # spread: 1 + 4 + 16 - 49 / 3 = 14 / 3
    assert both("r2", CLOSE, FLAT, TARGETS) == (
        pytest.approx(1 - 1 / (14 / 3), rel=1e-14),
        pytest.approx(1 - 5 / (14 / 3), rel=1e-14),
    )
    # sum x = 8, sum x^2 = 26, sum t = 7, sum xt = 23
    assert both("pearson", CLOSE, FLAT, TARGETS) == (
        pytest.approx((23 - 56 / 3) / math.sqrt((26 - 64 / 3) * (14 / 3)), rel=1e-13),
        0.0,
    )
    assert both("spearman", CLOSE, FLAT, TARGETS) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["mse", "mae", "r2", "pearson", "spearman"])
def test_targets_that_are_missing_or_wrong(name: str) -> None:
    assert both(name, CLOSE, FLAT, [NAN] * 3) == (None, None)
    assert both(name, CLOSE, FLAT, [1.0, NAN, 4.0]) == both(name, CLOSE[[0, 2]], FLAT[[0, 2]], [1.0, 4.0])
    with pytest.raises(DataError, match="regression targets are floats"):
        both(name, CLOSE, FLAT, [1, 2, 4])
    with pytest.raises(DataError, match="infinity"):
        both(name, CLOSE, FLAT, [1.0, INF, 4.0])
    with pytest.raises(ValueError, match="Shapes differ"):
        both(name, CLOSE, FLAT, [1.0])


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_constant_targets_define_nothing(name: str) -> None:
    assert both(name, CLOSE, FLAT, [0.1, 0.1, 0.1]) == (None, None)


# value of an output that is broken in one place
BROKEN = {
    "mse": (NAN, INF),
    "mae": (NAN, INF),
    "r2": (NAN, -INF),
    "pearson": (NAN, NAN),
    "spearman": (NAN, 1.0),  # an infinity is the largest rank
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_outputs(name: str) -> None:
    for special, expected in zip((NAN, INF), BROKEN[name], strict=True):
        value = both(name, CLOSE, [1.0, 3.0, special], TARGETS)[1]
        assert value is not None
        assert value == expected or (math.isnan(value) and math.isnan(expected))
        assert both(name, CLOSE, [1.0, 3.0, special], [1.0, 3.0, NAN])[1] in (0.0, 1.0)


def test_correlations_of_numbers_far_from_zero() -> None:
    rng = np.random.default_rng(5)
    targets = rng.standard_normal(300)
    outputs = targets + rng.standard_normal(300)
    expected = np.corrcoef(outputs, targets)[0, 1]
    assert both("pearson", outputs + 1e7, outputs, targets - 1e7) == (
        pytest.approx(expected, rel=1e-8),
        pytest.approx(expected, rel=1e-8),
    )
    spread = 1 - np.sum((outputs - targets) ** 2) / np.sum((targets - targets.mean()) ** 2)
    assert both("r2", outputs + 1e6, outputs, targets + 1e6)[0] == pytest.approx(spread, rel=1e-6)


def test_spearman_with_ties_is_pearson_of_mean_ranks() -> None:
    outputs, targets = np.array([1, 1, 2, 5, 5, 5]), np.array([3.0, 1, 3, 3, 7, 9])
    ranks = np.array([1.5, 1.5, 3, 5, 5, 5]), np.array([3.0, 1, 3, 3, 5, 6])
    assert both("spearman", outputs, outputs, targets)[1] == pytest.approx(np.corrcoef(*ranks)[0, 1], rel=1e-14)


@pytest.mark.parametrize("name", ["f1", "mcc", "miou", "top1", "top5", "perplexity"])
def test_weighted_samples_are_repeated_ones(name: str) -> None:
    rng = np.random.default_rng(6)
    x, y = rng.normal(0, 2, (2, 12, 7))
    labels = rng.integers(0, 7, 12)
    weights = rng.integers(0, 4, 12)
    accumulator = METRICS[name].start()
    for i in range(0, 12, 5):
        accumulator.update(x[i : i + 5], y[i : i + 5], labels[i : i + 5], samples=len(x[i : i + 5]))
    resampling = accumulator.resampling()
    assert resampling is not None
    assert resampling.baseline is not None
    repeated = np.repeat(np.arange(12), weights)
    expected = both(name, x[repeated], y[repeated], labels[repeated])
    estimates = resampling.baseline(weights[np.newaxis] * 1.0)[0], resampling.value(weights[np.newaxis] * 1.0)[0]
    assert estimates == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["mse", "mae", "r2", "pearson"])
def test_weighted_targets_are_repeated_ones(name: str) -> None:
    rng = np.random.default_rng(7)
    x, y, targets = rng.normal(0, 2, (3, 10, 4))
    weights = rng.integers(0, 4, 10)
    accumulator = METRICS[name].start()
    accumulator.update(x, y, targets, samples=10)
    resampling = accumulator.resampling()
    assert resampling is not None
    repeated = np.repeat(np.arange(10), weights)
    expected = both(name, x[repeated], y[repeated], targets[repeated])[1]
    assert resampling.value(weights[np.newaxis] * 1.0)[0] == pytest.approx(expected, rel=1e-10)


def test_only_single_answers_are_paired() -> None:
    accumulator = METRICS["top1"].start()
    accumulator.update(one_hot(0, 1, 2), one_hot(0, 2, 2), np.array([0, 1, -100]), samples=3)
    resampling = accumulator.resampling()
    assert resampling is not None
    assert resampling.hits is not None
    assert [side.tolist() for side in resampling.hits] == [[True, True], [True, False]]
    accumulator.update(one_hot(0, 1), one_hot(0, 2), np.array([0, 1]), samples=1)  # two answers of one sample
    several = accumulator.resampling()
    assert several is not None
    assert several.hits is None
