"""The spec engine as a processor without VNNI, against NumPy models of the instruction for every form of a product."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qtool import reference
from qtool.errors import ConfigError
from qtool.runtime import create_session, require_engine
from qtool.runtime.spec.saturating import DOMAIN, Saturating, on_codes
from qtool.runtime.spec.session import SpecSession
from tests.models import build


def codes(seed: int, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    """Large ones, so that pairs saturate."""
    random = np.random.default_rng(seed)
    if dtype == np.uint8:
        return random.integers(150, 256, shape).astype(np.uint8)
    return (random.integers(90, 128, shape) * random.choice([-1, 1, 1], shape)).astype(np.int8)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, Saturating]:
    saturating = Saturating()
    (y,) = SpecSession(model, saturating=saturating, num_threads=1).run(feeds).values()
    return y, saturating


def saturated(a: np.ndarray, b: np.ndarray, za: int, zb: np.ndarray | int = 0) -> np.ndarray:
    """The product of codes with zero points: saturating pairs of the codes as they are, then sums."""
    k = a.shape[1]
    wide_a, wide_b, zeros = a.astype(np.int64), b.astype(np.int64), np.asarray(zb, np.int64)
    total = reference.matmul_saturating(a, b) - za * wide_b.sum(axis=0) - zeros * wide_a.sum(axis=1, keepdims=True)
    return np.asarray(total + k * za * zeros)


@pytest.mark.parametrize("k", [1, 6, 7, 33])
def test_matmul_integer(k: int) -> None:
    a, b = codes(k, 5, k), codes(k + 1, k, 3, dtype=np.int8)
    text = f"g (uint8[5,{k}] a) => (int32[5,3] y) {{ [product] y = MatMulInteger(a, b, za, zb) }}"
    zero, zeros = np.uint8(7), np.array([0, 3, -2], np.int8)
    y, engine = run(build(text, {"b": b, "za": zero, "zb": zeros}), {"a": a})
    np.testing.assert_array_equal(y, saturated(a, b, 7, zeros))
    layer = engine.record["product"]
    assert (layer.pairs, layer.rows) == (5 * ((k + 1) // 2) * 3, 5)
    np.testing.assert_array_equal(layer.columns, reference.count_saturating_pairs(a, b))
    assert layer.saturated == layer.columns.sum()


@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((6,), (6, 3)), ((2, 6), (6,)), ((2, 4, 6), (6, 3)), ((2, 4, 6), (2, 6, 3)), ((6,), (6,))]
)
def test_shapes_of_numpy_matmul(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = codes(1, *a_shape), codes(2, *b_shape, dtype=np.int8)
    out = reference.matmul_integer(a, b).shape
    text = (
        f"g (uint8[{','.join(map(str, a_shape))}] a) => (int32{'[' + ','.join(map(str, out)) + ']' if out else ''} y) "
        "{ y = MatMulInteger(a, b) }"
    )
    y, engine = run(build(text, {"b": b}), {"a": a})
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    lefts = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    rights = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    expected = np.empty((*batch, left.shape[-2], right.shape[-1]), np.int64)
    for at in np.ndindex(*batch):
        expected[at] = saturated(lefts[at], rights[at], 0)
    np.testing.assert_array_equal(y, expected.reshape(out))
    assert list(engine.record) == ["y"]  # a node without a name is known by its output


def test_qlinear_matmul_requantizes_the_saturated_sum() -> None:
    a, b = codes(3, 4, 10), codes(4, 10, 3, dtype=np.int8)
    text = "g (uint8[4,10] a) => (uint8[4,3] y) { y = QLinearMatMul(a, sa, za, b, sb, zb, sy, zy) }"
    sb = np.array([0.1, 0.2, 0.05], np.float32)
    arrays = {
        "b": b,
        "sa": np.float32(0.02),
        "za": np.uint8(100),
        "sb": sb,
        "zb": np.zeros(3, np.int8),
        "sy": np.float32(4),
        "zy": np.uint8(128),
    }
    y, _ = run(build(text, arrays), {"a": a})
    acc = saturated(a, b, 100).astype(np.int32)
    expected = reference.requantize(acc, arrays["sa"], sb, arrays["sy"], arrays["zy"], "multiplier")
    np.testing.assert_array_equal(y, expected)
    exact = create_session(build(text, arrays), engine="spec").run({"a": a})["y"]
    assert np.abs(y.astype(int) - exact.astype(int)).max() > 1


def conv_by_hand(x: np.ndarray, w: np.ndarray, zx: int, group: int, pad: int, stride: int, dilation: int) -> np.ndarray:
    """One output at a time: the vector runs over taps, then over the channels of the group."""
    size = (x.shape[2] + 2 * pad - dilation * (w.shape[2] - 1) - 1) // stride + 1
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=zx)
    per_in, per_out = w.shape[1], w.shape[0] // group
    y = np.empty((x.shape[0], w.shape[0], size, size), np.int64)
    for n, m, i, j in np.ndindex(*y.shape):
        first = m // per_out * per_in
        a, b = [], []
        for u, v in np.ndindex(*w.shape[2:]):
            row, col = i * stride + u * dilation, j * stride + v * dilation
            a += list(padded[n, first : first + per_in, row, col])
            b += list(w[m, :, u, v])
        left, right = np.array([a], np.uint8), np.array(b, np.int8)[:, None]
        y[n, m, i, j] = saturated(left, right, zx)[0, 0]
    return y


@pytest.mark.parametrize(
    ("group", "channels", "filters", "pad", "stride", "dilation"),
    [(1, 3, 4, 1, 1, 1), (1, 4, 2, 0, 2, 1), (2, 4, 6, 1, 1, 2), (3, 3, 6, 1, 2, 1)],
)
def test_conv_pairs_neighbouring_channels_of_a_tap(
    group: int, channels: int, filters: int, pad: int, stride: int, dilation: int
) -> None:
    x = codes(5, 2, channels, 6, 6)
    w = codes(6, filters, channels // group, 3, 3, dtype=np.int8)
    expected = conv_by_hand(x, w, 131, group, pad, stride, dilation)
    attributes = (
        f"group={group}, pads=[{pad},{pad},{pad},{pad}], strides=[{stride},{stride}], dilations=[{dilation},{dilation}]"
    )
    shape = ",".join(map(str, expected.shape))
    text = f"g (uint8[2,{channels},6,6] x) => (int32[{shape}] y) {{ y = ConvInteger<{attributes}>(x, w, zx) }}"
    y, engine = run(build(text, {"w": w, "zx": np.uint8(131)}), {"x": x})
    np.testing.assert_array_equal(y, expected)
    layer = engine.record["y"]
    depth = channels // group * 9
    assert layer.pairs == expected.size * ((depth + 1) // 2)
    assert layer.saturated > 0


def test_a_depthwise_conv_and_other_signs_are_exact() -> None:
    x, w = codes(7, 1, 4, 5, 5), codes(8, 4, 1, 3, 3, dtype=np.int8)
    text = "g (uint8[1,4,5,5] x) => (int32[1,4,3,3] y) { y = ConvInteger<group=4>(x, w) }"
    y, engine = run(build(text, {"w": w}), {"x": x})
    np.testing.assert_array_equal(y, reference.conv_integer(x, w, group=4))
    assert not engine.record
    for left, right in ((np.uint8, np.uint8), (np.int8, np.int8), (np.int8, np.uint8)):
        a, b = codes(9, 2, 8, dtype=left), codes(10, 8, 2, dtype=right)
        kind = np.dtype(left).name
        y, engine = run(build(f"g ({kind}[2,8] a) => (int32[2,2] y) {{ y = MatMulInteger(a, b) }}", {"b": b}), {"a": a})
        np.testing.assert_array_equal(y, reference.matmul_integer(a, b))
        assert not engine.record


QDQ = """
g (float[N,6] x) => (float[N,4] y) {{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis={axis}>(w, sw, zw)
  {bias}
  [product] y = {op}
}}"""


@pytest.mark.parametrize(
    ("op", "axis", "bias"),
    [("MatMul(xd, wd)", 1, ""), ("Gemm<transB=1>(xd, wd, bd)", 0, "bd = DequantizeLinear<axis=0>(b, sb)")],
)
def test_qdq_products_are_computed_on_codes(op: str, axis: int, bias: str) -> None:
    w = codes(11, *((6, 4) if axis else (4, 6)), dtype=np.int8)
    sw = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    arrays: dict[str, Any] = {
        "w": w,
        "sw": sw,
        "zw": np.zeros(4, np.int8),
        "sx": np.float32(0.01),
        "zx": np.uint8(3),
    }
    b = np.array([100, -100, 50, 0], np.int32)
    if bias:
        arrays |= {"b": b, "sb": sw * np.float32(0.01)}
    model = build(QDQ.format(op=op, axis=axis, bias=bias), arrays)
    a = codes(12, 3, 6)
    x = (a.astype(np.float32) - 3) * np.float32(0.01)
    y, engine = run(model, {"x": x})
    acc = saturated(a, w if axis else w.T, 3) + (b if bias else 0)
    np.testing.assert_allclose(y, acc * (0.01 * sw.astype(np.float64)), rtol=1e-5, atol=1e-5)
    assert engine.record["product"].saturated == reference.count_saturating_pairs(a, w if axis else w.T).sum()
    assert [n.op_type for n in on_codes(model).graph.node].count("DequantizeLinear") == int(bool(bias))
    assert len(model.graph.node) == (5 if bias else 4)  # the model given is not changed


CONV = """
g (float[1,2,4,4] x) => (float[1,4,2,2] y) {{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis=0>(w, sw, zw)
  [product] m = Conv(xd, wd, b)
  r = Relu(m)
  rq = QuantizeLinear(r, sy, {zero})
  y = DequantizeLinear(rq, sy, {zero})
}}"""
CONV_ARRAYS: dict[str, Any] = {
    "w": codes(13, 4, 2, 3, 3, dtype=np.int8),
    "sw": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
    "zw": np.zeros(4, np.int8),
    "sx": np.float32(0.01),
    "zx": np.uint8(3),
    "sy": np.float32(0.25),
    "b": np.array([1, -1, 0.5, 0], np.float32),
}


def test_a_qdq_conv_is_the_fused_kernel_with_its_clamp_and_bias() -> None:
    model = build(CONV.format(zero="z0"), {**CONV_ARRAYS, "z0": np.uint8(0)})
    assert [n.op_type for n in on_codes(model).graph.node] == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    x = codes(14, 1, 2, 4, 4)
    y, engine = run(model, {"x": (x.astype(np.float32) - 3) * np.float32(0.01)})
    bias = np.rint(CONV_ARRAYS["b"] / (np.float32(0.01) * CONV_ARRAYS["sw"])).astype(np.int64)
    acc = conv_by_hand(x, CONV_ARRAYS["w"], 3, 1, 0, 1, 1) + bias.reshape(-1, 1, 1)
    sw = CONV_ARRAYS["sw"].reshape(-1, 1, 1)
    expected = reference.requantize(
        acc.astype(np.int32), np.float32(0.01), sw, np.float32(0.25), np.uint8(0), "multiplier"
    )
    np.testing.assert_array_equal(y, expected * np.float32(0.25))
    assert engine.record["product"].saturated > 0


def test_a_qdq_conv_that_onnxruntime_runs_in_float_stays_float() -> None:
    model = build(CONV.format(zero="zx"), CONV_ARRAYS)  # the Relu cuts what zero point 3 could represent
    assert on_codes(model) is model


def test_scales_that_do_not_belong_to_columns_stay_float() -> None:
    text = QDQ.format(op="MatMul(xd, wd)", axis=0, bias="")
    arrays = {"w": codes(15, 6, 4, dtype=np.int8), "sw": np.ones(6, np.float32), "zw": np.zeros(6, np.int8)}
    model = build(text, {**arrays, "sx": np.float32(0.01), "zx": np.uint8(3)})
    assert on_codes(model) is model
    assert DOMAIN not in {opset.domain for opset in on_codes(model).opset_import}


def test_seven_bit_weights_are_exact() -> None:
    a, b = codes(16, 4, 20), np.clip(codes(17, 20, 3, dtype=np.int8), -64, 63)
    model = build("g (uint8[4,20] a) => (int32[4,3] y) { y = MatMulInteger(a, b) }", {"b": b})
    y, engine = run(model, {"a": a})
    np.testing.assert_array_equal(y, reference.matmul_integer(a, b))
    assert (engine.record["y"].saturated, engine.record["y"].pairs) == (0, 4 * 10 * 3)


def test_it_is_an_engine() -> None:
    require_engine("spec-avx2")
    model = build(
        "g (uint8[1,2] a) => (int32[1,1] y) { y = MatMulInteger(a, b) }", {"b": np.array([[127], [127]], np.int8)}
    )
    a = np.array([[255, 255]], np.uint8)
    assert create_session(model, engine="spec-avx2").run({"a": a})["y"].tolist() == [[32767]]
    assert create_session(model, engine="spec").run({"a": a})["y"].tolist() == [[64770]]
    with pytest.raises(ConfigError, match="Unknown engine 'avx2'; expected one of ort, spec, spec-avx2"):
        require_engine("avx2")
