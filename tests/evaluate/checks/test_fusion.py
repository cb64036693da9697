"""Case 64: how many quantized products onnxruntime computes on codes, and why the others not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qtool.evaluate.checks import fusion
from tests.evaluate.checks.subjects import f32, subject
from tests.models import build, normal

CONV = """
g (float[1,4,5,5] x) => (float[1,4,5,5] y) {{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis=0>(w, sw, zw)
  bd = DequantizeLinear<axis=0>(b, sb, zb)
  [conv] m = Conv(xd, wd, {bias})
  {tail}
}}"""
GEMM = """
g (float[3,4] x) => (float[3,4] y) {{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis=1>(w, sw, zw)
  bd = DequantizeLinear<axis=0>(b, sb, zb)
  [gemm] y = Gemm<{attributes}>({x}, wd, {bias})
}}"""
CODES = "mq = QuantizeLinear({m}, sm, {zm})\n y = DequantizeLinear(mq, sm, {zm})"
SCALE = f32(0.01, 0.02, 0.05, 0.2)
WEIGHT = np.random.default_rng(0).integers(-127, 128, (4, 4)).astype(np.int8)
ARRAYS: dict[str, Any] = {
    "w": WEIGHT,
    "sx": np.float32(0.01),
    "zx": np.uint8(128),
    "sw": SCALE,
    "zw": np.zeros(4, np.int8),
    "b": np.array([10, -20, 30, 40], np.int32),
    "sb": SCALE * np.float32(0.01),
    "zb": np.zeros(4, np.int32),
    "bf": f32(1, 2, 3, 4),
    "sm": np.float32(0.02),
    "z0": np.uint8(0),
}


def graph(text: str, **arrays: Any) -> onnx.ModelProto:
    """A model with those of the arrays that it reads."""
    every = {**ARRAYS, **arrays}
    return build(text, {name: array for name, array in every.items() if f"{name}," in text or f"{name})" in text})


def conv(tail: str, bias: str = "bd") -> onnx.ModelProto:
    text = CONV.format(tail=tail, bias=bias)
    text = text if bias == "bd" else text.replace("bd = DequantizeLinear<axis=0>(b, sb, zb)", "")
    return graph(text, w=WEIGHT[:, :, None, None])


def checked(model: onnx.ModelProto, *shape: int) -> tuple[int, int, list[str]]:
    result = fusion.check(subject(model, model, normal(*shape)))
    assert result.state == ("flagged" if result.findings else "ok")
    n, m = result.values["fused"], result.values["products"]
    assert result.summary.startswith(f"onnxruntime computes {n} of {m} quantized products (")
    return int(n or 0), int(m or 0), [f"{f.subject}: {f.text} {f.suggestion}" for f in result.findings]


@pytest.mark.parametrize(
    ("tail", "bias"),
    [
        (CODES.format(m="m", zm="zx"), "bd"),
        ("r = Relu(m)\n" + CODES.format(m="r", zm="z0"), "bd"),
        (CODES.format(m="m", zm="zx"), "bf"),  # onnxruntime quantizes it
    ],
    ids=["codes", "relu", "float bias"],
)
def test_a_conv_between_codes_is_fused(tail: str, bias: str) -> None:
    assert checked(conv(tail, bias), 1, 4, 5, 5) == (1, 1, [])


@pytest.mark.parametrize(
    ("tail", "bias", "reason"),
    [
        ("y = Identity(m)", "bd", "no QuantizeLinear takes its output alone"),
        ("y = Relu(m)", "bd", "no QuantizeLinear takes its output alone"),
        (
            "r = Relu(m)\n" + CODES.format(m="r", zm="zx"),
            "bd",
            "Relu behind it cuts values that its output range still has",
        ),
    ],
    ids=["no Q", "relu, no Q", "relu with a zero point"],
)
def test_a_conv_that_runs_in_float_is_listed_with_the_reason(tail: str, bias: str, reason: str) -> None:
    expected = [f"conv: Conv runs in float: {reason} --exclude 'conv'"]
    assert checked(conv(tail, bias), 1, 4, 5, 5) == (0, 1, expected)


@pytest.mark.parametrize(
    ("attributes", "bias", "reason"),
    [
        ("alpha=1.0", "bd", None),
        ("alpha=0.5", "bd", "alpha and beta are not both 1"),
        ("alpha=1.0", "bf", "its bias is float; expected int32 through DequantizeLinear"),
    ],
)
def test_gemm(attributes: str, bias: str, reason: str | None) -> None:
    text = GEMM.format(attributes=attributes, bias=bias, x="xd")
    text = text if bias == "bd" else text.replace("bd = DequantizeLinear<axis=0>(b, sb, zb)", "")
    expected = [] if reason is None else [f"gemm: Gemm runs in float: {reason} --exclude 'gemm'"]
    assert checked(graph(text), 3, 4) == (int(reason is None), 1, expected)


def test_operators_on_codes_count_and_a_float_model_has_none() -> None:
    text = """
    g (float[3,4] x) => (float[3,4] y) {
      q, s, z = DynamicQuantizeLinear(x)
      [product] m = MatMulInteger(q, w, z, zw)
      f = Cast<to=1>(m)
      y = Mul(f, s)
    }"""
    assert checked(graph(text), 3, 4) == (1, 1, [])
    plain = build("g (float[3,4] x) => (float[3,4] y) { y = MatMul(x, w) }", {"w": normal(4, 4)})
    result = fusion.check(subject(plain, plain, normal(3, 4)))
    assert (result.state, result.summary) == ("skipped", "The model has no quantized MatMul, Gemm or Conv.")


def test_a_node_without_a_name_is_known_by_its_output() -> None:
    model = conv("y = Relu(m)")
    model.graph.node[4].name = ""
    assert model.graph.node[4].op_type == "Conv"
    expected = ["m: Conv runs in float: no QuantizeLinear takes its output alone "]
    assert checked(model, 1, 4, 5, 5) == (0, 1, expected)
