"""Rounding (C03, C04), what a report must say (C26, C61, C62, C64) and dynamic mode (C45), end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool import kernels
from qtool.evaluate.report import Report
from tests.models import build, normal, quantize_and_check, uniform

MATMUL = "m (float[N,8] x) => (float[N,4] y) { [mm] y = MatMul(x, w) }"


def judged(
    folder: Path, model: onnx.ModelProto, quantized: onnx.ModelProto, x: np.ndarray, **options: object
) -> Report:
    onnx.save(model, folder / "f.onnx")
    onnx.save(quantized, folder / "q.onnx")
    return qtool.evaluate(folder / "f.onnx", folder / "q.onnx", {"x": x}, latency=False, **options)


@pytest.mark.parametrize(
    ("dtype", "zero_point", "x", "codes"),
    [
        ("uint8", 1, [0.5, 1.5, 2.5, -0.5, -1.5], [1, 3, 3, 1, 0]),
        ("int8", 1, [0.5, 1.5, 2.5, -0.5, -1.5], [1, 3, 3, 1, -1]),
        ("int8", 0, [3e9, -3e9, np.inf, -np.inf], [127, -128, 127, -128]),
        ("int8", 0, [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], [-2, -2, 0, 0, 2, 2]),
        ("int8", 0, [-129, -128, -127.5, 126.5, 127.5, 300], [-128, -128, -128, 126, 127, 127]),
    ],
)
def test_c03_rounding_and_saturation(dtype, zero_point, x, codes):
    got = kernels.quantize(np.array(x, np.float32), np.float32(1), np.array(zero_point, dtype))
    assert got.tolist() == codes


@pytest.mark.parametrize(("dtype", "sign", "expected"), [("uint8", 1, 255), ("int8", -1, -128)])
def test_c04_a_product_saturates(dtype, sign, expected):
    a, b = np.full((2, 8), 127, dtype), np.full((8, 3), sign * 127, np.int8)
    one, zero = np.float32(1), np.array(0, dtype)
    got = kernels.qlinear_matmul(a, one, zero, b, one, np.int8(0), one, zero)
    assert got.dtype == np.dtype(dtype)
    assert got.tolist() == [[expected] * 3] * 2


@pytest.mark.parametrize("form", ["qlinear", "qdq"])
def test_c26_data_that_were_not_scaled(tmp_path, form):
    """Calibrated on [0, 1], evaluated on [0, 255]: 254 of the range lie outside it, and 255/256 of the values."""
    model = build(MATMUL, {"w": normal(8, 4)})
    quantized = qtool.quantize(model, {"x": uniform(32, 8)}, format=form).model
    pixels = np.arange(256, dtype=np.float32).reshape(32, 8)
    (found,) = [r for r in judged(tmp_path, model, quantized, pixels).checks if r.name == "ranges"]
    assert found.state == "flagged"
    (finding,) = found.findings
    assert finding.subject == "x"
    assert finding.text.startswith("values from 0 to 255, calibrated for 0 to 1: 99.22% outside, by up to 254.00 times")


@pytest.mark.parametrize("fill", [None, 0.0, -2.5])
def test_c45_dynamic_products(fill):
    """x W within sum_k |x| sw/2 + |w| sx/2 + sx sw/4; zeros are exact."""
    w = normal(8, 4)
    x = normal(16, 8, seed=1) if fill is None else np.full((16, 8), fill, np.float32)
    model = build(MATMUL, {"w": w})
    checked = quantize_and_check(model, {"x": x}, dynamic=True)
    assert checked.ops["MatMulInteger"] == 1
    sx, sw = (max(x.max(), 0) - min(x.min(), 0)) / 255, np.abs(w).max(axis=0) / 127
    bound = np.abs(x).sum(axis=1)[:, None] * sw / 2 + np.abs(w).sum(axis=0) * sx / 2 + 8 * sx * sw / 4
    assert (checked.error() <= bound * (1 + 1e-5)).all()
    if fill == 0.0:
        assert not checked.got["y"].any()


def test_c45_batch_mates_change_a_result():
    """One scale holds for the whole batch: documented, and this is what it means."""
    quantized = qtool.quantize(build(MATMUL, {"w": normal(8, 4)}), dynamic=True).model
    session = qtool.runtime.create_session(quantized)
    alone = normal(1, 8, seed=1)
    crowd = np.concatenate([alone, np.full((1, 8), 100, np.float32)])
    assert not np.array_equal(session.run({"x": alone})["y"][0], session.run({"x": crowd})["y"][0])
    assert "so a result depends on what else is in its batch" in " ".join(
        (Path(qtool.__file__).parents[1] / "docs" / "cli.md").read_text("utf-8").split()
    )


def test_c61_the_outlier_is_first_and_excluding_it_gains_20_db(tmp_path):
    """The second of three layers has one weight 1000 times the others, on an input that is always 0."""
    text = """m (float[N,16] x) => (float[N,16] y) {
        [fc1] a = MatMul(x, w1)
        [r1] b = Relu(a)
        [fc2] c = MatMul(b, w2)
        [r2] d = Relu(c)
        [fc3] y = MatMul(d, w3)
    }"""
    weights = {f"w{i}": normal(16, 16, seed=i, scale=0.25) for i in (1, 2, 3)}
    weights["w1"][:, 3] = 0
    weights["w2"][3, 5] = 1000 * np.abs(weights["w2"]).max()
    model, x = build(text, weights), normal(64, 16, seed=4)
    quantized = qtool.quantize(model, {"x": x}, per_channel=False).model
    before = judged(tmp_path, model, quantized, x, layers=True)
    assert before.layers is not None
    assert before.layers.layers[0].node == "fc2"
    better = qtool.quantize(model, {"x": x}, per_channel=False, exclude=["fc2"]).model
    gained = judged(tmp_path, model, better, x).outputs[0].values["sqnr"] - before.outputs[0].values["sqnr"]
    assert gained >= 20


def test_models_in_the_wrong_order_are_noted(tmp_path):
    model, x = build(MATMUL, {"w": normal(8, 4)}), normal(8, 8, seed=1)
    quantized = qtool.quantize(model, {"x": x}).model
    said = "The first model holds quantized operators and the second one none: are they in the order FLOAT QUANT?"
    assert said in judged(tmp_path, quantized, model, x).notes
    assert said not in judged(tmp_path, model, quantized, x).notes
    assert said not in judged(tmp_path, model, model, x).notes


@pytest.mark.parametrize("form", ["qlinear", "qdq"])
def test_c62_and_c64_a_sound_model_agrees_and_fuses(tmp_path, form):
    text = """m (float[N,3,8,8] x) => (float[N,4,6,6] y) {
        [c1] a = Conv(x, w1)
        [r1] b = Relu(a)
        [c2] y = Conv<pads=[1,1,1,1]>(b, w2)
    }"""
    model = build(text, {"w1": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3, seed=1)})
    x = normal(8, 3, 8, 8, seed=2)
    quantized = qtool.quantize(model, {"x": x}, format=form).model
    found = {r.name: r for r in judged(tmp_path, model, quantized, x).checks}
    assert found["miscompile"].state == "ok"
    assert found["miscompile"].values["largest"] <= 1
    assert found["fusion"].summary == "onnxruntime computes 2 of 2 quantized products (Conv) on codes."


def test_c62_more_than_a_code_is_flagged(tmp_path):
    """A Gemm whose weight has scales along the summed axis: onnxruntime fuses it as if they were per column."""
    text = """m (float[N,4] x) => (float[N,4] y) {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear<axis=0>(w, t, u)
        [product] h = Gemm(d, v)
        p = QuantizeLinear(h, s, z)
        y = DequantizeLinear(p, s, z)
    }"""
    arrays = {"s": np.float32(0.02), "z": np.uint8(128), "t": np.geomspace(0.001, 0.02, 4, dtype=np.float32)}
    codes = np.rint(normal(4, 4, scale=40)).astype(np.int8)
    model = build(text, {**arrays, "w": codes, "u": np.zeros(4, np.int8)})
    (found,) = [r for r in judged(tmp_path, model, model, normal(8, 4, seed=1)).checks if r.name == "miscompile"]
    assert found.state == "flagged"
    assert found.findings[0].subject == "product"


def test_c64_a_conv_without_an_output_q_is_listed(tmp_path):
    text = """m (float[N,3,4,4] x) => (float[N,2,4,4] y) {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, t, u)
        [conv] y = Conv(d, v)
    }"""
    arrays = {"s": np.float32(0.02), "z": np.uint8(128), "t": np.float32(0.01), "u": np.int8(0)}
    model = build(text, {**arrays, "w": np.rint(normal(2, 3, 1, 1, scale=40)).astype(np.int8)})
    (found,) = [r for r in judged(tmp_path, model, model, normal(2, 3, 4, 4)).checks if r.name == "fusion"]
    assert found.state == "flagged"
    assert found.summary.startswith("onnxruntime computes 0 of 1 quantized product")
    assert [f.subject for f in found.findings] == ["conv"]
