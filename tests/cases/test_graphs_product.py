"""Graphs around MatMul and Gemm: biases, chains, attention, shared constants, hostile names (C34-C36, C43 and kin)."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

import qtool
from qtool.errors import ModelError
from tests.models import FORMATS, Checked, build, normal, product_bound, quantize_and_check, uniform

formats = pytest.mark.parametrize("form", FORMATS)


def gemm_bound(checked: Checked, node: str, x: np.ndarray, w: np.ndarray, y: str, *, bias: bool) -> np.ndarray:
    decision = next(d for d in checked.result.plan.decisions if d.node == node)
    y_scale = checked.scale(y) if y in checked.result.plan.tensors else 0.0
    x_scale = checked.scale(decision.inputs[0][1])
    return product_bound(np.matmul, x, w, x_scale, checked.weight(node).scale, y_scale, bias=bias)


# ------------------------------------------------------------------------------------------------ MatMul chains, types


@formats
def test_a_chain_of_matmuls(form):
    model = build(
        """m (float[N,16] x) => (float[N,4] y) {
            [a] h = MatMul(x, w1)
            [r] g = Relu(h)
            [b] i = MatMul(g, w2)
            [c] y = MatMul(i, w3)
        }""",
        {"w1": normal(16, 32), "w2": normal(32, 16, seed=1), "w3": normal(16, 4, seed=2)},
    )
    checked = quantize_and_check(model, {"x": normal(64, 16, seed=3)}, format=form)
    assert checked.quantized() == ["a", "r", "b", "c"]
    assert checked.zero_point("g") == 0
    assert checked.sqnr() >= 33
    if form == "qlinear":
        assert checked.ops == {"QuantizeLinear": 1, "QLinearMatMul": 3, "DequantizeLinear": 1}


@formats
@pytest.mark.parametrize("x_shape", ["5,8", "3,5,8", "2,3,5,8"])
@pytest.mark.parametrize("w_shape", [(8, 6), (1, 8, 6), (8,)])
def test_matmul_of_every_rank(form, x_shape, w_shape):
    rank = x_shape.count(",") if len(w_shape) == 1 else max(x_shape.count(",") + 1, len(w_shape))
    dims = ",".join("abcdef"[:rank])
    model = build(f"m (float[{x_shape}] x) => (float[{dims}] y) {{ [mm] y = MatMul(x, w) }}", {"w": normal(*w_shape)})
    shape = tuple(int(d) for d in x_shape.split(","))
    x = normal(*shape, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    params = checked.weight("mm")
    assert params.scale.shape == ((6,) if w_shape == (8, 6) else ())
    w = normal(*w_shape)
    assert (
        checked.error() <= product_bound(np.matmul, x, w, checked.scale("x"), params.scale, checked.scale("y"))
    ).all()


@formats
def test_a_vector_times_a_matrix(form):
    model = build("m (float[8] x) => (float[6] y) { [mm] y = MatMul(x, w) }", {"w": normal(8, 6)})
    x = normal(16, 8, seed=1)
    checked = quantize_and_check(model, {"x": x}, feeds={"x": x[0]}, format=form)
    assert (checked.error() <= gemm_bound(checked, "mm", x[0], normal(8, 6), "y", bias=False)).all()


@formats
def test_a_constant_left_operand(form):
    model = build("m (float[N,8,5] x) => (float[N,6,5] y) { [mm] y = MatMul(w, x) }", {"w": normal(6, 8)})
    x = normal(4, 8, 5, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    params = checked.weight("mm")
    assert params.dtype.name == "uint8"
    assert (
        checked.error()
        <= product_bound(np.matmul, normal(6, 8), x, params.scale, checked.scale("x"), checked.scale("y"))
    ).all()


@formats
def test_c34_a_product_of_two_activations(form):
    model = build(
        """m (float[N,5,8] a, float[N,8,6] b) => (float[N,5,4] y) { [mm] h = MatMul(a, b) [m2] y = MatMul(h, w) }""",
        {"w": normal(6, 4)},
    )
    samples = {"a": normal(8, 5, 8, seed=1), "b": normal(8, 8, 6, seed=2)}
    checked = quantize_and_check(model, samples, format=form)
    assert checked.quantized() == ["mm", "m2"]
    assert checked.sqnr() >= 33
    assert checked.ops["QLinearMatMul"] == (2 if form == "qlinear" else 0)


@formats
def test_a_product_of_a_tensor_with_itself(form):
    model = build("m (float[N,6,6] x) => (float[N,6,6] y) { [mm] y = MatMul(x, x) }")
    x = normal(8, 6, 6, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert (
        checked.error() <= product_bound(np.matmul, x, x, checked.scale("x"), checked.scale("x"), checked.scale("y"))
    ).all()
    assert checked.ops["QuantizeLinear"] == (1 if form == "qlinear" else 2)


@formats
def test_c34_shapes_beside_a_matmul_are_untouched(form):
    model = build(
        """m (float[N,4,6] x) => (float[N,d] y) {
            [mm] h = MatMul(x, w)
            [shape] s = Shape<start=0, end=1>(x)
            [cat] t = Concat<axis=0>(s, minus)
            [re] y = Reshape(h, t)
        }""",
        {"w": normal(6, 5), "minus": np.array([-1])},
    )
    checked = quantize_and_check(model, {"x": normal(8, 4, 6, seed=1)}, format=form)
    assert checked.quantized() == ["mm"]
    assert {s.node: s.expected for s in checked.result.skips} == {"shape": True, "cat": True, "re": True}
    assert checked.ops["Concat"] == 1
    # the product's result stays float, because a Reshape to the output reads it
    assert checked.ops["QLinearMatMul"] == 0
    x, w = normal(8, 4, 6, seed=1), normal(6, 5)
    bound = product_bound(np.matmul, x, w, checked.scale("x"), checked.weight("mm").scale)
    assert (checked.error() <= bound.reshape(8, -1)).all()


# ------------------------------------------------------------------------------------------------------------- biases


@formats
@pytest.mark.parametrize("bias", [(6,), (1, 6), (1, 1, 6)])
@pytest.mark.parametrize("first", [False, True])
def test_the_add_of_a_row_is_the_bias(form, bias, first):
    add = "Add(b, h)" if first else "Add(h, b)"
    model = build(
        f"m (float[N,5,8] x) => (float[N,5,6] y) {{ [mm] h = MatMul(x, w) [add] y = {add} }}",
        {"w": normal(8, 6), "b": normal(*bias, seed=2)},
    )
    x = normal(4, 5, 8, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.quantized() == ["mm", "add"]
    assert (checked.error() <= gemm_bound(checked, "mm", x, normal(8, 6), "y", bias=True)).all()
    row = next(n for n in checked.model.graph.node if n.op_type == "DequantizeLinear" and n.output[0].startswith("b"))
    scale = checked.initializers[row.input[1]]
    expected = np.float32(checked.params("x").scale) * checked.weight("mm").scale
    assert np.array_equal(scale, expected)
    codes = checked.initializers[row.input[0]]
    assert codes.dtype == np.int32
    assert np.array_equal(
        codes, np.rint(normal(*bias, seed=2).reshape(-1).astype(np.float64) / expected.astype(np.float64))
    )


@formats
@pytest.mark.parametrize("bias", [(), (1,), (5, 6), (5, 1), (2, 1, 5, 6), (1, 1, 1, 6)])
def test_another_add_is_no_bias(form, bias):
    dims = ",".join("abcd"[: max(3, len(bias))])
    model = build(
        f"m (float[N,5,8] x) => (float[{dims}] y) {{ [mm] h = MatMul(x, w) [add] y = Add(h, b) }}",
        {"w": normal(8, 6), "b": normal(*bias, seed=2)},
    )
    x = normal(4, 5, 8, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.quantized() == ["mm"]
    bound = product_bound(np.matmul, x, normal(8, 6), checked.scale("x"), checked.weight("mm").scale)
    assert (checked.error() <= bound).all()


GEMMS = list(
    itertools.product(
        ["", "alpha=0.5", "beta=0.25", "transA=1", "transB=1", "alpha=2.0, beta=3.0, transA=1, transB=1", "all"],
        [None, (), (1,), (6,), (1, 6), (5, 1), (5, 6), "x"],
    )
)


@formats
@pytest.mark.parametrize(("attributes", "bias"), GEMMS)
def test_gemm(form, attributes, bias):
    if attributes == "all":
        attributes = "alpha=1.0, beta=1.0, transA=0, transB=0"
    flags = dict(item.split("=") for item in attributes.split(", ") if item)
    trans_a, trans_b = flags.get("transA") == "1", flags.get("transB") == "1"
    operator = f"Gemm<{attributes}>" if attributes else "Gemm"
    arguments = "x, w" if bias is None else "x, w, c"
    inputs = f"float[{'8,5' if trans_a else '5,8'}] x" + (", float[5,6] c" if bias == "x" else "")
    arrays = {"w": normal(6, 8).T.copy() if not trans_b else normal(6, 8)}
    if isinstance(bias, tuple):
        arrays["c"] = normal(*bias, seed=2)
    model = build(f"m ({inputs}) => (float[5,6] y) {{ [g] y = {operator}({arguments}) }}", arrays)
    x = normal(8, 5, seed=1) if trans_a else normal(8, 5, seed=1).T.copy()
    samples = {"x": x} | ({"c": normal(5, 6, seed=2)} if bias == "x" else {})
    # one run of the model, whatever its inputs' leading dimensions are
    checked = quantize_and_check(model, [samples], feeds=samples, format=form)
    alpha = float(flags.get("alpha", 1))
    a, w = (x.T if trans_a else x), normal(6, 8).T * np.float32(alpha)
    decision = next(d for d in checked.result.plan.decisions if d.weights)
    scale = checked.weight(decision.node).scale
    if checked.model.graph.node and decision.op_type == "MatMul" and alpha != 1.0 and decision.weights[0].tensor == "w":
        scale = scale * np.float32(alpha)
    y_scale = checked.scale("y") if "y" in checked.result.plan.tensors else 0.0
    bound = product_bound(np.matmul, a, w, checked.scale(decision.inputs[0][1]), scale, y_scale, bias=True)
    assert (checked.error() <= bound).all()


@formats
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_too_large_for_int32_raises_the_scale_of_its_channel(form, op, per_channel):
    w, b = normal(36, 4), np.array([1.0, 3e8, -3e8, 0.0], np.float32)
    w[:, 1:3] *= np.float32(1e-4)
    if op == "Conv":
        text = "m (float[N,4,6,6] x) => (float[N,4,4,4] y) { [p] y = Conv(x, w, b) }"
        arrays = {"w": w.T.reshape(4, 4, 3, 3).copy(), "b": b}
        x = normal(2, 4, 6, 6, seed=1)
    else:
        body = "[p] y = Gemm(x, w, b)" if op == "Gemm" else "[p] h = MatMul(x, w) [a] y = Add(h, b)"
        text, arrays, x = f"m (float[N,36] x) => (float[N,4] y) {{ {body} }}", {"w": w, "b": b}, normal(8, 36, seed=1)
    checked = quantize_and_check(build(text, arrays), {"x": x}, format=form, per_channel=per_channel)
    assert any("raised the weight scale" in note for note in checked.result.notes)
    y, expected = checked.got["y"], checked.expected["y"]
    channels = (slice(None), [1, 2])
    np.testing.assert_allclose(y[channels], expected[channels], rtol=0.01)
    np.testing.assert_allclose(checked.fast["y"][channels], expected[channels], rtol=0.01)


@formats
def test_a_bias_just_inside_int32_leaves_room_for_the_products(form):
    """b/(sx*sw) is below 2^31, but with the products on top it is not: the sum would wrap around to the other sign."""
    w = np.full((64, 2), 0.5, np.float32)
    x = np.concatenate([np.ones((4, 64), np.float32), np.zeros((4, 64), np.float32)])
    scale = float(np.float32(1 / 255)) * float(np.float32(0.5 / 127))
    b = np.array([0.9999 * 2**31 * scale, 0.0], np.float32)
    model = build("m (float[N,64] x) => (float[N,2] y) { [g] y = Gemm(x, w, b) }", {"w": w, "b": b})
    checked = quantize_and_check(model, {"x": x}, format=form)
    np.testing.assert_allclose(checked.got["y"], checked.expected["y"], rtol=0.01, atol=0.2)
    np.testing.assert_allclose(checked.fast["y"], checked.expected["y"], rtol=0.01, atol=0.2)


@formats
@pytest.mark.parametrize("size", [1e-36, 1e-40, 1e-45])
@pytest.mark.parametrize("bias", [0.0, 1e-30, 0.5])
@pytest.mark.parametrize("inputs", [1.0, 1e-9])
def test_weights_that_are_all_but_zero(form, size, bias, inputs):
    """Trained networks have channels of subnormal weights: sx*sw must not vanish, or the bias is divided by 0."""
    w = normal(16, 4)
    w[:, 1] *= np.float32(size)
    b = np.array([1, bias, -1, 0], np.float32) * np.float32(inputs)
    model = build("m (float[N,16] x) => (float[N,4] y) { [g] y = Gemm(x, w, b) }", {"w": w, "b": b})
    checked = quantize_and_check(model, {"x": normal(8, 16, seed=1, scale=inputs)}, format=form)
    np.testing.assert_allclose(checked.got["y"][:, 1], b[1], rtol=1e-6, atol=1e-30)
    assert checked.sqnr() >= 35


# --------------------------------------------------------------------------------------------------- what stays float


@formats
def test_c35_lstm_beside_a_matmul(form):
    model = build(
        """m (float[5,N,8] x) => (float[5,N,3] y) {
            [lstm] h, last = LSTM<hidden_size=4>(x, w, r)
            [sq] s = Squeeze(h, axes)
            [mm] y = MatMul(s, m)
        }""",
        {"w": normal(1, 16, 8), "r": normal(1, 16, 4, seed=1), "m": normal(4, 3, seed=2), "axes": np.array([1])},
    )
    x = normal(5, 1, 8, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert "mm" in checked.quantized()
    assert "recurrent states stay float" in checked.reason("lstm")
    assert not next(s for s in checked.result.skips if s.node == "lstm").expected
    assert checked.ops["LSTM"] == 1
    assert checked.sqnr() >= 33


@formats
def test_c36_a_decomposed_normalization_stays_float(form):
    model = build(
        """m (float[N,8] x) => (float[N,8] n, float[N,4] y) {
            [p] p = Pow(x, two)
            [mean] m = ReduceMean<axes=[-1]>(p)
            [root] r = Sqrt(m)
            [div] n = Div(x, r)
            [mm] y = MatMul(n, w)
        }""",
        {"two": np.float32(2), "w": normal(8, 4)},
    )
    checked = quantize_and_check(model, {"x": normal(16, 8, seed=1)}, format=form)
    assert checked.quantized() == ["mm"]
    assert checked.error("n").max() <= 1e-6
    assert {s.node for s in checked.result.skips if s.expected} == {"p", "mean", "root", "div"}
    assert checked.sqnr("y") >= 35


@formats
def test_attention_scores_stay_float(form):
    model = build(
        """m (float[2,6,8] x) => (float[2,6,8] y) {
            [q] q = MatMul(x, wq)
            [k] k = MatMul(x, wk)
            [v] v = MatMul(x, wv)
            [t] kt = Transpose<perm=[0,2,1]>(k)
            [score] s = MatMul(q, kt)
            [scale] d = Mul(s, root)
            [mask] e = Add(d, mask)
            [soft] p = Softmax<axis=-1>(e)
            [context] c = MatMul(p, v)
            [out] y = MatMul(c, wo)
        }""",
        {
            "wq": normal(8, 8), "wk": normal(8, 8, seed=1), "wv": normal(8, 8, seed=2), "wo": normal(8, 8, seed=3),
            "root": np.float32(8**-0.5),
            "mask": np.where(np.tri(6) > 0, np.float32(0), np.float32(-np.inf)).astype(np.float32),
        },
    )  # fmt: skip
    x = normal(2, 6, 8, seed=5, scale=0.3)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.quantized() == ["q", "k", "v", "out"]
    for name in ("score", "context"):
        assert checked.reason(name) == "attention scores stay float"
    # one QuantizeLinear for the three products that read x
    assert checked.ops["QuantizeLinear"] == (2 if form == "qlinear" else 3)
    assert list(checked.result.plan.tensors) == ["x", "c", "y"]
    assert checked.sqnr() >= 30


# ------------------------------------------------------------------------------------------------ C43: pairs, sharing


@pytest.mark.parametrize("dedicated", [False, True])
def test_c43_pairs(dedicated):
    model = build(
        """m (float[N,8] x) => (float[N,4] y, float[N,4] z, float[N,8] n) {
            [a] y = MatMul(x, w1)
            [b] z = MatMul(x, w2)
            [c] n = Neg(x)
        }""",
        {"w1": normal(8, 4), "w2": normal(8, 4, seed=1)},
    )
    samples = {"x": normal(16, 8, seed=2)}
    checked = quantize_and_check(model, samples, format="qdq", dedicated_qdq=dedicated)
    readers = [n for n in checked.model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x"]
    assert len(readers) == (2 if dedicated else 1)
    assert len({n.name for n in checked.model.graph.node}) == len(checked.model.graph.node)
    assert np.array_equal(checked.got["n"], -samples["x"])  # the float reader reads the float value
    other = quantize_and_check(model, samples, format="qdq", dedicated_qdq=not dedicated)
    for name in ("y", "z"):
        assert np.array_equal(checked.got[name], other.got[name])
        assert np.array_equal(checked.fast[name], other.fast[name])


@formats
def test_a_weight_that_two_operators_read_along_different_axes(form):
    """The Conv has scales along axis 0, the ConvTranspose along axis 1 of the same tensor."""
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y, float[N,4,6,6] z) {
            [a] y = Conv<pads=[1,1,1,1]>(x, w)
            [b] z = ConvTranspose<pads=[1,1,1,1]>(x, w)
        }""",
        {"w": normal(4, 4, 3, 3)},
    )
    checked = quantize_and_check(model, {"x": normal(2, 4, 6, 6, seed=1)}, format=form)
    w = normal(4, 4, 3, 3)
    over_0, over_1 = (np.abs(w).max(axis=axes) / np.float32(127) for axes in ((1, 2, 3), (0, 2, 3)))
    np.testing.assert_allclose(checked.weight("a").scale, over_0, rtol=1e-6)
    np.testing.assert_allclose(checked.weight("b").scale, over_1, rtol=1e-6)
    codes = [t for t in checked.initializers.values() if t.shape == w.shape]
    assert len(codes) == 2
    for name in ("y", "z"):
        assert checked.sqnr(name) >= 35


