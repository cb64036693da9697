from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from qtool.calibrate.samples import open_samples
from qtool.errors import ConfigError, DataError, ModelError
from qtool.evaluate.compare import automatic_batch_size, compare, latency_batch_size
from qtool.evaluate.gates import check, judged, parse_gates
from qtool.evaluate.intervals import Z, detectable_share, score_interval
from qtool.evaluate.metrics import METRICS
from qtool.evaluate.report import Report, Source, Statistic
from qtool.runtime import create_session


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> m {text}')


def evaluate(
    float_text: str,
    quant_text: str,
    data: Mapping[str, np.ndarray[Any, Any]],
    labels: str | None = None,
    **options: Any,
) -> Report:
    reference, candidate = model(float_text), model(quant_text)
    before = reference.SerializeToString(), candidate.SerializeToString()
    keys: Sequence[str] = [] if labels is None else [labels]
    samples = open_samples(data, create_session(reference).inputs, labels=keys)
    report = compare(reference, candidate, samples, labels=labels, **{"latency": False, **options})
    assert (reference.SerializeToString(), candidate.SerializeToString()) == before
    json.dumps(report.to_dict(), allow_nan=False)
    return report


IDENTITY = "(float[N, 3] x) => (float[N, 3] y) { y = Identity(x) }"
ROUND = "(float[N, 3] x) => (float[N, 3] y) { y = Round(x) }"


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32).reshape(-1, 3)


def test_a_model_against_itself() -> None:
    report = evaluate(IDENTITY, IDENTITY, {"x": rows(1, 2, 3, 4, 5, 6)})
    (output,) = report.outputs
    assert (output.name, output.dtype, output.shape, output.elements) == ("y", "float32", ("N", 3), 6)
    assert output.values == {"sqnr": math.inf, "cosine": 1.0, "max_abs": 0.0, "mean_abs": 0.0, "top1_agreement": 1.0}
    assert report.samples == 2
    assert [source.path for source in report.sources] == [None]
    assert report.sizes.ratio == 1.0
    assert (report.latency, report.failures, report.float_model, report.quantized_model) == (None, (), None, None)
    assert check(report, parse_gates(["sqnr=inf"], ["max_abs=0"])) == ()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100, None])
def test_batches_cover_every_sample_once(batch_size: int | None) -> None:
    x = np.arange(21, dtype=np.float32).reshape(7, 3) / 4
    labels = np.array([2, 2, 0, 2, 2, 1, 2])
    calls: list[tuple[int, int]] = []
    report = evaluate(
        IDENTITY,
        ROUND,
        {"x": x, "labels": labels},
        "labels",
        batch_size=batch_size,
        progress=lambda *done: calls.append(done),
    )
    rounded = np.round(x)
    values = report.outputs[0].values
    assert report.samples == 7
    assert values["max_abs"] == 0.5
    assert values["mean_abs"] == pytest.approx(np.abs(x - rounded).mean(), rel=1e-14)
    assert values["sqnr"] == pytest.approx(10 * np.log10((x**2).sum() / ((x - rounded) ** 2).sum()), rel=1e-7)
    assert values["top1_agreement"] == np.mean(x.argmax(-1) == rounded.argmax(-1))
    assert values["top1"] == np.mean(rounded.argmax(-1) == labels)
    assert values["top5"] is None
    assert report.outputs[0].float_values == {"top1": 5 / 7, "top5": None}
    size = min(batch_size or 7, 7)
    assert calls == [(min(end, 7), 7) for end in range(size, 7 + size, size)]


def test_outputs_pair_by_name_and_labels_go_where_they_fit() -> None:
    report = evaluate(
        "(float[N, 3] x) => (float[N] s, float[N, 3] y) { y = Identity(x) s = ReduceMax<axes=[1], keepdims=0>(x) }",
        "(float[N, 3] x) => (float[N, 3] y, float[N] s) { y = Neg(x) s = ReduceMax<axes=[1], keepdims=0>(x) }",
        {"x": rows(1, 2, 3, 1, 2, 3), "truth": np.array([2, 0])},
        "truth",
    )
    maximum, scores = report.outputs
    assert (maximum.name, scores.name) == ("s", "y")
    assert maximum.values["sqnr"] == math.inf
    assert maximum.values["top1_agreement"] is None
    assert maximum.values["top1"] is None
    assert scores.values["cosine"] == -1.0
    assert scores.values["top1"] == 0.5
    assert scores.float_values["top1"] == 0.5
    assert check(report, parse_gates(["top1=0.5"])) == ()
    assert check(report, parse_gates(["top1_agreement=0.5"])) == ("top1_agreement of output 'y' is 0, below 0.5.",)


