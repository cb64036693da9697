"""Case 26: values outside the range that a quantized model was calibrated for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from qtool.evaluate.checks import ranges
from qtool.evaluate.checks.span import Range
from qtool.evaluate.checks.subject import Subject
from qtool.runtime import Session
from tests.evaluate.checks.subjects import f32, subject
from tests.models import build

MODEL = """
g (float[N,4] x) => (float[N,4] y) {
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  h = Mul(xd, factor)
  hq = QuantizeLinear(h, sh, zh)
  y = DequantizeLinear(hq, sh, zh)
}"""
FLOAT = build("g (float[N,4] x) => (float[N,4] y) { y = Mul(x, f) }", {"f": f32(3)})


def model(**arrays: Any) -> onnx.ModelProto:
    """Calibrated on [0, 1], then on [-1, 3] inside, where values are 3 times as large."""
    every = {
        "sx": np.float32(1 / 255),
        "zx": np.uint8(0),
        "factor": np.float32(3),
        "sh": np.float32(4 / 255),
        "zh": np.uint8(64),
    }
    return build(MODEL, {**every, **arrays})


def test_case_26_an_input_that_was_not_scaled_is_named_with_how_far() -> None:
    x = np.array([[0, 64, 128, 255], [0, 0.5, 1, 1]], np.float32)
    result = ranges.check(subject(FLOAT, model(), x))
    assert (result.state, result.samples) == ("flagged", 2)
    assert result.summary == "1 of 1 quantized input left the calibrated range, 'x' the furthest."
    (finding,) = result.findings
    assert finding.subject == "x"
    assert finding.text == (
        "values from 0 to 255, calibrated for 0 to 1: 37.50% outside, by up to 254.00 times the range"
    )
    assert finding.suggestion == "--method 'x=minmax' and calibration samples like these"
    assert finding.values["share"] == 0.375
    assert finding.values["excess"] == pytest.approx(254)


@pytest.mark.parametrize("most", [1.0, 1.0 + 0.4 / 255])
def test_values_that_round_to_the_last_code_are_inside(most: float) -> None:
    result = ranges.check(subject(FLOAT, model(), f32(0, 0.2, 0.7, most)[None]))
    assert (result.state, result.findings) == ("ok", ())
    assert result.summary == "1 quantized input stayed within the calibrated range."


def test_inner_tensors_are_looked_at_with_layers_only() -> None:
    x = np.full((1, 4), 1, np.float32)  # 3 inside, where [-1.004, 2.996] is what there is
    assert ranges.check(subject(FLOAT, model(sh=np.float32(1 / 255)), x)).state == "ok"
    result = ranges.check(subject(FLOAT, model(sh=np.float32(1 / 255)), x, layers=True))
    assert result.state == "flagged"
    assert result.values == {"inputs": 1, "tensors": 1, "outside": 1}
    (finding,) = result.findings
    assert finding.subject == "h"
    assert finding.values["most"] == 3.0
    assert finding.values["high"] == pytest.approx(191 / 255)
    assert finding.values["excess"] == pytest.approx(3 - 191 / 255)


def test_a_few_outliers_that_a_range_method_cut_off_inside_are_no_finding() -> None:
    x = np.zeros((2000, 4), np.float32)
    x[0, 0] = 1.0  # 3 inside: 1 of 32 values of the first 8 samples is above 2.99
    inner = model(sh=np.float32(4 / 255), factor=np.float32(3.5))
    assert ranges.check(subject(FLOAT, inner, x, layers=True)).state == "flagged"  # 1 of 32
    span = Range(0.0, 1.0, 1 / 255)
    span.add(np.append(np.zeros(1999, np.float32), np.float32(1.5)))
    assert (span.outside, span.share, span.excess) == (1, 1 / 2000, 0.5)
    assert span.share <= ranges._SHARE
    assert span.excess <= ranges._FAR - 1


def test_nan_is_not_a_value_and_infinity_is_far() -> None:
    span = Range(0.0, 1.0, 1 / 255)
    span.add(f32(np.nan, 0.5))
    assert (span.elements, span.outside, span.excess) == (1, 0, 0.0)
    span.add(f32(np.nan))
    span.add(f32(np.inf))
    assert (span.elements, span.outside, span.excess) == (2, 1, np.inf)


def test_ranges_that_somebody_watched_are_those_that_the_check_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).uniform(-1, 2, (100, 4)).astype(np.float32)
    alone, watched = subject(FLOAT, model(), x), subject(FLOAT, model(), x)
    watch = ranges.watch_inputs(watched)
    for feeds in watched.samples.batches(7):
        watch(feeds)
    expected = ranges.check(alone)
    assert expected.state == "flagged"
    monkeypatch.setattr(type(watched.samples), "batches", None)  # nobody reads the samples once more
    assert ranges.check(watched) == expected


def test_evaluate_looks_at_the_inputs_of_all_samples() -> None:
    x = np.concatenate([np.full((19, 4), 0.5, np.float32), np.full((1, 4), 9, np.float32)])
    report = qtool.evaluate(FLOAT, model(), {"x": x}, checks="ranges", latency=False, batch=3)
    (result,) = report.checks
    assert (result.state, result.samples) == ("flagged", 20)
    assert result.findings[0].values["share"] == 1 / 20
    assert result == ranges.check(subject(FLOAT, model(), x))


def test_nothing_came_and_nothing_is_outside() -> None:
    span = Range(0.0, 1.0, 1 / 255)
    assert (span.share, span.excess) == (0.0, 0.0)


def test_without_a_fixed_range_there_is_nothing_to_leave() -> None:
    result = ranges.check(subject(FLOAT, FLOAT, np.zeros((1, 4), np.float32)))
    assert (result.state, result.summary) == ("skipped", "No input of the model is quantized with a fixed range.")


def test_an_input_that_is_moved_before_it_is_quantized_is_the_input() -> None:
    text = MODEL.replace("xq = QuantizeLinear(x,", "t = Transpose(x)\n xq = QuantizeLinear(t,").replace(
        "float[N,4] y", "float[M,N] y"
    )
    arrays = {
        "sx": np.float32(1 / 127),
        "zx": np.int8(0),
        "factor": np.float32(3),
        "sh": np.float32(1),
        "zh": np.uint8(0),
    }
    moved = build(text, arrays)
    plain = build("g (float[N,4] x) => (float[4,N] y) { y = Transpose(x) }")
    result = ranges.check(subject(plain, moved, f32(0, 0, -2, 1)[None]))
    assert [f.subject for f in result.findings] == ["x"]
    assert result.findings[0].values["low"] == pytest.approx(-128 / 127)


def on_codes() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A product on codes whose result is calibrated on [0, 1], and its float model."""
    reference = build(
        "g (float[N,2] x) => (float[N,2] y) { h = MatMul(x, w) y = Relu(h) }", {"w": np.eye(2, dtype="f")}
    )
    text = """
    g (float[N,2] x) => (float[N,2] y) {
      xq = QuantizeLinear(x, sx, z)
      h_quantized = QLinearMatMul(xq, sx, z, w, sw, zw, sh, z)
      h = DequantizeLinear(h_quantized, sh, z)
      y = Relu(h)
    }"""
    arrays: dict[str, Any] = {
        "sx": np.float32(2 / 255),
        "z": np.uint8(0),
        "w": np.eye(2, dtype=np.int8),
        "sw": np.float32(1),
        "zw": np.int8(0),
        "sh": np.float32(1 / 255),
    }
    return reference, build(text, arrays)


