"""The numbers of whole models against hand formulas (cases C01-C15; rounding tables are in tests/kernels)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from tests.models import FORMATS, Checked, build, conv_bound, normal, product_bound, quantize_and_check, run, uniform

formats = pytest.mark.parametrize("form", FORMATS)

MATMUL = "m (float[N,4] x) => (float[N,3] y) { [mm] y = MatMul(x, w) }"


def asymmetric(low: float, high: float, qmin: int, steps: int = 255) -> tuple[float, int]:
    """The textbook formula, written once more."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / steps)
    return float(scale), int(np.rint(qmin - low / float(scale)))


# --------------------------------------------------------------------------------------------------- C01, C02: products


@formats
@pytest.mark.parametrize(("activations", "symmetric"), [("uint8", False), ("int8", False), ("int8", True)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_c01_matmul(form, activations, symmetric, per_channel):
    w, x = normal(4, 3), normal(64, 4, seed=1)
    model = build(MATMUL, {"w": w})
    checked = quantize_and_check(
        model,
        {"x": x},
        format=form,
        activations=activations,
        symmetric_activations=symmetric,
        per_channel=per_channel,
    )
    for name, values in (("x", x), ("y", checked.expected["y"])):
        if symmetric:
            expected = float(np.float32(float(np.abs(values).max()) / 127)), 0
        else:
            expected = asymmetric(float(values.min()), float(values.max()), 0 if activations == "uint8" else -128)
        assert (checked.scale(name), checked.zero_point(name)) == expected
    w_scale = (np.abs(w).max(axis=0 if per_channel else None).astype(np.float64) / 127).astype(np.float32)
    params = checked.weight("mm")
    assert np.array_equal(params.scale, w_scale)
    assert not params.zero_point.any()
    codes = next(t for t in checked.initializers.values() if t.shape == (4, 3))
    assert np.array_equal(codes, np.rint(w / w_scale).astype(np.int8))
    assert (checked.error() <= product_bound(np.matmul, x, w, checked.scale("x"), w_scale, checked.scale("y"))).all()


@formats
@pytest.mark.parametrize("per_channel", [True, False])
def test_c02_conv_bias_relu(form, per_channel):
    w, b = normal(4, 3, 3, 3), normal(4, seed=1)
    model = build(
        "m (float[N,3,6,6] x) => (float[N,4,6,6] y) { [c] h = Conv<pads=[1,1,1,1]>(x, w, b) [r] y = Relu(h) }",
        {"w": w, "b": b},
    )
    x = normal(2, 3, 6, 6, seed=2)
    checked = quantize_and_check(model, {"x": x}, format=form, per_channel=per_channel)
    assert (checked.error() <= conv_bound(model, checked, "c", x)).all()
    scale = np.float32(checked.params("x").scale) * checked.weight("c").scale
    codes = next(t for t in checked.initializers.values() if t.dtype == np.int32)
    assert np.array_equal(codes, np.rint(b.astype(np.float64) / scale.astype(np.float64)))
    if form == "qdq":
        node = next(n for n in checked.model.graph.node if n.op_type == "DequantizeLinear" and "b" in n.input[0][:1])
        assert np.array_equal(checked.initializers[node.input[1]], scale)


# -------------------------------------------------------------------------------------- C05-C07: zeros, dead, symmetric


@formats
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.linspace(2, 10, 16), (10 / 255, 0)),
        (np.linspace(-4, -1, 16), (4 / 255, 255)),
        (np.full(16, 5.0), (5 / 255, 0)),
        (np.zeros(16), (1.0, 0)),
    ],
)
def test_c05_ranges_include_zero(form, values, expected):
    model = build(MATMUL, {"w": normal(4, 3)})
    checked = quantize_and_check(model, {"x": values.reshape(4, 4).astype(np.float32)}, format=form)
    assert (checked.scale("x"), checked.zero_point("x")) == (float(np.float32(expected[0])), expected[1])


@formats
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_c05_padding_is_exactly_zero(form, activations):
    """x is 5 everywhere and all weights are 1: an output is 5 times the number of places that are not padding."""
    model = build(
        "m (float[1,1,4,4] x) => (float[1,1,4,4] y) { [c] y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": np.ones((1, 1, 3, 3), np.float32)},
    )
    checked = quantize_and_check(
        model, {"x": np.full((1, 1, 4, 4), 5.0, np.float32)}, format=form, activations=activations
    )
    steps = checked.got["y"] / checked.scale("y")
    counts = np.array([[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]])
    # 9 places are code 255: a place is 255/9 codes, and padding adds nothing
    assert np.abs(steps[0, 0] - counts * 255 / 9).max() <= 0.5 + 1e-3
    assert np.array_equal(checked.got["y"], checked.fast["y"])