def test_labels_per_token_with_ignored_ones() -> None:
    text = "(float[N, T, 3] x) => (float[N, T, 3] y) { y = Identity(x) }"
    x = np.eye(3, dtype=np.float32)[np.array([[0, 1], [2, 0]])]
    report = evaluate(text, text, {"x": x, "labels": np.array([[0, -100], [2, 1]])}, "labels")
    assert report.outputs[0].values["top1"] == 2 / 3


def test_labels_of_stacked_samples() -> None:
    text = "(float[1, 3] x, int64 k) => (float[1, 3] y) { f = Cast<to=1>(k) y = Mul(x, f) }"
    x = np.eye(3, dtype=np.float32)[np.array([0, 1, 2, 0])].reshape(4, 1, 3)
    data = {"x": x, "k": np.array([1, 1, 1, 1]), "labels": np.array([0, 1, 2, 2])}
    report = evaluate(text, text, data, "labels")
    assert report.samples == 4
    assert report.outputs[0].values["top1"] == 0.75


def test_a_fixed_batch() -> None:
    text = "(float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }"
    x = np.eye(3, dtype=np.float32)[np.array([0, 1, 2, 0])]
    report = evaluate(text, text, {"x": x, "labels": np.array([0, 1, 2, 2])}, "labels")
    assert report.samples == 4
    assert report.outputs[0].values["top1"] == 0.75


def test_labels_that_fit_two_outputs() -> None:
    text = "(float[N, 3] x) => (float[N, 3] y, float[N, 3] features) { y = Identity(x) features = Neg(x) }"
    report = evaluate(text, text, {"x": rows(1, 2, 3, 1, 2, 3), "labels": np.array([2, 2])}, "labels")
    assert [output.values["top1"] for output in report.outputs] == [1.0, None]
    assert report.notes == (
        "Labels 'labels' fit y, features; they are taken as those of y.",
        "top1 of output 'y': n=2 cannot show any drop.",
    )
    assert check(report, parse_gates(["top1=1"])) == ()


def test_labels_that_stop_fitting() -> None:
    # the middle axis of y is as long as the largest value of the sample says
    text = (
        "(float[N, 3] x) => (float[N, K, 3] y) <int64[1] one = {1}, int64[1] axis = {1}> "
        "{ m = ReduceMax<keepdims=0>(x) k = Cast<to=7>(m) r = Reshape(k, one) u = Unsqueeze(x, axis) "
        "s = Concat<axis=0>(one, r, one) y = Tile(u, s) }"
    )
    data = {"x": rows(1, 0, 2, 1, 0, 3), "labels": np.full((2, 2), 2)}
    with pytest.raises(DataError, match=r"In a batch of 1 the outputs are 'y' \(1, 3, 3\)"):
        evaluate(text, text, data, "labels", batch_size=1)


def test_labels_that_fit_nothing() -> None:
    with pytest.raises(DataError) as caught:
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3, 4, 5, 6), "labels": np.zeros((2, 2), np.int64)}, "labels")
    assert "Labels 'labels' of shape (2, 2) fit no output" in caught.value.message
    assert "'y' (2, 3)" in caught.value.message


def test_labels_of_one_class_fit_nothing() -> None:
    text = "(float[N, 1] x) => (float[N, 1] y) { y = Identity(x) }"
    with pytest.raises(DataError, match="at least 2 classes"):
        evaluate(text, text, {"x": np.ones((2, 1), np.float32), "labels": np.array([0, 1])}, "labels")


def test_labels_of_another_length() -> None:
    with pytest.raises(DataError, match="labels"):
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3, 4, 5, 6), "labels": np.zeros(3, np.int64)}, "labels")


