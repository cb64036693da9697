"""What onnxruntime makes of the models that are written (emission.md 2): fused operators are counted, not hoped for.

These are facts about onnxruntime 1.32 on x64. When a version moves them, the emitters have to follow.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import FORMATS, Arrays, build, normal, optimized_ops, quantize_and_check

formats = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture
def fused(tmp_path: Path) -> Any:
    """Quantize a model and count the operators of the graph that onnxruntime makes of it."""

    def _fused(text: str, arrays: Arrays, x: np.ndarray, **options: Any) -> Counter[str]:
        checked = quantize_and_check(build(text, arrays), {"x": x}, **options)
        found = optimized_ops(checked.model, tmp_path / "optimized.onnx")
        return Counter({op: n for op, n in found.items() if op not in ("QuantizeLinear", "DequantizeLinear")})

    return _fused


def conv_body(body: str) -> str:
    return f"m (float[2,4,8,8] x) => (float[2,a,b,c] y) {{ {body} }}"


W = {"w": normal(8, 4, 3, 3), "b": normal(8, seed=1)}
X = normal(2, 4, 8, 8, seed=2)


@formats
def test_conv_and_relu(form, fused):
    ops = fused(conv_body("h = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(h)"), W, X, format=form)
    assert ops == {"QLinearConv": 1}


@formats
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_conv_and_clip(form, scale, fused):
    """Also where the range fills the Clip: 255 * s must not exceed 6."""
    arrays = {"w": W["w"] * np.float32(scale), "b": W["b"], "lo": np.float32(0), "hi": np.float32(6)}
    ops = fused(conv_body("h = Conv<pads=[1,1,1,1]>(x, w, b) y = Clip(h, lo, hi)"), arrays, X, format=form)
    assert ops == {"QLinearConv": 1}


@formats
@pytest.mark.parametrize("high", [6.0, 1.0, 0.1, 3.3, 20.0])
def test_conv_and_a_clip_whose_bound_is_reached(form, high, fused):
    arrays = {**W, "lo": np.float32(0), "hi": np.float32(high)}
    ops = fused(conv_body("h = Conv<pads=[1,1,1,1]>(x, w, b) y = Clip(h, lo, hi)"), arrays, X * 4, format=form)
    assert ops == {"QLinearConv": 1}


@formats
def test_gemm_with_bias_and_float_result(form, fused):
    text = "m (float[N,16] x) => (float[N,4] y) { y = Gemm(x, w, b) }"
    ops = fused(text, {"w": normal(16, 4), "b": normal(4, seed=1)}, normal(8, 16), format=form)
    assert ops == {"QGemm": 1}


@formats
def test_gemm_with_transposed_weight_alpha_and_relu(form, fused):
    text = """m (float[N,16] x) => (float[N,3] y) {
        h = Gemm<alpha=0.5, transB=1>(x, w, b)
        g = Relu(h)
        y = Gemm<transB=1>(g, v, c)
    }"""
    arrays = {"w": normal(4, 16), "b": normal(4, seed=1), "v": normal(3, 4, seed=2), "c": normal(3, seed=3)}
    ops = fused(text, arrays, normal(8, 16), format=form)
    assert ops == {"QGemm": 2}


@formats
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("2,6,16", {"QGemm": 1, "Reshape": 2}),
        ("8,16", {"QGemm": 1}),
        ("N,16", {"QGemm": 1}),
        ("N,6,16", {"MatMulIntegerToFloat": 1, "Add": 1}),
    ],
)
def test_matmul_and_bias_with_float_result(form, shape, expected, fused):
    rank = ",".join("abc"[: shape.count(",") + 1])
    text = f"m (float[{shape}] x) => (float[{rank}] y) {{ h = MatMul(x, w) y = Add(h, b) }}"
    x = normal(2, 6, 16) if shape.count(",") == 2 else normal(8, 16)
    ops = fused(text, {"w": normal(16, 4), "b": normal(4, seed=1)}, x, format=form)
    assert ops == expected


@formats
@pytest.mark.parametrize("shape", ["2,6,8", "1,2,6,8", "6,8", "N,6,8"])
@pytest.mark.parametrize("opset", [20, 21, 24])
@pytest.mark.parametrize("per_channel", [True, False])
def test_int8_activations_and_a_bias_load_at_every_opset(form, shape, opset, per_channel):
    """From opset 21 on onnxruntime 1.32 fuses MatMul and Add of a static shape into something that it cannot load."""
    rank = ",".join("abcd"[: shape.count(",") + 1])
    text = f"m (float[{shape}] x) => (float[{rank}] y) {{ h = MatMul(x, w) i = Add(h, b) y = MatMul(i, v) }}"
    model = build(text, {"w": normal(8, 8), "b": normal(8), "v": normal(8, 4, seed=1)}, opset=opset, ir_version=10)
    x = normal(*[2 if d == "N" else int(d) for d in shape.split(",")], seed=2)
    checked = quantize_and_check(model, {"x": x}, format=form, activations="int8", per_channel=per_channel)
    assert checked.sqnr() >= 33


EDGES = {
    "slice": ("y = Slice(a, k, e)", "N,b,c,d"),
    "pool": ("y = MaxPool<kernel_shape=[2,2]>(a)", "N,b,c,d"),
    "reshape": ("y = Reshape(a, r)", "a,b"),
    "chain": ("t = Transpose<perm=[0,2,3,1]>(a) u = Unsqueeze(t, o) s = Slice(u, k, e) y = Softmax(s)", "a,b,c,d,e"),
    "fan": (
        "t = Transpose<perm=[0,2,3,1]>(a) n = Neg(t) s = Slice(t, k, e) m = Slice(n, k, e) y = Add(s, m)",
        "N,b,c,d",
    ),
    "codes and floats": ("p = MaxPool<kernel_shape=[2,2]>(a) c = Conv(p, w) s = Slice(p, k, e) y = Neg(s)", "N,b,c,d"),
    "before": ("f = Softplus(a) s = Slice(f, k, e) n = Neg(s) c = Conv(s, v) y = Add(c, n)", "N,b,c,d"),
}


@formats
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("opset", [20, 21, 24])
@pytest.mark.parametrize("symmetric", [False, True])
def test_int8_codes_that_are_moved_beside_float_operators_load_at_every_opset(form, edge, opset, symmetric):
    """onnxruntime pushes a DequantizeLinear through data movers; from opset 21 on it breaks int8 models by that."""
    body, dims = EDGES[edge]
    arrays = {
        "w": normal(4, 4, 3, 3, scale=0.3), "v": normal(2, 2, 1, 1), "k": np.array([0, 0]), "e": np.array([9, 2]),
        "r": np.array([-1, 12]), "o": np.array([1]),
    }  # fmt: skip
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    also = ", float[N,b1,c1,d1] c" if edge == "codes and floats" else ""
    text = f"m (float[N,4,6,6] x) => (float[{dims}] y{also}) {{ a = Conv<pads=[1,1,1,1]>(x, w) {body} }}"
    model = build(text, {k: v for k, v in arrays.items() if k == "w" or k in words}, opset=opset, ir_version=10)
    checked = quantize_and_check(
        model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form, activations="int8", symmetric_activations=symmetric
    )
    assert checked.sqnr("y") >= 28
    if (
        edge == "codes and floats" and form == "qdq"
    ):  # the MaxPool stays between its DequantizeLinear and QuantizeLinear
        producer = {name: n for n in checked.model.graph.node for name in n.output}
        pool = next(n for n in checked.model.graph.node if n.op_type == "MaxPool")
        assert producer[pool.input[0]].op_type == "DequantizeLinear"


@formats
def test_matmul_with_float_result(form, fused):
    text = "m (float[N,16] x) => (float[N,4] y) { h = MatMul(x, w) y = Softplus(h) }"
    ops = fused(text, {"w": normal(16, 4)}, normal(8, 16), format=form)
    assert ops == {"MatMulIntegerToFloat": 1, "Softplus": 1}


@formats
def test_a_chain_of_products(form, fused):
    text = "m (float[N,16] x) => (float[N,4] y) { h = MatMul(x, w) y = MatMul(h, v) }"
    ops = fused(text, {"w": normal(16, 16), "v": normal(16, 4, seed=1)}, normal(8, 16), format=form)
    assert ops == {"QLinearMatMul": 2}


@formats
def test_a_product_of_activations(form, fused):
    text = "m (float[N,6,6] x) => (float[N,6,6] y) { y = MatMul(x, x) }"
    assert fused(text, {}, normal(8, 6, 6), format=form) == {"QLinearMatMul": 1}


@formats
@pytest.mark.parametrize(
    ("body", "operator"),
    [
        ("a = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, u) m = Add(a, d)", "QLinearAdd"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, u) m = Mul(a, d)", "QLinearMul"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) m = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)", "QLinearAveragePool"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) m = GlobalAveragePool(a)", "QLinearGlobalAveragePool"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) m = LeakyRelu<alpha=0.1>(a)", "QLinearLeakyRelu"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) m = Sigmoid(a)", "QLinearSigmoid"),
        ("a = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, k) m = Concat<axis=1>(a, d)", "QLinearConcat"),
    ],
)
def test_operators_between_convs(form, body, operator, fused):
    arrays = {"w": normal(8, 4, 3, 3, scale=0.2)}
    if "u)" in body:
        arrays["u"] = normal(8, 4, 3, 3, seed=1, scale=0.2)
    if "k)" in body:
        arrays["k"] = normal(8, 4, 3, 3, seed=1, scale=2)  # ten times the range: requantized
    channels = 16 if "Concat" in body else 8
    arrays["v"] = normal(4, channels, 1, 1, seed=2, scale=0.2)
    # a wide pointwise Conv behind one pixel is quantized because its output is the graph's
    ops = fused(conv_body(f"{body} y = Conv(m, v)"), arrays, X, format=form, agreement_db=28)
    assert ops == {"QLinearConv": 3 if "d = Conv" in body else 2, operator: 1}


@formats
def test_concat_with_one_scale_moves_codes(form, fused):
    """In QDQ form onnxruntime makes a QLinearConcat of it, which finds equal scales and copies."""
    body = "a = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(x, u) m = Concat<axis=1>(a, d) y = Conv(m, v)"
    arrays = {"w": normal(8, 4, 3, 3), "u": normal(8, 4, 3, 3, seed=1), "v": normal(4, 16, 1, 1, seed=2)}
    ops = fused(conv_body(body), arrays, X, format=form)
    assert ops == {"QLinearConv": 3, "Concat" if form == "qlinear" else "QLinearConcat": 1}


@formats
@pytest.mark.parametrize(
    ("mover", "arrays"),
    [
        ("MaxPool<kernel_shape=[2,2], strides=[1,1], pads=[0,0,1,1]>(a)", {}),
        ("Transpose<perm=[0,1,3,2]>(a)", {}),
        ("Reshape(a, k)", {"k": np.array([2, 8, 4, 16])}),
        ("Slice(a, k, e)", {"k": np.array([0, 0, 1, 0]), "e": np.array([2, 8, 7, 8])}),
        ('Resize<mode="nearest">(a, , k)', {"k": np.array([1, 1, 2, 2], np.float32)}),
        ("DepthToSpace<blocksize=2>(a)", {}),
        ("Gather<axis=2>(a, k)", {"k": np.array([1, 3, 5])}),
    ],
)
def test_movers_work_on_codes(form, mover, arrays, fused):
    channels = 2 if "Depth" in mover else 8
    body = f"a = Conv<pads=[1,1,1,1]>(x, w, b) m = {mover} y = Conv(m, v)"
    ops = fused(conv_body(body), {**W, "v": normal(4, channels, 1, 1, seed=2), **arrays}, X, format=form)
    assert ops == {"QLinearConv": 2, mover.split("(")[0].split("<")[0]: 1}


@formats
def test_a_residual_block(form, fused):
    body = """a = Conv<pads=[1,1,1,1]>(x, w1, b1) r = Relu(a) c = Conv<pads=[1,1,1,1]>(r, w2) s = Add(c, r) t = Relu(s)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t) y = Conv<pads=[1,1,1,1]>(p, w3)"""
    arrays = {
        "w1": normal(8, 4, 3, 3, scale=0.2), "b1": normal(8), "w2": normal(8, 8, 3, 3, scale=0.2),
        "w3": normal(8, 8, 3, 3, scale=0.2),
    }  # fmt: skip
    ops = fused(conv_body(body), arrays, X, format=form)
    assert ops == {"QLinearConv": 3, "QLinearAdd": 1, "MaxPool": 1}


@formats
@pytest.mark.parametrize("symmetric", [False, True])
def test_int8_activations_in_a_plain_chain(form, symmetric, fused):
    body = "a = Conv<pads=[1,1,1,1]>(x, w, b) y = Conv(a, v)"
    arrays = {**W, "v": normal(4, 8, 1, 1, seed=2)}
    ops = fused(conv_body(body), arrays, X, format=form, activations="int8", symmetric_activations=symmetric)
    assert ops == {"QLinearConv": 2}


@formats
def test_nothing_is_fused_away_without_the_default_domain_alone(form, fused, tmp_path):
    """The file itself holds operators of ai.onnx only; the fused ones appear when onnxruntime loads it."""
    text = "m (float[N,16] x) => (float[N,4] y) { y = Gemm(x, w, b) }"
    checked = quantize_and_check(build(text, {"w": normal(16, 4), "b": normal(4)}), {"x": normal(8, 16)}, format=form)
    assert "QGemm" not in checked.ops
    assert optimized_ops(checked.model, tmp_path / "o.onnx")["QGemm"] == 1
