"""Hand-computed values of every metric, and what each says about zeros, NaN, infinities, integers, bool and nothing."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool.errors import ConfigError, DataError
from qtool.evaluate import metrics as metrics_package
from qtool.evaluate.metrics import METRICS, select_metrics
from qtool.evaluate.metrics.base import LabelKind, is_real

NAN, INF = math.nan, math.inf
DISTANCES = ["sqnr", "cosine", "max_abs", "mean_abs"]


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == expected or (math.isnan(value) and math.isnan(expected))


# reference, candidate -> sqnr, cosine, max_abs, mean_abs
TABLE = {
    # noise 1, signal 1 + 4 + 16 = 21; sum(xy) = 1 + 4 + 12 = 17, sum(y^2) = 14
    "plain": (f32(1, 2, 4), f32(1, 2, 3), 10 * math.log10(21), 17 / math.sqrt(21 * 14), 1.0, 1 / 3),
    "equal": (f32(1, -2, 0.1), f32(1, -2, 0.1), INF, 1.0, 0.0, 0.0),
    "opposite": (f32(1, -2), f32(-1, 2), 10 * math.log10(5 / 20), -1.0, 4.0, 3.0),
    "orthogonal": (f32(3, 0), f32(0, 4), 10 * math.log10(9 / 25), 0.0, 4.0, 3.5),
    "both zero": (f32(0, 0), f32(0, -0.0), INF, 1.0, 0.0, 0.0),
    "zero reference": (f32(0, 0), f32(0, 1), -INF, 0.0, 1.0, 0.5),
    "zero candidate": (f32(3, 4), f32(0, 0), 0.0, 0.0, 4.0, 3.5),
    "nan in candidate": (f32(1, 2), f32(1, NAN), NAN, NAN, NAN, NAN),
    "nan in reference": (f32(1, NAN), f32(1, 2), NAN, NAN, NAN, NAN),
    "nan in both": (f32(2, NAN), f32(1, NAN), 10 * math.log10(4), 1.0, 1.0, 0.5),
    "inf in candidate": (f32(1, 2), f32(1, INF), NAN, NAN, INF, INF),
    "inf in reference": (f32(1, -INF), f32(1, 2), NAN, NAN, INF, INF),
    "same inf": (f32(2, -INF), f32(1, -INF), 10 * math.log10(4), 1.0, 1.0, 0.5),
    "opposite inf": (f32(1, INF), f32(1, -INF), NAN, NAN, INF, INF),
    "only same inf": (f32(INF), f32(INF), INF, 1.0, 0.0, 0.0),
    "int8": (np.array([-128, 3], np.int8), np.array([127, 3], np.int8), *[None] * 2, 255.0, 127.5),
    "uint8": (np.array([0, 3], np.uint8), np.array([255, 3], np.uint8), *[None] * 2, 255.0, 127.5),
    "int64 beyond 2^53": (np.array([2**60 + 1]), np.array([2**60]), INF, 1.0, 1.0, 1.0),
    "int64 extremes": (np.array([-(2**63)]), np.array([2**63 - 1]), *[None] * 2, float(2**64), float(2**64)),
    "bool": (np.array([True, False]), np.array([True, True]), 0.0, 1 / math.sqrt(2), 1.0, 0.5),
    "int and float": (np.array([1, 2]), f32(1, 2.5), 10 * math.log10(5 / 0.25), None, 0.5, 0.25),
    "float16": (np.array([1, 2], np.float16), np.array([1, 3], np.float16), 10 * math.log10(5), None, 1.0, 0.5),
    "float16 largest": (np.array([65504], np.float16), np.array([-65504], np.float16), None, -1.0, 131008.0, 131008.0),
    "bfloat16": (f32(1, 2).astype(ml_dtypes.bfloat16), f32(1, 3).astype(ml_dtypes.bfloat16), None, None, 1.0, 0.5),
    "scalar": (np.array(2.0), np.array(1.0), 10 * math.log10(4), 1.0, 1.0, 1.0),
    "scalar inf": (np.array(INF), np.array(INF), INF, 1.0, 0.0, 0.0),
    "scalar uint8": (np.array(3, np.uint8), np.array(5, np.uint8), None, 1.0, 2.0, 2.0),
    "float64 overflow": (np.array([1e200, 1.0]), np.array([1e200, 2.0]), NAN, NAN, 1.0, 0.5),
}


@pytest.mark.parametrize("case", TABLE)
def test_distances(case: str) -> None:
    reference, candidate, *expected = TABLE[case]
    for name, value in zip(DISTANCES, expected, strict=True):
        if value is not None:  # None here: not worth a number by hand
            got = METRICS[name](reference, candidate)
            assert same(got, value) or got == pytest.approx(value, rel=1e-15), (name, got, value)


def labels_for(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Labels that a metric takes for an output of this shape; None if it takes none."""
    metric = METRICS[name]
    if not metric.needs_labels:
        return None
    return np.zeros(shape, np.float32) if LabelKind.TARGETS in metric.kinds else np.zeros(shape[:-1], np.int64)