def test_new_nan_always_fails() -> None:
    report = evaluate(
        IDENTITY, "(float[N, 3] x) => (float[N, 3] y) { y = Sqrt(x) }", {"x": rows(1, -2, -3, 4, math.nan, 6)}
    )
    assert report.outputs[0].new_nan == 2
    assert report.notes == ("Output 'y': 1 of 6 values are NaN in the float model.",)
    line = (
        "Output 'y': 2 of 6 values are NaN in the quantized model and not in the float model, "
        "and 1 more are NaN in both."
    )
    assert report.failures == (line,)
    assert check(report, ()) == (line,)
    assert math.isnan(report.outputs[0].values["sqnr"] or 0)
    assert report.to_dict()["outputs"][0]["values"]["sqnr"] == "nan"  # type: ignore[call-overload,index]


def test_nan_in_both_models_fails_too() -> None:
    report = evaluate(IDENTITY, IDENTITY, {"x": rows(1, math.nan, 3)})
    line = "Output 'y': 1 of 3 values are NaN in the quantized and the float model."
    assert report.failures == (line,)
    assert not report.passed


def test_nan_of_another_shape_fails_too() -> None:
    gather = (
        "(float[N, 3] x) => (float[K, 2] y) "
        "{{ r = {}(x) i = NonZero(r) t = Transpose(i) f = Cast<to=1>(t) m = Neg(f) y = {}(m) }}"
    )
    report = evaluate(gather.format("Identity", "Identity"), gather.format("Round", "Sqrt"), {"x": rows(0.25, 1, 2)})
    assert report.failures == ("Output 'y': 2 values are NaN in the quantized model.",)


def test_new_infinities_are_noted() -> None:
    report = evaluate(
        IDENTITY, "(float[N, 3] x) => (float[N, 3] y) { y = Reciprocal(x) }", {"x": rows(1, 0, 1, math.inf, 0, 1)}
    )
    assert report.outputs[0].new_inf == 2
    assert report.notes == (
        "Output 'y': 2 of 6 values are infinite in the quantized model and finite in the float model.",
    )
    assert report.failures == ()
    assert report.outputs[0].values["max_abs"] == math.inf


def test_outputs_of_different_shape() -> None:
    text = "(float[N, 3] x) => (float[N, 3] z, int64[2, K] y) {{ z = Identity(x) r = {}(x) y = NonZero(r) }}"
    report = evaluate(text.format("Identity"), text.format("Round"), {"x": rows(0.25, 1, 2, 3, 4, 5)}, batch_size=1)
    z, y = report.outputs
    assert z.values["sqnr"] == math.inf
    assert all(value is not None and math.isnan(value) for value in y.values.values())
    (note,) = report.notes
    assert note == (
        "Output 'y' has shape (2, 3) in the float model and (2, 2) in the quantized one: nothing to compare, "
        "its values are nan."
    )
    assert check(report, parse_gates(["cosine=-1"])) == ("cosine of output 'y' is nan, below -1.",)


def test_outputs_of_other_types() -> None:
    report = evaluate(
        "(float[N, 3] x) => (bool[N, 3] b, int64[N, 3] i, float[0] e) "
        "<float zero = {0}, int64[1] none = {0}> { b = Greater(x, zero) i = Cast<to=7>(x) e = ConstantOfShape(none) }",
        "(float[N, 3] x) => (bool[N, 3] b, int8[N, 3] i, float[0] e) "
        "<float zero = {0}, int64[1] none = {0}> { b = Less(x, zero) i = Cast<to=3>(x) e = ConstantOfShape(none) }",
        {"x": rows(1, -2, 3)},
    )
    b, i, e = report.outputs
    assert b.values["max_abs"] == 1.0
    assert b.dtype == "bool"
    assert i.values["sqnr"] == math.inf
    assert report.notes == ("Output 'i' is int64 in the float model and int8 in the quantized one.",)
    assert set(e.values.values()) == {None}
    assert e.elements == 0


def test_outputs_without_numbers() -> None:
    text = "(float[N, 3] x) => (string[N, 3] y) { y = Cast<to=8>(x) }"
    report = evaluate(text, text, {"x": rows(1, 2, 3)})
    assert set(report.outputs[0].values.values()) == {None}
    assert report.notes == ("Output 'y' holds no numbers (object); it was not compared.",)
    assert check(report, parse_gates(["sqnr=1"])) != ()