@formats
def test_a_weight_that_two_operators_read_along_one_axis_is_stored_once(form):
    model = build(
        "m (float[N,8] x, float[N,8] v) => (float[N,4] y, float[N,4] z) { [a] y = MatMul(x, w) [b] z = MatMul(v, w) }",
        {"w": normal(8, 4)},
    )
    checked = quantize_and_check(model, {"x": normal(8, 8, seed=1), "v": normal(8, 8, seed=2, scale=3)}, format=form)
    assert [t.dtype for t in checked.initializers.values() if t.shape == (8, 4)] == [np.int8]


@formats
def test_a_bias_under_two_scales(form):
    model = build(
        """m (float[N,8] x, float[N,8] v) => (float[N,4] y, float[N,4] z) {
            [a] y = Gemm(x, w, b)
            [c] z = Gemm(v, w, b)
        }""",
        {"w": normal(8, 4), "b": normal(4, seed=3)},
    )
    samples = {"x": normal(8, 8, seed=1), "v": normal(8, 8, seed=2, scale=30)}
    checked = quantize_and_check(model, samples, format=form)
    assert len([t for t in checked.initializers.values() if t.dtype == np.int32]) == 2
    for name, x in (("y", "x"), ("z", "v")):
        node = "a" if name == "y" else "c"
        bound = gemm_bound(checked, node, samples[x], normal(8, 4), name, bias=True)
        assert (checked.error(name) <= bound).all()