@formats
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
def test_c06_a_zero_channel_gives_exactly_its_bias(form, op):
    w, b = normal(36, 4), np.array([1, -2, 0.5, 0], np.float32)
    w[:, 1] = 0
    if op == "Conv":
        text, x = "m (float[N,4,4,4] x) => (float[N,4,2,2] y) { [p] y = Conv(x, w) }", normal(4, 4, 4, 4, seed=1)
        arrays = {"w": w.T.reshape(4, 4, 3, 3).copy()}
    elif op == "Gemm":
        text, x = "m (float[N,36] x) => (float[N,4] y) { [p] y = Gemm(x, w, b) }", normal(8, 36, seed=1)
        arrays = {"w": w, "b": b}
    else:
        text, x, arrays = (
            "m (float[N,36] x) => (float[N,4] y) { [p] y = MatMul(x, w) }",
            normal(8, 36, seed=1),
            {"w": w},
        )
    checked = quantize_and_check(build(text, arrays), {"x": x}, format=form)
    assert float(checked.weight("p").scale[1]) == 1.0
    dead = checked.got["y"][:, 1]
    if op != "Gemm":
        assert not dead.any()
        assert not checked.fast["y"][:, 1].any()
    else:  # the bias is rounded to a multiple of sx * 1
        assert np.abs(dead + 2).max() <= checked.scale("x") / 2
        assert (dead == dead[0]).all()


@formats
@pytest.mark.parametrize("per_channel", [True, False])
def test_c06_an_all_zero_weight(form, per_channel):
    model = build(MATMUL, {"w": np.zeros((4, 3), np.float32)})
    checked = quantize_and_check(model, {"x": normal(8, 4)}, format=form, per_channel=per_channel)
    assert not checked.got["y"].any()
    assert (checked.weight("mm").scale == 1).all()
    assert checked.scale("y") == 1.0


@formats
@pytest.mark.parametrize(("activations", "zero"), [("int8", 0), ("uint8", 128), ("int16", 0), ("uint16", 32768)])
def test_c07_symmetric_zero_points(form, activations, zero):
    if form == "qlinear" and activations not in ("int8", "uint8"):
        pytest.skip("qlinear has no 16-bit operators")
    x = np.array([[-3, 3, 0, 1]] * 4, np.float32)
    checked = quantize_and_check(
        build(MATMUL, {"w": normal(4, 3)}), {"x": x}, format=form, activations=activations, symmetric_activations=True
    )
    assert [checked.zero_point(t) for t in checked.result.plan.tensors] == [zero] * len(checked.result.plan.tensors)
    assert checked.scale("x") == float(np.float32(3 / (127 if activations.endswith("t8") else 32767)))


# ------------------------------------------------------------------------------------------------- C09: types as asked