def test_half_precision_outputs() -> None:
    text = "(float[N, 3] x) => (bfloat16[N, 3] y) {{ r = {}(x) y = Cast<to=16>(r) }}"
    report = evaluate(text.format("Identity"), text.format("Round"), {"x": rows(1, 2.5, 3)})
    assert report.outputs[0].dtype == "bfloat16"
    assert report.outputs[0].values["max_abs"] == 0.5


def test_metrics_are_chosen() -> None:
    report = evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3)}, metrics=["mean_abs", "sqnr"])
    assert report.metrics == ("sqnr", "mean_abs")
    assert tuple(report.outputs[0].values) == report.metrics
    with pytest.raises(ConfigError, match="Unknown metric 'psnr'"):
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3)}, metrics=["psnr"])
    with pytest.raises(ConfigError, match="'top1' compares with labels"):
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3)}, metrics=["top1"])


def test_models_that_do_not_match() -> None:
    data = {"x": rows(1, 2, 3)}
    with pytest.raises(ModelError, match="quantized model's inputs are z; expected those of the float model: x"):
        evaluate(IDENTITY, "(float[N, 3] z) => (float[N, 3] y) { y = Round(z) }", data)
    with pytest.raises(ModelError, match="quantized model's outputs are y, z; expected those of the float model: y"):
        evaluate(IDENTITY, "(float[N, 3] x) => (float[N, 3] y, float[N, 3] z) { y = Round(x) z = Neg(x) }", data)
    with pytest.raises(ModelError, match="Input 'x' of the quantized model is float16; expected float32"):
        evaluate(IDENTITY, "(float16[N, 3] x) => (float16[N, 3] y) { y = Identity(x) }", data)


def test_batch_size_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="Batch size is 0"):
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3)}, batch_size=0)


def test_files_with_latency(tmp_path: Path) -> None:
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, text in zip(paths, (IDENTITY, ROUND), strict=True):
        onnx.save(model(text), path)
    data = tmp_path / "x.npz"
    np.savez(data, x=rows(1, 2, 3, 4, 5, 6))
    samples = open_samples(data, create_session(paths[0]).inputs)
    report = compare(str(paths[0]), paths[1], samples, num_threads=1)
    assert report.sources == (Source(str(data), hashlib.sha256(data.read_bytes()).hexdigest()),)
    assert (report.float_model, report.quantized_model) == (str(paths[0]), str(paths[1]))
    assert report.latency is not None
    assert report.latency.float_ms > 0
    assert report.latency.quantized_ms > 0
    assert (report.latency.batch_size, report.latency.threads) == (2, 1)
    assert report.latency.runs >= report.latency.rounds >= 3
    with pytest.raises(ModelError, match=r"none\.onnx"):
        compare(paths[0], tmp_path / "none.onnx", samples)


def test_automatic_batch_size() -> None:
    def size(columns: int) -> int:
        proto = model(f"(float[N, {columns}] x) => (float[N, {columns}] y) {{ y = Identity(x) }}")
        session = create_session(proto)
        return automatic_batch_size(open_samples({"x": np.zeros((2, columns), np.float32)}, session.inputs), session)

    assert size(3) == 8
    assert size(1 << 17) == 4
    assert size(1 << 20) == 1


@pytest.mark.parametrize(
    ("largest", "seconds", "size"),
    [(20, 0.0, 20), (20, 0.001, 20), (20, 0.00102, 16), (64, 0.002, 8), (64, 0.012, 1), (64, 5.0, 1), (1, 5.0, 1)],
)
def test_latency_batch_size(largest: int, seconds: float, size: int) -> None:
    assert latency_batch_size(largest, seconds) == size


def float4_product() -> onnx.ModelProto:
    """y = x @ w with w in float4 and e8m0 scales, which onnxruntime does not have."""
    dequantize = onnx.helper.make_node(
        "DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=2, output_dtype=onnx.TensorProto.FLOAT
    )
    graph = onnx.helper.make_graph(
        [dequantize, onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 2])],
        [onnx.helper.make_tensor_value_info("y", 1, ["N", 2])],
        [
            onnx.numpy_helper.from_array(np.array([[1, 2], [3, -4]]).astype(ml_dtypes.float4_e2m1fn), "q"),
            onnx.numpy_helper.from_array(np.array([[1, 0.5]]).astype(ml_dtypes.float8_e8m0fnu), "s"),
        ],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=12)