@pytest.mark.parametrize("name", METRICS)
def test_empty_output_is_not_defined(name: str) -> None:
    metric = METRICS[name]
    for shape in [(0,), (0, 7), (3, 0), (0, 2, 7), (2, 0, 7), (2, 1, 0, 3)]:
        empty = np.zeros(shape, np.float32)
        labels = labels_for(name, shape)
        assert metric(empty, empty, labels) is None
        assert metric.start().result() is None


@pytest.mark.parametrize("name", METRICS)
def test_different_shapes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"Shapes differ: reference \(2, 8\), candidate \(1, 8\)"):
        METRICS[name](np.zeros((2, 8)), np.zeros((1, 8)), np.zeros(2, np.int64))


@pytest.mark.parametrize("name", METRICS)
def test_inputs_are_not_changed(name: str) -> None:
    reference = np.array([[NAN, INF, 1, 2, 3, 4, 5]])
    candidate = np.array([[NAN, INF, 1, 2, 3, 4, 6]])
    reference.setflags(write=False)
    candidate.setflags(write=False)
    labels = labels_for(name, reference.shape)
    METRICS[name](reference, candidate, labels)
    assert labels is None or not labels.any()


# rows, rows -> agreement
AGREEMENT = {
    "two of three": ([[1, 2], [2, 1], [0, 1]], [[0, 9], [1, 2], [3, 4]], 2 / 3),
    "tie goes to the lowest index": ([[1, 1, 0]], [[2, 1, 0]], 1.0),
    "tie in the candidate hides the winner": ([[1, 2, 0]], [[2, 2, 0]], 0.0),
    "nan in candidate at the winner": ([[1, 2, 0]], [[1, NAN, 0]], 0.0),
    "nan in reference": ([[1, NAN, 0]], [[1, 2, 0]], 0.0),
    "nan in both at one place": ([[1, NAN, 0]], [[1, NAN, 9]], 1.0),
    "masked classes": ([[-INF, 1, 0]], [[-INF, 2, 1]], 1.0),
    "one class": ([[1], [2]], [[1], [2]], None),
    "rank 1": ([1, 2, 3], [1, 2, 3], None),
    "rank 0": (1, 1, None),
}


@pytest.mark.parametrize("case", AGREEMENT)
def test_agreement(case: str) -> None:
    reference, candidate, expected = AGREEMENT[case]
    assert METRICS["top1_agreement"](np.array(reference, np.float32), np.array(candidate, np.float32)) == expected


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_agreement_of_other_types(dtype: Any) -> None:
    x = np.array([[0, 1, 0], [1, 0, 0]]).astype(dtype)
    y = np.array([[0, 1, 1], [0, 0, 1]]).astype(dtype)
    assert METRICS["top1_agreement"](x, y) == 0.5


def test_agreement_counts_every_row_of_higher_ranks() -> None:
    x = np.eye(3, dtype=np.float32)[np.array([[0, 1, 2], [2, 1, 0]])]
    y = np.eye(3, dtype=np.float32)[np.array([[0, 1, 2], [0, 1, 2]])]
    assert x.shape == (2, 3, 3)
    assert METRICS["top1_agreement"](x, y) == 4 / 6


def test_top1_of_both_models() -> None:
    reference = f32(9, 0, 0, 0, 9, 0, 0, 0, 9, 9, 0, 0).reshape(4, 3)
    candidate = f32(9, 0, 0, 9, 9, 0, 0, 0, 9, 0, 9, 0).reshape(4, 3)
    accumulator = METRICS["top1"].start()
    accumulator.update(reference, candidate, np.array([0, 1, 2, 0], np.uint8))
    assert accumulator.baseline() == 1.0
    assert accumulator.result() == 0.5  # row 1 ties and the lower index wins, row 3 is another class


@pytest.mark.parametrize(("label", "hit"), [(0, 1.0), (4, 1.0), (5, 0.0), (6, 0.0)])
def test_top5_ranks_ties_by_index(label: int, hit: float) -> None:
    scores = np.ones((1, 7), np.float32)
    assert METRICS["top5"](scores, scores, np.array([label])) == hit


def test_top5_with_five_classes_says_nothing() -> None:
    scores = np.ones((2, 5), np.float32)
    assert METRICS["top5"](scores, scores, np.array([0, 1])) is None
    assert METRICS["top1"](scores, scores, np.array([0, 1])) == 0.5