@formats
def test_a_weight_with_a_float_reader_stays_beside_its_codes(form):
    model = build(
        """m (float[N,8] x, float[8,4] v) => (float[N,4] y, float[8,4] z) {
            [a] y = MatMul(x, w)
            [s] z = Sub(v, w)
        }""",
        {"w": normal(8, 4)},
    )
    x, v = normal(8, 8, seed=1), normal(8, 4, seed=2)
    checked = quantize_and_check(model, {"x": x, "v": v}, format=form)
    assert np.array_equal(checked.got["z"], checked.expected["z"])
    assert sorted(t.dtype.name for t in checked.initializers.values() if t.shape == (8, 4)) == ["float32", "int8"]


# ------------------------------------------------------------------------------------------------------- names, edges


@formats
def test_hostile_names(form):
    """Names that qtool would choose exist already; nodes have empty and duplicate names."""
    model = build(
        """m (float[N,8] x, float[N,8] x_quantized) => (float[N,8] y, float[N,4] y_float) {
            h = MatMul(x, w)
            x_scale = Neg(h)
            w_quantized = Add(x_scale, x_quantized)
            x_dequantized = MatMul(w_quantized, w_scale)
            y = MatMul(x_dequantized, x_zero_point)
            y_float = MatMul(y, y_quantized)
        }""",
        {
            "w": normal(8, 8), "w_scale": normal(8, 8, seed=1), "x_zero_point": normal(8, 8, seed=2),
            "y_quantized": normal(8, 4, seed=3),
        },
    )  # fmt: skip
    reference = onnx.ModelProto()
    reference.CopyFrom(model)  # onnxruntime refuses duplicate names
    names = ["", "same", "same", "x_QuantizeLinear", "x_DequantizeLinear", ""]
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    samples = {"x": normal(8, 8, seed=1), "x_quantized": normal(8, 8, seed=2)}
    checked = quantize_and_check(model, samples, format=form, reference=reference, agreement_db=25)
    assert checked.ops["MatMul"] + checked.ops["QLinearMatMul"] == 4
    assert checked.sqnr("y") >= 28
    assert checked.sqnr("y_float") >= 28