def test_the_spec_engine_judges_what_onnxruntime_refuses() -> None:
    reference = model("(float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 1, 3, -2.5}> { y = MatMul(x, w) }")
    samples = open_samples({"x": np.array([[1, 2]], np.float32)}, create_session(reference).inputs)
    with pytest.raises(ModelError, match="is not accepted by onnxruntime") as caught:
        compare(reference, float4_product(), samples)
    assert caught.value.hint is not None
    assert "--engine spec" in caught.value.hint
    report = compare(reference, float4_product(), samples, engine="spec")
    # (7, -3) against (7, -4)
    assert report.outputs[0].values["max_abs"] == 1.0
    assert (report.engine, report.latency) == ("spec", None)


def test_what_no_engine_takes_has_no_hint() -> None:
    reference = model(IDENTITY)
    samples = open_samples({"x": rows(1, 2, 3)}, create_session(reference).inputs)
    with pytest.raises(ModelError) as caught:
        compare(reference, b"nonsense", samples)
    assert caught.value.hint is None
    with pytest.raises(ConfigError, match=r"^Unknown engine 'tvm'; expected one of ort, spec, spec-avx2\.$"):
        compare(reference, reference, samples, engine="tvm")


# ------------------------------------------------------------------------------------------- labels of every kind


def stats_of(report: Report, metric: str) -> Statistic:
    return report.outputs[0].statistics[metric]


def test_a_label_map() -> None:
    text = "(float[N, 2, 1, 3] x) => (float[N, 2, 1, 3] y) {{ y = {}(x) }}"
    x = np.array([[[[0.6, 0.4, 0.8]], [[0.7, 0.3, 0.1]]]], np.float32)  # classes 1 0 0; rounded, a tie: 0 0 0
    report = evaluate(
        text.format("Identity"), text.format("Round"), {"x": x, "truth": np.array([[[1, 0, 255]]])}, "truth"
    )
    assert report.label_kind == "a label map"
    assert report.primary == "miou"
    assert report.outputs[0].float_values == {"top1": 1.0, "miou": 1.0}
    assert report.outputs[0].values["top1"] == 0.5
    assert report.outputs[0].values["miou"] == (1 / 2 + 0) / 2


def test_a_mask() -> None:
    text = "(float[N, 1, 2, 2] x) => (float[N, 1, 2, 2] y) {{ y = {}(x) }}"
    x = np.array([0.9, 0.7, 0.2, 0.3], np.float32).reshape(1, 1, 2, 2)
    truth = np.array([[[255, 0], [0, 0]]], np.uint8)
    report = evaluate(text.format("Identity"), text.format("Floor"), {"x": x, "truth": truth}, "truth")
    # 1 1 0 0 against 1 0 0 0: foreground 1/2, background 2/3; then nothing is foreground: 0, 3/4
    assert report.outputs[0].float_values["miou"] == (1 / 2 + 2 / 3) / 2
    assert report.outputs[0].values["miou"] == (0 + 3 / 4) / 2


@pytest.mark.parametrize("shape", [(4, 1), (4,)])
def test_regression_targets(shape: tuple[int, ...]) -> None:
    text = "(float[N, 1] x) => (float[N, 1] y) {{ y = {}(x) }}"
    data = {
        "x": np.array([[0.25], [1], [2], [3]], np.float32),
        "t": np.array([0.25, 1, 2, 4], np.float32).reshape(shape),
    }
    report = evaluate(text.format("Identity"), text.format("Round"), data, "t")
    assert report.label_kind == "regression targets"
    assert set(report.metrics) >= {"mse", "mae", "r2"}
    assert report.outputs[0].float_values["mse"] == 1 / 4
    assert report.outputs[0].values["mse"] == (1 + 0.0625) / 4
    assert report.outputs[0].values["mae"] == 1.25 / 4