def test_ignored_labels_are_skipped() -> None:
    scores = np.eye(3, dtype=np.float32)[np.array([[0, 1], [2, 2]])]
    assert METRICS["top1"](scores, scores, np.array([[0, -100], [-100, 0]])) == 0.5
    assert METRICS["top1"](scores, scores, np.full((2, 2), -100)) is None


@pytest.mark.parametrize("name", ["top1", "top5"])
def test_a_row_with_nan_is_a_miss(name: str) -> None:
    scores = np.zeros((2, 9), np.float32)
    scores[:, 3] = 1
    broken = scores.copy()
    broken[0, 8] = NAN
    assert METRICS[name](scores, broken, np.array([3, 3])) == 0.5


@pytest.mark.parametrize("label", [3, -1, 1000])
def test_a_label_that_is_no_class(label: int) -> None:
    scores = np.zeros((2, 3), np.float32)
    with pytest.raises(DataError, match=f"Label {label} is no class of an output with 3 classes"):
        METRICS["top1"](scores, scores, np.array([0, label]))


def test_labels_must_be_integers() -> None:
    with pytest.raises(DataError, match="Labels are float32"):
        METRICS["top1"](np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(1, np.float32))


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_batches_do_not_change_the_value(name: str, data: st.DataObject) -> None:
    rows, classes = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 7))
    elements = st.floats(-8, 8, width=16) | st.sampled_from([NAN, INF, -INF])
    reference = data.draw(hnp.arrays(np.float32, (rows, classes), elements=elements))
    candidate = data.draw(hnp.arrays(np.float32, (rows, classes), elements=elements) | st.just(reference))
    metric = METRICS[name]
    if LabelKind.TARGETS in metric.kinds:
        labels = data.draw(hnp.arrays(np.float32, (rows, classes), elements=st.integers(-3, 3) | st.just(NAN)))
    else:
        labels = data.draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    cut = data.draw(st.integers(0, rows))
    accumulator = metric.start()
    for part in (slice(0, cut), slice(cut, rows)):
        size = len(reference[part])
        accumulator.update(reference[part], candidate[part], labels[part], samples=size)
    whole, parts = metric(reference, candidate, labels), accumulator.result()
    assert same(whole, parts) or parts == pytest.approx(whole, rel=1e-12, abs=1e-12)
    if whole is not None and not math.isnan(whole):
        assert metric.bounds[0] <= whole <= metric.bounds[1]


def test_top1_equals_argmax_and_agreement_with_itself() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (200, 8)).astype(np.float32)  # many ties
    labels = rng.integers(0, 8, 200)
    assert METRICS["top1"](scores, scores, labels) == np.mean(scores.argmax(-1) == labels)
    stable = np.argsort(-scores, axis=-1, kind="stable")[:, :5]
    assert METRICS["top5"](scores, scores, labels) == np.mean((stable == labels[:, None]).any(-1))


def test_registry_holds_every_module() -> None:
    from pkgutil import iter_modules

    modules = {module.name for module in iter_modules(metrics_package.__path__)}
    assert {name for name in modules if not name.startswith("_")} - {"base", "custom"} == set(METRICS)
    assert all(name == metric.name for name, metric in METRICS.items())


def test_selection() -> None:
    unlabelled = ["sqnr", "cosine", "max_abs", "mean_abs", "top1_agreement"]
    assert [m.name for m in select_metrics(None, labels=False)] == unlabelled
    assert [m.name for m in select_metrics(["all"], labels=True, separator=0)] == list(METRICS)
    assert [m.name for m in select_metrics(["all"], labels=False)] == [
        name for name, metric in METRICS.items() if not metric.needs_labels
    ]
    assert [m.name for m in select_metrics(["kl", "default"], labels=False)] == [*unlabelled, "kl"]
    assert [m.name for m in select_metrics(["max_abs", "sqnr", "sqnr"], labels=False)] == ["sqnr", "max_abs"]
    assert select_metrics([], labels=False) == ()
    with pytest.raises(ConfigError, match="Unknown metric 'sqrn'; expected one of: sqnr, cosine"):
        select_metrics(["sqrn"], labels=True)
    with pytest.raises(ConfigError, match="'top1' compares with labels, and there are none") as caught:
        select_metrics(["top1"], labels=False)
    assert caught.value.hint is not None
    assert "--labels" in caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "real"),
    [
        (np.float16, True),
        (np.bool_, True),
        (ml_dtypes.int4, True),
        (ml_dtypes.bfloat16, True),
        (np.complex64, False),
        (np.object_, False),
        (np.str_, False),
        (np.dtype([("a", np.int8)]), False),
    ],
)
def test_is_real(dtype: Any, real: bool) -> None:
    assert is_real(np.dtype(dtype)) is real