COMBINATIONS = [
    *[("qlinear", a, w) for a, w in (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))],
    *[("qdq", a, w) for a in ("uint8", "int8", "uint16", "int16") for w in ("int8", "uint8")],
    *[("qdq", "uint8", w) for w in ("int16", "uint16", "int4", "uint4", "float8e4m3fn", "float8e5m2")],
    ("qdq", "int16", "int4"),
]
ONNX_TYPES = {
    "int8": onnx.TensorProto.INT8, "uint8": onnx.TensorProto.UINT8, "int16": onnx.TensorProto.INT16,
    "uint16": onnx.TensorProto.UINT16, "int4": onnx.TensorProto.INT4, "uint4": onnx.TensorProto.UINT4,
    "float8e4m3fn": onnx.TensorProto.FLOAT8E4M3FN, "float8e5m2": onnx.TensorProto.FLOAT8E5M2,
}  # fmt: skip
# relative error of a weight: half a step of an integer, half a unit in the last place of a minifloat
WEIGHT_DB = {"int4": 16, "uint4": 16, "float8e4m3fn": 28, "float8e5m2": 22}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
@pytest.mark.parametrize(("form", "activations", "weights"), COMBINATIONS)
def test_c09_types_are_what_was_asked(form, activations, weights, op, per_channel):
    if op == "Conv":
        text, x = "m (float[N,4,6,6] x) => (float[N,4,4,4] y) { [p] y = Conv(x, w, b) }", normal(4, 4, 6, 6, seed=1)
        arrays = {"w": normal(4, 4, 3, 3), "b": normal(4, seed=2)}
    elif op == "Gemm":
        text, x = "m (float[N,16] x) => (float[N,4] y) { [p] y = Gemm(x, w, b) }", normal(32, 16, seed=1)
        arrays = {"w": normal(16, 4), "b": normal(4, seed=2)}
    else:
        text, x = "m (float[N,16] x) => (float[N,4] y) { [p] y = MatMul(x, w) }", normal(32, 16, seed=1)
        arrays = {"w": normal(16, 4)}
    model = build(text, arrays)
    checked = quantize_and_check(
        model, {"x": x}, format=form, activations=activations, weights=weights, per_channel=per_channel
    )
    shape = arrays["w"].shape
    stored = [t for t in checked.model.graph.initializer if tuple(t.dims) == shape]
    assert [t.data_type for t in stored] == [ONNX_TYPES[weights]]
    assert stored[0].HasField("raw_data")
    quantize = next(n for n in checked.model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    zero = next(t for t in checked.model.graph.initializer if t.name == quantize.input[2])
    assert zero.data_type == ONNX_TYPES[activations]
    assert checked.weight("p").scale.shape == ((4,) if per_channel else ())
    assert checked.sqnr() >= WEIGHT_DB.get(weights, 36)
    floor = 21 if {activations, weights} & {"int16", "uint16", "int4", "uint4"} else 19 if "float8" in weights else 13
    assert checked.model.opset_import[0].version == max(17, floor)
    assert checked.model.ir_version >= {13: 7, 19: 9, 21: 10}[floor]


# -------------------------------------------------------------------------------------- C10, C12-C15: storage and sums


@formats
def test_c10_a_range_below_zero_reaches_its_lower_end(form):
    """z = 255: code 0 stands for -255 s, which no arithmetic in 8 bits can hold."""
    model = build("m (float[N,4] x) => (float[N,4] y) { [mm] y = MatMul(x, w) }", {"w": np.eye(4, dtype=np.float32)})
    x = -uniform(16, 4, low=0, high=255, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert (checked.scale("x"), checked.zero_point("x")) == (1.0, 255)
    assert checked.got["y"].min() <= -250
    w = np.eye(4)
    bound = product_bound(np.matmul, x, w, 1.0, checked.weight("mm").scale, checked.scale("y"))
    assert (checked.error() <= bound).all()


@pytest.mark.parametrize(("weights", "share"), [("int8", 0.27), ("int4", 0.15), ("uint4", 0.15)])
def test_c12_file_sizes(tmp_path, weights, share):
    source = tmp_path / "model.onnx"
    model = build("m (float[N,256] x) => (float[N,256] y) { [mm] y = MatMul(x, w) }", {"w": normal(256, 256)})
    source.write_bytes(model.SerializeToString())
    output = tmp_path / "out.onnx"
    result = qtool.quantize(source, {"x": normal(8, 256, seed=1)}, output=output, weights=weights, format="qdq")
    assert result.bytes_before == source.stat().st_size
    assert result.bytes_after == output.stat().st_size
    assert result.bytes_after <= share * result.bytes_before
    quantized = onnx.load(output)
    for tensor in quantized.graph.initializer:
        assert tensor.HasField("raw_data")
        assert not tensor.int32_data
        assert not tensor.float_data
    codes = next(t for t in quantized.graph.initializer if list(t.dims) == [256, 256])
    assert len(codes.raw_data) == 256 * 256 // (1 if weights == "int8" else 2)


def test_c12_packing_of_an_odd_number_of_codes(tmp_path):
    """[1,-2,3,-4,5] with a scale of 1 is E1 C3 05; the range must reach -8 for that, so a sixth row does."""
    w = np.array([[1], [-2], [3], [-4], [5], [-8], [7]], np.float32)
    model = build("m (float[N,7] x) => (float[N,1] y) { [mm] y = MatMul(x, w) }", {"w": w})
    checked = quantize_and_check(model, {"x": normal(8, 7)}, format="qdq", weights="int4")
    codes = next(t for t in checked.model.graph.initializer if list(t.dims) == [7, 1])
    assert codes.raw_data == bytes([0xE1, 0xC3, 0x85, 0x07])
    checked = quantize_and_check(model, {"x": normal(8, 7)}, format="qdq", weights="uint4")
    codes = next(t for t in checked.model.graph.initializer if list(t.dims) == [7, 1])
    assert codes.raw_data == bytes([0x69, 0x4B, 0x0D, 0x0F])


@pytest.mark.parametrize("per_channel", [True, False])
def test_c13_a_float8_weight_reaches_its_largest_value(per_channel):
    w = normal(16, 4)
    w[3, 2] = 1000
    model = build("m (float[N,16] x) => (float[N,4] y) { [mm] y = MatMul(x, w) }", {"w": w})
    checked = quantize_and_check(
        model, {"x": normal(8, 16, seed=1)}, format="qdq", weights="float8e4m3fn", per_channel=per_channel
    )
    scale = checked.weight("mm").scale
    assert float(scale[2] if per_channel else scale) == float(np.float32(1000 / 448))
    codes = next(t for t in checked.initializers.values() if t.shape == (16, 4))
    assert float(codes[3, 2].astype(np.float32)) == 448.0


@formats
def test_c15_the_planner_warns_of_sums_that_may_wrap(form):
    model = build(
        "m (float[1,70000] x) => (float[1,1] y) { [mm] y = MatMul(x, w) }", {"w": normal(70_000, 1, scale=0.01)}
    )
    checked = quantize_and_check(model, {"x": normal(1, 70_000, seed=1)}, format=form)
    assert [note for note in checked.result.notes if "wrap" in note] == [
        "mm: sums 70000 products, which may wrap around in int32 (safe up to 66311 for uint8 x int8)"
    ]
    signed = quantize_and_check(model, {"x": normal(1, 70_000, seed=1)}, format=form, activations="int8")
    assert not [note for note in signed.result.notes if "wrap" in note]


@formats
def test_a_long_sum_within_the_limit_is_exact(form):
    """66 000 products of the largest codes: the accumulator reaches 2.1e9 and must not wrap."""
    model = build(
        "m (float[1,66000] x) => (float[1,1] y) { [mm] y = MatMul(x, w) }", {"w": np.ones((66_000, 1), np.float32)}
    )
    checked = quantize_and_check(model, {"x": np.ones((1, 66_000), np.float32)}, format=form)
    np.testing.assert_allclose(checked.got["y"], 66_000, rtol=1e-5)
    np.testing.assert_allclose(checked.fast["y"], 66_000, rtol=1e-5)


@formats
def test_values_outside_the_calibrated_range_saturate(form):
    model = build("m (float[N,4] x) => (float[N,3] y) { [mm] y = MatMul(x, w) }", {"w": np.eye(4, 3, dtype=np.float32)})
    checked = quantize_and_check(model, {"x": uniform(16, 4, low=-1, high=1, seed=1)}, format=form)
    feeds = {"x": np.array([[3e9, -3e9, np.inf, 0]], np.float32)}
    low, high = checked.params("y").range
    for optimize in (False, True):
        y = run(checked.model, feeds, optimize=optimize)["y"][0]
        np.testing.assert_allclose(y, [high, low, high], atol=2 * checked.scale("y"))


def test_a_file_and_memory_give_the_same_model(tmp_path: Path):
    model = build(MATMUL, {"w": normal(4, 3)})
    source = tmp_path / "model.onnx"
    source.write_bytes(model.SerializeToString())
    samples = {"x": normal(8, 4, seed=1)}
    result = qtool.quantize(source, samples, output=tmp_path / "q.onnx")
    assert result.model_path == tmp_path / "q.onnx"
    memory: Checked = quantize_and_check(model, samples)
    assert onnx.load(result.model_path).graph == memory.model.graph


@pytest.mark.parametrize(("weights", "poor"), [("int8", False), ("int2", True)])
def test_an_output_that_is_lost_is_said_aloud(weights, poor):
    """Two bits leave a dense layer some 4 dB: the file is valid, and of no use."""
    model = build("m (float[N,64] x) => (float[N,32] y) { y = MatMul(x, w) }", {"w": normal(64, 32)})
    result = qtool.quantize(model, {"x": normal(8, 64, seed=1)}, format="qdq", activations="uint16", weights=weights)
    assert (result.sqnr_db["y"] < 10) is poor
    notes = [note for note in result.notes if "usually broken" in note]
    assert bool(notes) is poor
    if poor:
        assert notes[0].startswith(f"output 'y' is {result.sqnr_db['y']:.1f} dB from the float model")