@formats
def test_a_graph_input_that_is_a_graph_output(form):
    model = build("m (float[N,8] x) => (float[N,4] y, float[N,8] x) { [a] y = MatMul(x, w) }", {"w": normal(8, 4)})
    x = normal(8, 8, seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert np.array_equal(checked.got["x"], x)
    assert checked.sqnr("y") >= 35


@formats
def test_graph_outputs_in_the_middle(form):
    model = build(
        """m (float[N,8] x) => (float[N,8] h, float[N,8] g, float[N,4] y) {
            [a] h = MatMul(x, w1)
            [r] g = Relu(h)
            [b] y = MatMul(g, w2)
        }""",
        {"w1": normal(8, 8), "w2": normal(8, 4, seed=1)},
    )
    checked = quantize_and_check(model, {"x": normal(16, 8, seed=2)}, format=form)
    assert checked.quantized() == ["a", "b"]
    for name in ("h", "g", "y"):
        assert checked.sqnr(name) >= 33


@formats
def test_an_initializer_that_is_a_graph_output(form):
    model = build("m (float[N,8] x) => (float[N,4] y, float[8,4] w) { [a] y = MatMul(x, w) }", {"w": normal(8, 4)})
    checked = quantize_and_check(model, {"x": normal(16, 8, seed=2)}, format=form)
    assert np.array_equal(checked.got["w"], normal(8, 4))


@formats
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_with_nan_or_infinity_is_refused(form, op, bad):
    """In the first layer, so that calibration would meet the NaN in every activation behind it."""
    w = normal(36, 4)
    w[7, 2] = bad
    if op == "Conv":
        text = "m (float[N,4,6,6] x) => (float[N,4,2,2] y) { [p] h = Conv(x, w) [p2] y = Conv(h, v) }"
        arrays = {"w": w.T.reshape(4, 4, 3, 3).copy(), "v": normal(4, 4, 3, 3)}
        x, index = normal(2, 4, 6, 6, seed=1), "[2, 0, 2, 1]"
    else:
        text = f"m (float[N,36] x) => (float[N,4] y) {{ [p] h = {op}(x, w) [p2] y = MatMul(h, v) }}"
        arrays, x, index = {"w": w, "v": normal(4, 4)}, normal(8, 36, seed=1), "[7, 2]"
    model = build(text, arrays)
    with pytest.raises(ModelError) as caught:
        qtool.quantize(model, {"x": x}, format=form)
    assert caught.value.message == f"Weight 'w' holds {np.float32(bad)} at index {index}; expected finite values."
    assert "--exclude" in (caught.value.hint or "")
    assert qtool.inspect(model).by_op[op][0] >= 1  # looking at the model is allowed


@formats
def test_excluding_a_node_with_a_bad_weight(form):
    w = normal(8, 4)
    w[0, 0] = np.inf
    model = build(
        "m (float[N,8] x) => (float[N,4] y, float[N,4] z) { [a] y = MatMul(x, w) [b] z = MatMul(x, v) }",
        {"w": w, "v": normal(8, 4, seed=1)},
    )
    x = uniform(8, 8, low=1, high=2)
    checked = quantize_and_check(model, {"x": x}, format=form, exclude=["a"])
    assert checked.quantized() == ["b"]


@formats
def test_a_gemm_that_spells_out_its_defaults(form):
    """Its attributes must not end up on a QLinearMatMul."""
    model = build(
        """m (float[N,8] x) => (float[N,4] y) {
            [a] h = Gemm<alpha=1.0, beta=1.0, transA=0, transB=0>(x, w1)
            [b] y = MatMul(h, w2)
        }""",
        {"w1": normal(8, 8), "w2": normal(8, 4, seed=1)},
    )
    checked = quantize_and_check(model, {"x": normal(16, 8, seed=2)}, format=form)
    assert checked.quantized() == ["a", "b"]
    assert checked.ops["QLinearMatMul"] == (2 if form == "qlinear" else 0)
    assert checked.sqnr() >= 33


@formats
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_only_the_operators_of_onnx_are_used(form, op):
    model = build(f"m (float[N,8] x) => (float[N,4] y) {{ y = {op}(x, w) }}", {"w": normal(8, 4)})
    checked = quantize_and_check(model, {"x": normal(8, 8, seed=1)}, format=form)
    assert {n.domain for n in checked.model.graph.node} == {""}
    assert [(o.domain, o.version) for o in checked.model.opset_import] == [("", 17)]
    assert isinstance(checked.model, onnx.ModelProto)
