"""MatMul and Gemm of dynamic mode: values, forms, odd shapes, and what onnxruntime fuses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qtool.errors import NothingToQuantizeError
from tests.dynamic.support import dynamic, optimized, product
from tests.models import build, normal

ONE = "m (float[A,64] x) => (float[A,8] y) { [p] y = MatMul(x, w) }"


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max(initial=0)))


def test_by_hand():
    """x in [-1, 2]: s = 3/255, z = 85. Columns of absmax 127 and 12.7: scales 1 and 0.1."""
    x = np.array([[2.0, -1.0], [0.5, 1.0]], np.float32)
    w = np.array([[127.0, 12.7], [-3.0, 1.0]], np.float32)
    done = dynamic(build("m (float[2,2] x) => (float[2,2] y) { y = MatMul(x, w) }", {"w": w}), {"x": x})
    s = np.float32(3 / 255)
    codes = np.array([[255, 0], [127, 170]]) - 85  # 0.5 / s = 42.5 rounds to 42
    total = codes @ np.array([[127, 127], [-3, 10]])
    close(done.got["y"], (total * s * np.array([1.0, 0.1])).astype(np.float32))


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("low", [0.0, -3.0, 1.0])
def test_values_are_those_of_the_formulas(weights, per_channel, low):
    x, w = normal(5, 64) + np.float32(low), normal(64, 8, seed=1)
    done = dynamic(build(ONE, {"w": w}), {"x": x}, weights=weights, per_channel=per_channel)
    close(done.got["y"], product(x, w, weights=weights, per_channel=per_channel))
    close(done.fast["y"], done.got["y"])
    assert done.ops == {"DynamicQuantizeLinear": 1, "MatMulInteger": 1, "Cast": 1, "Mul": 2}
    codes = next(t for t in done.model.graph.initializer if t.name == "w_quantized")
    assert codes.data_type == {"int8": onnx.TensorProto.INT8, "uint8": onnx.TensorProto.UINT8}[weights]
    assert codes.HasField("raw_data")


@pytest.mark.parametrize("fill", [0.0, -2.5, 4.0, 1e-30])
def test_constant_input(fill):
    """All zero, all negative, all positive and tiny: 0 stays exactly 0, the rest is within the bound."""
    x, w = np.full((3, 64), fill, np.float32), normal(64, 8)
    done = dynamic(build(ONE, {"w": w}), {"x": x})
    close(done.got["y"], product(x, w))
    if fill == 0.0:
        assert not done.got["y"].any()


def test_a_dead_column_stays_zero():
    w = normal(64, 8)
    w[:, 3] = 0
    done = dynamic(build(ONE, {"w": w}), {"x": normal(5, 64, seed=1)})
    assert not done.got["y"][:, 3].any()


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((64,), (64, 8)),
        ((64,), (64,)),
        ((5, 64), (64,)),
        ((2, 3, 64), (64,)),
        ((2, 3, 64), (64, 8)),
        ((2, 3, 64), (2, 64, 8)),
        ((64,), (2, 64, 8)),
        ((4, 1, 3, 64), (2, 64, 8)),
        ((0, 64), (64, 8)),
        ((2, 0, 64), (64, 8)),
        ((5, 1), (1, 8)),
        ((5, 64), (64, 1)),
    ],
)
def test_shapes(x, w, tmp_path):
    a, b = normal(*x), normal(*w, seed=1)
    rank = np.matmul(a, b).ndim
    dims = ",".join(f"d{i}" for i in range(len(x)))
    out = f"float[{','.join(f'o{i}' for i in range(rank))}]" if rank else "float"
    text = f"m (float[{dims}] x) => ({out} y) {{ y = MatMul(x, w) }}"
    done = dynamic(build(text, {"w": b}), {"x": a})
    close(done.got["y"], product(a, b) if a.size else np.zeros(done.got["y"].shape, np.float32))
    assert optimized(done.model, tmp_path / "o.onnx") == {"DynamicQuantizeMatMul": 1}


@pytest.mark.parametrize("x", [(64, 5), (2, 64, 5), (64,)])
def test_a_weight_on_the_left_is_uint8(x):
    """onnxruntime has no fused kernel for int8 there; asymmetric, one scale."""
    a, b = normal(6, 64), normal(*x, seed=1)
    dims = ",".join(f"d{i}" for i in range(len(x)))
    out = ",".join(f"o{i}" for i in range(np.matmul(a, b).ndim))
    done = dynamic(build(f"m (float[{dims}] x) => (float[{out}] y) {{ y = MatMul(w, x) }}", {"w": a}), {"x": b})
    assert done.sqnr() > 30
    assert next(t for t in done.model.graph.initializer if t.name == "w_quantized").data_type == onnx.TensorProto.UINT8


@pytest.mark.parametrize("bias", [(8,), (1, 8)])
def test_a_row_of_biases_is_fused(bias, tmp_path):
    text = "m (float[A,64] x) => (float[A,8] y) { h = MatMul(x, w) y = Add(h, b) }"
    b, x, w = normal(*bias, seed=2), normal(5, 64), normal(64, 8, seed=1)
    done = dynamic(build(text, {"w": w, "b": b}), {"x": x})
    close(done.got["y"], product(x, w) + b)
    assert optimized(done.model, tmp_path / "o.onnx") == {"DynamicQuantizeMatMul": 1}


def test_gemm(tmp_path):
    text = "m (float[A,64] x) => (float[A,8] y) { y = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, b) }"
    x, w, b = normal(5, 64), normal(8, 64, seed=1), normal(8, seed=2)
    done = dynamic(build(text, {"w": w, "b": b}), {"x": x})
    close(done.got["y"], product(x, w.T * np.float32(0.5)) + 2 * b)
    assert optimized(done.model, tmp_path / "o.onnx") == {"DynamicQuantizeMatMul": 1}


def test_products_of_one_tensor_share_its_codes(tmp_path):
    """Queries, keys and values: one DynamicQuantizeLinear, and an integer product with float result for each."""
    text = """m (float[A,64] x) => (float[A,8] p, float[A,8] q, float[A,8] r) {
        p = MatMul(x, u) h = MatMul(x, v) q = Add(h, b) r = Gemm(x, w, b)
    }"""
    arrays = {name: normal(64, 8, seed=i) for i, name in enumerate("uvw")} | {"b": normal(8, seed=9)}
    done = dynamic(build(text, arrays), {"x": normal(5, 64, seed=7)})
    assert done.ops["DynamicQuantizeLinear"] == 1
    assert done.ops["MatMulInteger"] == 3
    assert optimized(done.model, tmp_path / "o.onnx") == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 3}


def test_a_tied_weight_is_stored_once():
    text = "m (float[A,8] x) => (float[A,8] y) { h = MatMul(x, w) g = Relu(h) y = MatMul(g, w) }"
    done = dynamic(build(text, {"w": normal(8, 8)}), {"x": normal(5, 8)})
    assert [t.name for t in done.model.graph.initializer if t.dims == [8, 8]] == ["w_quantized"]


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        # one column, and more biases than that: onnxruntime's fused operator refuses to run
        ("m (float[5,64] x) => (float[5,3] y) { [p] h = MatMul(x, w) y = Add(h, b) }", {"w": (64, 1), "b": (3,)}),
        ("m (float[5,64] x) => (float[5] y) { [p] h = MatMul(x, w) y = Add(h, b) }", {"w": (64,), "b": (5,)}),
        # the sum has a higher rank than the product: the fused operator drops it
        ("m (float[64] x) => (float[1,8] y) { [p] h = MatMul(x, w) y = Add(b, h) }", {"w": (64, 8), "b": (1, 8)}),
        (
            "m (float[5,9] x) => (float[1,5,8] y) { [p] h = MatMul(x, w) y = Add(h, b) }",
            {"w": (9, 8), "b": (1, 1, 8)},
        ),
    ],
)
def test_what_the_runtime_would_take_for_biases_keeps_the_product_float(text, arrays):
    model = build(text, {name: normal(*shape) for name, shape in arrays.items()})
    feeds = {"x": normal(*[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], seed=3)}
    done = dynamic(model, feeds, allow_empty=True)
    assert done.reason("p") == "the runtime would take what is added behind it for a row of biases, which it is not"
    np.testing.assert_array_equal(done.got["y"], done.expected["y"])


@pytest.mark.parametrize("other", ["float[A,8] r", "float[5,8] r", "float[1,8] r", "float r"])
def test_an_added_activation(other):
    """A residual stream beside the product, a row among them, which is fused rightly."""
    text = f"m (float[A,64] x, {other}) => (float[B,8] y) {{ h = MatMul(x, w) y = Add(h, r) }}"
    shape = [int(d) if d.isdigit() else 5 for d in other.partition("[")[2].partition("]")[0].split(",") if d]
    r = normal(*shape, seed=4) if shape else np.asarray(2.0, np.float32)
    done = dynamic(build(text, {"w": normal(64, 8)}), {"x": normal(5, 64, seed=1), "r": r})
    assert done.sqnr() > 35


def test_float16(tmp_path):
    text = "m (float16[A,64] x) => (float16[A,8] y) { h = MatMul(x, w) y = Add(h, b) }"
    x, w = normal(5, 64).astype(np.float16), normal(64, 8, seed=1).astype(np.float16)
    done = dynamic(build(text, {"w": w, "b": normal(8, seed=2).astype(np.float16)}), {"x": x})
    assert done.sqnr() > 35
    fused = optimized(done.model, tmp_path / "o.onnx")
    assert fused["DynamicQuantizeMatMul"] == 1
    assert not fused["MatMul"]


def test_float64_stays():
    text = "m (double[A,64] x) => (double[A,8] y) { [p] y = MatMul(x, w) }"
    with pytest.raises(NothingToQuantizeError, match="0 of 1 nodes were quantized: its operands are neither float32"):
        dynamic(build(text, {"w": normal(64, 8).astype(np.float64)}), {"x": normal(5, 64).astype(np.float64)})


def test_products_of_activations_stay_float():
    """C34: a line for all of them."""
    text = "m (float[4,8] x) => (float[4,4] y) { h = MatMul(x, w) [s] t = Transpose(h) [p] y = MatMul(h, t) }"
    done = dynamic(build(text, {"w": normal(8, 8)}), {"x": normal(4, 8)})
    assert done.reason("p") == "both operands are activations"
    assert len(done.result.plan.decisions) == 1


def test_sums_that_may_wrap_around_are_noted():
    text = "m (float[1,40000] x) => (float[1,1] y) { [p] y = MatMul(x, w) }"
    done = dynamic(build(text, {"w": normal(40000, 1)}), {"x": normal(1, 40000, seed=1)}, weights="uint8")
    assert any("p: sums 40000 products, which may wrap around" in note for note in done.result.notes)


@pytest.mark.parametrize(("opset", "after"), [(7, 11), (11, 11), (13, 13), (21, 21), (28, 28)])
def test_opset(opset, after):
    """DynamicQuantizeLinear is of opset 11, and scales per column need no more; a higher opset is kept."""
    done = dynamic(build(ONE, {"w": normal(64, 8)}, opset=opset), {"x": normal(5, 64)})
    assert [(o.domain, o.version) for o in done.model.opset_import] == [("", after)]


def test_ir_version():
    """As old as the opset: 6 for opset 11; a higher one is kept."""
    for before, after in ((4, 6), (9, 9)):
        done = dynamic(build(ONE, {"w": normal(64, 8)}, opset=11, ir_version=before), {"x": normal(5, 64)})
        assert done.model.ir_version == after


def test_hostile_names():
    text = """m (float[A,64] x) => (float[A,8] x_scale) {
        [x_DynamicQuantizeLinear] x_quantized = Relu(x)
        [Cast] w_scale = MatMul(x_quantized, w)
        [w_scale_Mul] x_scale = Add(w_scale, w_quantized)
    }"""
    dynamic(build(text, {"w": normal(64, 8), "w_quantized": normal(8)}), {"x": normal(5, 64)})


def test_a_batched_weight_has_one_scale():
    """With one for each column the fused operators read beyond its end: wrong numbers, from memory of whoever.

    Two products of one vector show it, in MatMulIntegerToFloat.
    """
    text = """m (float[4] x) => (float[2,4] y, float z) {
        [p] h = MatMul(x, w) y = Add(h, b) z = MatMul(x, v)
    }"""
    arrays = {"w": normal(2, 4, 4), "b": normal(2, 1, seed=1), "v": normal(4, seed=2)}
    done = dynamic(build(text, arrays), {"x": normal(4, seed=3)})
    assert next(list(t.dims) for t in done.model.graph.initializer if t.name == "w_scale") == []