def test_sequences_of_ids() -> None:
    text = "(float[N, 4, 3] x) => (float[N, 4, 3] y) {{ y = {}(x) }}"
    x = np.eye(3, dtype=np.float32)[np.array([[0, 1, 1, 2], [1, 0, 1, 0]])]
    data = {"x": x, "ids": np.array([[1, 2], [1, 1]])}
    report = evaluate(text.format("Identity"), text.format("Identity"), data, "ids", ctc_blank=0)
    assert report.label_kind == "sequences of ids"
    assert report.outputs[0].values["cer"] == 0.0
    assert "wer" not in report.metrics
    report = evaluate(
        text.format("Identity"), text.format("Neg"), data, "ids", ctc_blank=0, word_separator=2, metrics=["wer", "cer"]
    )
    assert report.outputs[0].float_values == {"cer": 0.0, "wer": 0.0}
    with pytest.raises(DataError, match=r"Labels 'ids' of shape \(2, 2\) fit no output"):
        evaluate(text.format("Identity"), text.format("Identity"), data, "ids")


def test_tokens_have_a_perplexity_and_error_rates_when_asked() -> None:
    text = "(float[N, T, 3] x) => (float[N, T, 3] y) { y = Identity(x) }"
    data = {"x": np.zeros((2, 2, 3), np.float32), "labels": np.array([[0, 1], [2, -100]])}
    report = evaluate(text, text, data, "labels", metrics=["default", "cer"])
    assert report.outputs[0].values["perplexity"] == pytest.approx(3.0, rel=1e-15)
    assert report.outputs[0].values["cer"] == 2 / 3
    assert report.outputs[0].values["top1"] == 1 / 3


@pytest.mark.parametrize(
    ("labels", "metrics", "message"),
    [
        (np.array(["a", "b"]), None, "Labels 'l' are text; expected class indices"),
        (np.array([1j, 2j]), None, "Labels 'l' are complex128"),
        (
            np.zeros((2, 3)),
            ["top1"],
            "Metric 'top1' compares with class indices or .*; labels 'l' are regression targets",
        ),
        (np.array([0, 1]), ["r2"], "Metric 'r2' compares with regression targets; labels 'l' are class indices"),
        (np.array([0.0, 1.0]), None, r"fit no output; expected for float64 the shape of an output"),
    ],
)
def test_labels_that_cannot_be_used(labels: np.ndarray[Any, Any], metrics: list[str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3, 4, 5, 6), "l": labels}, "l", metrics=metrics)


def test_all_metrics_are_those_that_the_labels_allow() -> None:
    report = evaluate(IDENTITY, ROUND, {"x": rows(1, 2, 3, 4, 5, 6), "l": np.array([2, 2])}, "l", metrics=["all"])
    assert set(report.metrics) == {
        name
        for name, metric in METRICS.items()
        if not metric.needs_labels or name in ("top1", "top5", "f1", "mcc", "miou", "perplexity")
    }


# ------------------------------------------------------------------------------------------------------- statistics


def test_statistics_of_answers() -> None:
    x = np.eye(3, dtype=np.float32)[np.zeros(20, int)] * 0.25
    x[:6, 1] = 0.75
    labels = np.where(np.arange(20) < 6, 1, 0)
    # six samples whose best score is cut down to a tie, which class 0 wins
    report = evaluate(
        IDENTITY,
        "(float[N, 3] x) => (float[N, 3] y) <float half = {0.2}> { y = Min(x, half) }",
        {"x": x, "l": labels},
        "l",
    )
    found = stats_of(report, "top1")
    assert (found.n, found.float_value, found.quantized_value, found.delta) == (20, 1.0, 0.7, pytest.approx(-0.3))
    assert (found.lost, found.gained, found.p_value, found.method) == (6, 0, 2 / 64, "score")
    assert found.detectable == 6 / 20
    low, high = found.interval or (0.0, 0.0)
    assert -1 < low < -0.3 < high < 0
    assert report.notes == ()  # the drop is shown


def test_statistics_do_not_depend_on_the_batch_size() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(0, 2, (30, 3)).astype(np.float32)
    data = {"x": x, "l": rng.integers(0, 3, 30)}
    found = [
        evaluate(IDENTITY, ROUND, data, "l", metrics=["all"], batch_size=size).outputs[0].statistics
        for size in (1, 7, 30)
    ]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, one in found[0].items():
            assert other[name].interval == pytest.approx(one.interval, rel=1e-9)
            assert other[name].n == one.n == 30
    assert found[0]["sqnr"].method == "bootstrap"
    assert found[0]["sqnr"].delta is None
    assert found[0]["f1"].delta is not None