def test_a_result_of_an_operator_on_codes_is_looked_at_in_the_float_model() -> None:
    reference, model = on_codes()
    x = f32(0.5, 2)[None]
    assert ranges.check(subject(reference, model, x)).state == "ok"
    result = ranges.check(subject(reference, model, x, layers=True))
    (finding,) = result.findings
    assert (finding.subject, finding.values["most"], finding.values["share"]) == ("h", 2.0, 0.5)
    assert finding.values["excess"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "runs", "share", "most"),
    [(f32(0.5, 2), 0, 0.5, 2.0), (f32(np.inf, 2), 1, 1.0, np.inf)],  # statistics keep no infinities
)
def test_what_the_layers_saw_is_not_run_again(
    values: np.ndarray, runs: int, share: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed: list[bool] = []
    original = Subject.exposed

    def counted(self: Subject, names: tuple[str, ...], *, quantized: bool) -> Session:
        exposed.append(quantized)
        return original(self, names, quantized=quantized)

    monkeypatch.setattr(Subject, "exposed", counted)
    reference, model = on_codes()
    report = qtool.evaluate(reference, model, {"x": values[None]}, layers=True, latency=False, checks="ranges")
    assert exposed.count(False) == runs
    (result,) = report.checks
    assert result.values["tensors"] == 1
    (finding,) = (f for f in result.findings if f.subject == "h")
    assert (finding.values["share"], finding.values["most"]) == (share, most)