def test_samples_that_are_all_alike_leave_room() -> None:
    """Equal decisions of 40 samples do not show that all there are would be equal."""
    text = "(float[N, 4] x) => (float[N, 4] y) { y = Identity(x) }"
    data = {"x": np.eye(4, dtype=np.float32)[np.arange(40) % 4], "labels": np.arange(40) % 4}
    report = evaluate(text, text, data, "labels", metrics=["top1_agreement", "f1", "sqnr"])
    found = report.outputs[0].statistics
    assert found["top1_agreement"].method == "score"
    assert found["top1_agreement"].interval == pytest.approx((40 / (40 + Z * Z), 1.0))
    assert found["f1"].interval == score_interval(0, 0, 40)
    assert found["f1"].detectable == detectable_share(0, 0, 40)
    assert (found["sqnr"].method, found["sqnr"].interval) == ("bootstrap", (math.inf, math.inf))


def test_samples_that_share_an_output_have_no_interval() -> None:
    text = "(float[N, 3] x) => (float[K] y) {{ r = {}(x) y = ReduceMax<axes=[0], keepdims=0>(r) }}"
    data = {"x": np.arange(60, dtype=np.float32).reshape(20, 3) / 4}
    report = evaluate(text.format("Identity"), text.format("Round"), data, metrics=["sqnr", "sqnr_p5"])
    assert report.outputs[0].values["sqnr_p5"] is None
    assert report.outputs[0].values["sqnr"] is not None
    assert report.outputs[0].statistics == {}


# --------------------------------------------------------------------------------------- outputs and degenerate ones

THREE = (
    "(float[N, 3] x) => (float[N, 3] y, int64[N, 3] i, bool[N, 3] b) <float zero = {{0}}> "
    "{{ y = {0}(x) i = Cast<to=7>(y) b = Greater(y, zero) }}"
)


def test_outputs_are_selected() -> None:
    texts = THREE.format("Identity"), THREE.format("Round")
    report = evaluate(*texts, {"x": rows(1, 2, 3)}, outputs=["b", "y"])
    assert [output.name for output in report.outputs] == ["y", "b"]
    with pytest.raises(
        ConfigError, match=r"The model has no output 'bb'; expected one of: y, i, b; did you mean 'b'\?"
    ):
        evaluate(*texts, {"x": rows(1, 2, 3)}, outputs=["bb"])
    with pytest.raises(ConfigError, match="No output is selected"):
        evaluate(*texts, {"x": rows(1, 2, 3)}, outputs=[])


DEGENERATE = {
    "zeros": rows(0, 0, 0, 0, 0, 0),
    "nan": rows(math.nan, 1, 2, 3, 4, 5),
    "all nan": np.full((2, 3), math.nan, np.float32),
    "infinite": rows(math.inf, -math.inf, 0, 1, 2, 3),
    "all infinite": np.full((2, 3), -math.inf, np.float32),
    "large": rows(3e38, -3e38, 1e-45, 0.5, 2.5, 1e38),
    "one": rows(0.25, 1, 2),
    "many": np.tile(rows(0.25, 1, 2), (9, 1)),
}


@pytest.mark.parametrize("operator", ["Identity", "Round", "Sqrt", "Neg", "Reciprocal"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_reports_of_degenerate_outputs_are_strict_json(case: str, operator: str) -> None:
    x = DEGENERATE[case]
    for labels in (np.full(len(x), 2), x.copy() if np.isfinite(x).all() else None):
        data = {"x": x} if labels is None else {"x": x, "l": labels}
        report = evaluate(
            THREE.format("Identity"),
            THREE.format(operator),
            data,
            None if labels is None else "l",
            metrics=["all"],
        )
        json.dumps(judged(report, parse_gates(["sqnr=1"], ["kl=1"])).to_dict(), allow_nan=False)
        assert report.passed == (not np.isnan(x).any() and not (operator == "Sqrt" and (x < 0).any()))
        if operator == "Identity" and not np.isnan(x).any():
            values = report.outputs[0].values
            assert values["sqnr"] == math.inf
            assert (values["nmse"], values["max_abs"], values["kl"], values["js"]) == (0.0, 0.0, 0.0, 0.0)
