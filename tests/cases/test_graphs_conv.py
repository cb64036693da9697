"""Graphs around Conv: absorbed activations, shapes of every kind, movers on codes, joins (cases C30-C33 and kin)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qtool
from tests.models import FORMATS, build, conv_bound, normal, quantize_and_check, run, uniform

formats = pytest.mark.parametrize("form", FORMATS)


# ------------------------------------------------------------------------------------------------ C30: absorption


@formats
@pytest.mark.parametrize("symmetric", [False, True])
def test_c30_relu_behind_a_conv(form, symmetric):
    model = build(
        "m (float[N,4,6,6] x) => (float[N,8,6,6] y) { [c] h = Conv<pads=[1,1,1,1]>(x, w, b) [r] y = Relu(h) }",
        {"w": normal(8, 4, 3, 3), "b": normal(8, seed=1)},
    )
    x = normal(4, 4, 6, 6, seed=2)
    options = {"activations": "int8", "symmetric_activations": True} if symmetric else {}
    checked = quantize_and_check(model, {"x": x}, format=form, **options)
    assert (checked.got["y"] >= 0).all()
    assert (checked.fast["y"] >= 0).all()
    if not symmetric:
        assert checked.quantized() == ["c", "r"]
        assert (checked.error() <= conv_bound(model, checked, "c", x)).all()
        assert checked.zero_point("y") == 0
        assert list(checked.result.plan.tensors) == ["x", "y"]
        assert checked.ops["Relu"] == (form == "qdq")
    else:
        assert [checked.zero_point(t) for t in ("x", "h")] == [0, 0]
        assert checked.ops["Relu"] == 1
        assert checked.sqnr() >= 33


@formats
@pytest.mark.parametrize("kind", ["inputs", "attributes", "constants"])
def test_c30_clip_from_zero_is_absorbed(form, kind):
    head, opset, arrays = "", 17, {}
    if kind == "attributes":
        clip, opset = "Clip<min=0.0, max=6.0>(h)", 6
    else:
        clip = "Clip(h, lo, hi)"
        if kind == "constants":
            head = "lo = Constant<value_float=0.0>() hi = Constant<value_float=6.0>()"
        else:
            arrays = {"lo": np.float32(0), "hi": np.float32(6)}
    model = build(
        f"m (float[2,4,6,6] x) => (float[2,8,6,6] y) {{ {head} [c] h = Conv<pads=[1,1,1,1]>(x, w) [r] y = {clip} }}",
        {"w": normal(8, 4, 3, 3), **arrays},
        opset=opset,
    )
    x = normal(2, 4, 6, 6, seed=2)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.quantized() == ["c", "r"]
    assert checked.zero_point("y") == 0
    assert np.float32(checked.scale("y")) * np.float32(255) <= np.float32(6)
    assert (checked.error() <= conv_bound(model, checked, "c", x)).all()
    assert checked.ops["Clip"] == (form == "qdq")


@formats
def test_c30_clip_without_min_is_not_absorbed(form):
    model = build(
        "m (float[2,4,6,6] x) => (float[2,8,4,4] y) { [c] h = Conv(x, w) [r] y = Clip(h, , hi) }",
        {"w": normal(8, 4, 3, 3), "hi": np.float32(2)},
    )
    checked = quantize_and_check(model, {"x": normal(2, 4, 6, 6, seed=2)}, format=form)
    assert checked.expected["y"].min() < -2
    assert checked.got["y"].max() <= 2
    assert checked.ops["Clip"] == 1
    assert checked.sqnr() >= 33  # two 8-bit roundings behind each other


@formats
@pytest.mark.parametrize(
    "body",
    [
        "[c] h = Conv(x, w) [r] y = Relu(h)",  # h is a graph output
        "[c] h1 = Conv(x, w) [r] y = Relu(h1) [n] h = Neg(h1)",  # h1 has two readers
    ],
)
def test_c30_a_relu_whose_input_others_see_is_not_absorbed(form, body):
    model = build(
        f"m (float[1,4,6,6] x) => (float[1,8,4,4] y, float[1,8,4,4] h) {{ {body} }}", {"w": normal(8, 4, 3, 3)}
    )
    checked = quantize_and_check(model, {"x": normal(1, 4, 6, 6, seed=2)}, format=form)
    assert checked.expected["h"].min() < -1
    for name in ("y", "h"):
        assert checked.sqnr(name) >= 33
    assert not any(d.absorbed for d in checked.result.plan.decisions)
    assert (checked.got["y"] >= 0).all()


@formats
def test_c30_a_relu_whose_input_a_subgraph_captures_is_not_absorbed(form):
    model = build(
        """m (float[1,4,6,6] x, bool c) => (float[1,8,4,4] y, float[1,8,4,4] z) {
            [conv] h = Conv(x, w)
            [r] y = Relu(h)
            [if] z = If(c) <then_branch = t () => (float[1,8,4,4] a) { a = Neg(h) },
                            else_branch = e () => (float[1,8,4,4] b) { b = Identity(h) }>
        }""",
        {"w": normal(8, 4, 3, 3)},
    )
    x = normal(3, 1, 4, 6, 6, seed=2)
    samples = {"x": x, "c": np.array([True, False, True])}
    checked = quantize_and_check(model, samples, feeds={"x": x[0], "c": np.array(True)}, format=form)
    assert checked.sqnr("y") >= 33
    assert checked.sqnr("z") >= 33
    assert not any(d.absorbed for d in checked.result.plan.decisions)


# ----------------------------------------------------------------------------- C31: movers keep the codes and the scale


@formats
def test_c31_one_scale_along_a_chain_of_movers(form):
    model = build(
        """m (float[N,3,8,8] x) => (float[N,4] y) {
            [c] h = Conv<pads=[1,1,1,1]>(x, w, b)
            [r] a = Relu(h)
            [pool] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            [slice] s = Slice(p, begin, end, axes)
            [t] t = Transpose<perm=[0,2,3,1]>(s)
            [re] f = Reshape(t, shape)
            [sq] u = Unsqueeze(f, axes1)
            [sq2] v = Squeeze(u, axes1)
            [fc] y = MatMul(v, m)
        }""",
        {
            "w": normal(8, 3, 3, 3), "b": normal(8, seed=1), "m": normal(96, 4, seed=3),
            "begin": np.array([0]), "end": np.array([6]), "axes": np.array([1]), "axes1": np.array([1]),
            "shape": np.array([-1, 96]),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(8, 3, 8, 8, seed=2)}, format=form)
    chain = [checked.params(t) for t in ("a", "p", "s", "t", "f", "u", "v")]
    assert all(p == chain[0] for p in chain)
    assert checked.quantized() == ["c", "r", "pool", "slice", "t", "re", "sq", "sq2", "fc"]
    assert checked.sqnr() >= 30
    if form == "qlinear":
        assert checked.ops["QuantizeLinear"] == 1
        assert checked.ops["DequantizeLinear"] == 1


@formats
def test_c31_the_range_of_softmax_does_not_depend_on_data(form):
    model = build(
        "m (float[N,8] x) => (float[N,4] y) { [s] p = Softmax<axis=-1>(x) [mm] y = MatMul(p, w) }",
        {"w": normal(8, 4)},
    )
    flat = normal(32, 8, seed=1, scale=0.01)
    peaked = np.eye(8, dtype=np.float32) * 100
    checked = quantize_and_check(model, {"x": flat}, feeds={"x": peaked}, format=form)
    assert (checked.scale("p"), checked.zero_point("p")) == (1 / 256, 0)
    # 1.0 becomes 255/256; the output's range was seen on averages only and saturates, so look at its signs alone
    inside = np.abs(checked.expected["y"]) < 0.9 * np.abs(np.array(checked.params("y").range)).min()
    assert (checked.error()[inside] <= 0.05).all()


@formats
def test_pad_on_codes_pads_with_the_zero_point(form):
    model = build(
        """m (float[N,3,8,8] x) => (float[N,4,8,8] y) {
            [c] a = Conv(x, w)
            [q] q = Pad(a, pads)
            [m] m = MaxPool<kernel_shape=[1,1]>(q)
            [c2] y = Conv<pads=[1,1,1,1]>(m, v)
        }""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    )
    checked = quantize_and_check(model, {"x": normal(4, 3, 8, 8, seed=2)}, format=form)
    assert checked.zero_point("a") not in (0, 255)
    assert checked.quantized() == ["c", "q", "m", "c2"]
    assert checked.params("a") == checked.params("q")
    assert checked.sqnr() >= 30


@formats
@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("value", [False, True])
def test_pad_in_another_mode_on_codes(form, mode, value):
    pad = f'Pad<mode="{mode}">(a, pads{", seven" if value else ""})'
    arrays = {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    model = build(
        f"m (float[N,3,8,8] x) => (float[N,4,6,6] y) {{ [c] a = Conv(x, w) [q] q = {pad} [c2] y = Conv(q, v) }}",
        arrays | ({"seven": np.float32(0)} if value else {}),
    )
    checked = quantize_and_check(model, {"x": normal(4, 3, 8, 8, seed=2)}, format=form)
    assert checked.sqnr() >= 30


@formats
def test_nearest_resize_moves_codes(form):
    model = build(
        """m (float[N,3,4,4] x) => (float[N,4,8,8] y) {
            [c] a = Conv<pads=[1,1,1,1]>(x, w)
            [up] u = Resize<mode="nearest">(a, roi, scales)
            [c2] y = Conv<pads=[1,1,1,1]>(u, v)
        }""",
        {
            "w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1),
            "roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 3, 4, 4, seed=2)}, format=form)
    assert checked.quantized() == ["c", "up", "c2"]
    assert checked.params("a") == checked.params("u")
    assert checked.sqnr() >= 30


@formats
def test_a_resize_that_extrapolates_stays_float(form):
    model = build(
        """m (float[N,3,4,4] x) => (float[N,4,4,4] y) {
            [c] a = Conv<pads=[1,1,1,1]>(x, w)
            [up] u = Resize<mode="nearest", coordinate_transformation_mode="tf_crop_and_resize">(a, roi, , sizes)
            [c2] y = Conv<pads=[1,1,1,1]>(u, v)
        }""",
        {
            "w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1),
            "roi": np.array([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32), "sizes": np.array([4, 4, 4, 4]),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 3, 4, 4, seed=2)}, format=form, include=["c2"])
    assert checked.quantized() == ["c2"]
    assert checked.reason("up") == "not among the included nodes"
    everything = qtool.inspect(model)
    assert ("up", "Resize", "float", "what lies outside its input becomes a number, not a code") in everything.nodes


@formats
def test_split_with_two_readers(form):
    model = build(
        """m (float[N,3,6,6] x) => (float[N,4,6,6] y, float[N,2,6,6] z) {
            [c] a = Conv<pads=[1,1,1,1]>(x, w)
            [s] l, r = Split<axis=1>(a, sizes)
            [c2] y = Conv<pads=[1,1,1,1]>(l, v)
            [n] z = Neg(r)
        }""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 2, 3, 3, seed=1), "sizes": np.array([2, 2])},
    )
    checked = quantize_and_check(model, {"x": normal(4, 3, 6, 6, seed=2)}, format=form)
    assert checked.quantized() == ["c", "s", "c2"]
    assert checked.params("l") == checked.params("a") == checked.params("r")
    assert checked.sqnr("y") >= 30
    assert checked.sqnr("z") >= 35


@formats
@pytest.mark.parametrize("use", ["output", "reader"])
def test_a_max_pool_whose_indices_are_wanted_stays_float(form, use):
    tail = "" if use == "output" else "[i] j = Identity(i)"
    name = "i" if use == "output" else "j"
    model = build(
        f"""m (float[1,3,8,8] x) => (float[1,4,4,4] y, int64[1,4,4,4] {name}) {{
            [c] a = Conv<pads=[1,1,1,1]>(x, w)
            [p] m, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            [c2] y = Conv<pads=[1,1,1,1]>(m, v)
            {tail}
        }}""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1)},
    )
    samples = {"x": normal(8, 3, 8, 8, seed=2)}
    result = qtool.quantize(model, samples, format=form)
    assert next(s.reason for s in result.skips if s.node == "p") == "its indices are used"
    feeds = {"x": samples["x"][:1]}
    got = run(result.model, feeds)
    assert (got[name] != run(model, feeds)[name]).mean() < 0.2  # near ties of quantized values move an argmax


@formats
def test_a_split_whose_other_half_leaves_the_graph_stays_float(form):
    """Moving codes would round a graph output that is exact in float."""
    model = build(
        """m (float[N,8] x) => (float[N,4] y, float[N,4] z) {
            [s] l, z = Split<axis=1>(x, sizes)
            [mm] y = MatMul(l, w)
        }""",
        {"sizes": np.array([4, 4]), "w": normal(4, 4)},
    )
    checked = quantize_and_check(model, {"x": normal(8, 8, seed=1)}, format=form)
    assert checked.quantized() == ["mm"]
    assert checked.reason("s") == "float operators read its output too"
    assert np.array_equal(checked.got["z"], checked.expected["z"])


@formats
def test_a_max_pool_with_unused_indices_moves_codes(form):
    model = build(
        """m (float[1,3,8,8] x) => (float[1,4,4,4] y) {
            [c] a = Conv<pads=[1,1,1,1]>(x, w)
            [p] m, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            [c2] y = Conv<pads=[1,1,1,1]>(m, v)
        }""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3, seed=1)},
    )
    x = normal(8, 3, 8, 8, seed=2)
    checked = quantize_and_check(model, {"x": x}, feeds={"x": x[:1]}, format=form)
    assert checked.quantized() == ["c", "p", "c2"]
    assert checked.sqnr() >= 30


# ------------------------------------------------------------------------------------------- C32: Convs of every kind

CONVS = {
    "1d": ("Conv<pads=[1,1]>", (3, 12), (4, 3, 3)),
    "3d": ("Conv<pads=[1,1,1,1,1,1]>", (2, 5, 5, 5), (4, 2, 3, 3, 3)),
    "depthwise": ("Conv<group=4, pads=[1,1,1,1]>", (4, 6, 6), (4, 1, 3, 3)),
    "group": ("Conv<group=2, pads=[1,1,1,1]>", (4, 6, 6), (6, 2, 3, 3)),
    "strides": ("Conv<strides=[2,2], pads=[1,1,1,1]>", (3, 7, 7), (4, 3, 3, 3)),
    "dilations": ("Conv<dilations=[2,2], pads=[2,2,2,2]>", (3, 7, 7), (4, 3, 3, 3)),
    "same upper": ('Conv<auto_pad="SAME_UPPER", strides=[2,2]>', (3, 7, 7), (4, 3, 3, 3)),
    "same lower": ('Conv<auto_pad="SAME_LOWER">', (3, 6, 6), (4, 3, 2, 2)),
    "asymmetric pads": ("Conv<pads=[0,1,2,3]>", (3, 6, 6), (4, 3, 3, 3)),
    "pointwise": ("Conv", (3, 4, 4), (4, 3, 1, 1)),
    "one output channel": ("Conv<pads=[1,1,1,1]>", (3, 6, 6), (1, 3, 3, 3)),
}


def conv_model(kind: str, *, bias: bool = True) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    op, x_shape, w_shape = CONVS[kind]
    dims = ",".join(map(str, x_shape))
    arguments = "x, w, b" if bias else "x, w"
    arrays = {"w": normal(*w_shape)} | ({"b": normal(w_shape[0], seed=1)} if bias else {})
    rank = ",".join("abcdef"[: len(x_shape)])
    return build(f"m (float[N,{dims}] x) => (float[N,{rank}] y) {{ [c] y = {op}({arguments}) }}", arrays), x_shape


@formats
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", CONVS)
def test_c32_conv(form, per_channel, kind):
    """x in [0, 6] with int8 activations has z = -128: what a pad adds is exact only if it is the code of 0."""
    model, shape = conv_model(kind)
    x = uniform(2, *shape, low=0, high=6, seed=2)
    # int8 activations go with int8 weights in both formats
    checked = quantize_and_check(model, {"x": x}, format=form, activations="int8", per_channel=per_channel)
    assert checked.zero_point("x") == -128
    assert (checked.error() <= conv_bound(model, checked, "c", x)).all()
    weight = checked.weight("c")
    channels = CONVS[kind][2][0]
    assert weight.scale.shape == ((channels,) if per_channel else ())


@formats
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_c32_conv_transpose(form, group, bias):
    model = build(
        f"""m (float[N,2,5,5] x) => (float[N,c,h,w] y) {{
            [c] y = ConvTranspose<group={group}, strides=[2,2]>(x, w{", b" if bias else ""})
        }}""",
        {"w": normal(2, 3, 2, 2)} | ({"b": normal(3 * group, seed=1)} if bias else {}),
    )
    x = normal(2, 2, 5, 5, seed=2)
    checked = quantize_and_check(model, {"x": x}, format=form)
    scale = checked.weight("c").scale
    assert scale.shape == ((3,) if group == 1 else ())
    dequantize = [n for n in checked.model.graph.node if n.op_type == "DequantizeLinear"]
    assert len(dequantize) == 1
    axes = [a.i for a in dequantize[0].attribute]
    assert axes == ([1] if group == 1 else [])
    # each output is a sum over 2 / group channels of one weight each (stride 2, kernel 2)
    assert checked.error().max() <= (2 / group) * np.abs(x).max() * scale.max() / 2 + 1e-5
    assert checked.ops == {"DequantizeLinear": 1, "ConvTranspose": 1}


# --------------------------------------------------------------------------------------------- C33: batch normalization


@formats
def test_c33_conv_and_batch_norm_become_one_conv(form):
    arrays = {
        "w": normal(2, 3, 3, 3), "b": normal(2, seed=1), "g": np.array([2, 3], np.float32), "o": normal(2, seed=5),
        "mean": normal(2, seed=6), "var": np.array([1, 4], np.float32),
    }  # fmt: skip
    model = build(
        """m (float[N,3,6,6] x) => (float[N,2,6,6] y) {
            [c] h = Conv<pads=[1,1,1,1]>(x, w, b)
            [bn] y = BatchNormalization(h, g, o, mean, var)
        }""",
        arrays,
    )
    x = normal(4, 3, 6, 6, seed=2)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.ops["BatchNormalization"] == 0
    factor = arrays["g"] / np.sqrt(arrays["var"] + 1e-5)
    folded = build(
        "m (float[N,3,6,6] x) => (float[N,2,6,6] y) { [c] y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": arrays["w"] * factor.reshape(-1, 1, 1, 1)},
    )
    assert (checked.error() <= conv_bound(folded, checked, "c", x)).all()


@formats
def test_c33_batch_norm_behind_a_relu_is_not_folded(form):
    model = build(
        """m (float[N,4,6,6] x) => (float[N,2,4,4] y) {
            [c] h = Conv(x, w)
            [r] a = Relu(h)
            [bn] y = BatchNormalization(a, g, o, mean, var)
        }""",
        {
            "w": normal(2, 4, 3, 3), "g": np.array([2, 3], np.float32), "o": normal(2, seed=5),
            "mean": normal(2, seed=6), "var": np.array([1, 4], np.float32),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.quantized() == ["c", "r"]
    assert checked.ops["BatchNormalization"] == 1
    assert checked.sqnr() >= 33


# ------------------------------------------------------------------------------------------------------------ joins


@formats
def test_a_residual_add_between_convs(form):
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [c1] h = Conv<pads=[1,1,1,1]>(x, w1, b1)
            [r1] a = Relu(h)
            [c2] g = Conv<pads=[1,1,1,1]>(a, w2)
            [add] s = Add(g, a)
            [r2] t = Relu(s)
            [c3] y = Conv<pads=[1,1,1,1]>(t, w3)
        }""",
        {
            "w1": normal(4, 4, 3, 3, scale=0.2), "b1": normal(4, seed=1), "w2": normal(4, 4, 3, 3, seed=2, scale=0.2),
            "w3": normal(4, 4, 3, 3, seed=3, scale=0.2),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.quantized() == ["c1", "r1", "c2", "add", "r2", "c3"]
    assert checked.zero_point("t") == 0
    assert checked.sqnr() >= 30


@formats
def test_squeeze_and_excite(form):
    model = build(
        """m (float[1,8,6,6] x) => (float[1,8,6,6] y) {
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [gap] g = GlobalAveragePool(a)
            [c2] s = Conv(g, w2, b2)
            [r] t = Relu(s)
            [c3] u = Conv(t, w3)
            [sg] e = Sigmoid(u)
            [mul] m = Mul(a, e)
            [c4] y = Conv<pads=[1,1,1,1]>(m, w4)
        }""",
        {
            "w1": normal(8, 8, 3, 3, scale=0.2), "w2": normal(8, 8, 1, 1, seed=1), "b2": normal(8, seed=9),
            "w3": normal(8, 8, 1, 1, seed=2), "w4": normal(8, 8, 3, 3, seed=3, scale=0.2),
        },
    )  # fmt: skip
    x = normal(8, 8, 6, 6, seed=2)
    checked = quantize_and_check(model, {"x": x}, feeds={"x": x[:1]}, format=form)
    assert {"c1", "mul", "c4"} <= set(checked.quantized())
    assert checked.sqnr() >= 26  # a gate multiplies two quantized tensors


@formats
@pytest.mark.parametrize(("factor", "shared"), [(1.0, True), (3.0, True), (10.0, False), (100.0, None)])
def test_concat_of_different_ranges(form, factor, shared):
    w1 = normal(4, 4, 3, 3, scale=0.2)
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [c2] b = Conv<pads=[1,1,1,1]>(x, w2)
            [cat] c = Concat<axis=1>(a, b)
            [c3] y = Conv<pads=[1,1,1,1]>(c, w3)
        }""",
        {"w1": w1, "w2": w1 * np.float32(factor), "w3": normal(4, 8, 3, 3, seed=3, scale=0.2)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.sqnr() >= 28
    if shared is None:
        assert "100" in checked.reason("cat")
        assert "cat" not in checked.quantized()
        assert checked.scale("b") > 50 * checked.scale("a")
        return
    assert "cat" in checked.quantized()
    assert (checked.params("a") == checked.params("b") == checked.params("c")) is shared
    assert checked.params("b") == checked.params("c") or not shared


@formats
def test_a_join_beyond_the_bounds_of_an_absorbed_clamp_requantizes(form):
    """The other input of a Concat goes to -9: under a shared range saturation could not clip at 0 and 6."""
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [c1] h = Conv<pads=[1,1,1,1]>(x, w1)
            [clip] a = Clip(h, lo, hi)
            [c2] b = Conv<pads=[1,1,1,1]>(x, w2)
            [cat] c = Concat<axis=1>(a, b)
            [c3] y = Conv<pads=[1,1,1,1]>(c, w3)
        }""",
        {
            "w1": normal(4, 4, 3, 3, scale=0.5), "w2": normal(4, 4, 3, 3, seed=1, scale=0.5),
            "w3": normal(4, 8, 3, 3, seed=3, scale=0.2), "lo": np.float32(0), "hi": np.float32(6),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert [d.clip for d in checked.result.plan.decisions if d.clip] == ["clip"]
    assert checked.params("a").range[0] == 0.0
    assert checked.params("a").range[1] <= 6.0
    assert checked.params("c") == checked.params("b") != checked.params("a")
    assert checked.sqnr() >= 30


@formats
@pytest.mark.parametrize("clamp", ["Relu(h)", "Clip(h, lo, hi)"])
@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
def test_a_clamp_that_was_always_zero(form, clamp, method):
    """No value tells its scale; 1 would let codes stand for more than the Clip allows."""
    model = build(
        f"""m (float[N,4,6,6] x) => (float[N,4,4,4] y) {{
            [c1] h = Conv<pads=[1,1,1,1]>(x, w1, b1)
            [r] a = {clamp}
            [c2] y = Conv(a, w2)
        }}""",
        {"w1": normal(4, 4, 3, 3, scale=0.1), "b1": np.full(4, -100, np.float32), "w2": normal(4, 4, 3, 3, seed=1)}
        | ({"lo": np.float32(0), "hi": np.float32(6)} if "Clip" in clamp else {}),
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form, method=method)
    assert checked.quantized() == ["c1", "r", "c2"]
    assert not checked.got["y"].any()
    if "Clip" in clamp:
        assert np.float32(checked.scale("a")) * np.float32(255) <= np.float32(6)


@formats
@pytest.mark.parametrize("opset", [10, 11, 12, 13])
@pytest.mark.parametrize("dead", [False, True])
def test_old_opsets_are_kept_where_scales_are_per_tensor(form, opset, dead):
    """Clip bounds are attributes up to opset 10; MaxPool and Pad take 8-bit integers from 12 and 13 on."""
    clip, bounds = ("Clip<min=0.0, max=6.0>(h)", {}) if opset < 11 else ("Clip(h, lo, hi)", {"lo": 0, "hi": 6})
    model = build(
        f"""m (float[N,4,6,6] x) => (float[N,4,3,3] y) {{
            [c1] h = Conv<pads=[1,1,1,1]>(x, w1, b1)
            [r] a = {clip}
            [p] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            [c2] y = Conv(p, w2, b2)
        }}""",
        {
            "w1": normal(4, 4, 3, 3), "b1": normal(4) - np.float32(100 if dead else 0),
            "w2": normal(4, 4, 1, 1, seed=1), "b2": normal(4, seed=3), **{k: np.float32(v) for k, v in bounds.items()},
        },
        opset=opset,
        ir_version=5,
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form, per_channel=False)
    assert [(o.domain, o.version) for o in checked.model.opset_import] == [("", opset)]
    assert checked.quantized() == ["c1", "r", "p", "c2"]
    assert np.float32(checked.scale("a")) * np.float32(255) <= np.float32(6)
    assert checked.sqnr() >= 30


@formats
@pytest.mark.parametrize("operation", ["Add", "Mul"])
def test_a_tensor_read_twice(form, operation):
    model = build(
        f"""m (float[N,4,6,6] x) => (float[N,4,6,6] y) {{
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [op] b = {operation}(a, a)
            [c2] y = Conv<pads=[1,1,1,1]>(b, w2)
        }}""",
        {"w1": normal(4, 4, 3, 3, scale=0.2), "w2": normal(4, 4, 3, 3, seed=1, scale=0.2)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.quantized() == ["c1", "op", "c2"]
    assert checked.sqnr() >= 28


@formats
@pytest.mark.parametrize("operation", ["Add", "Mul"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_elementwise_operator_with_a_constant(form, operation, symmetric):
    """A spatial constant cannot be folded into the Conv."""
    model = build(
        f"""m (float[N,4,6,6] x) => (float[N,4,6,6] y) {{
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [op] b = {operation}(a, k)
            [c2] y = Conv<pads=[1,1,1,1]>(b, w2)
        }}""",
        {
            "w1": normal(4, 4, 3, 3, scale=0.2), "w2": normal(4, 4, 3, 3, seed=1, scale=0.2),
            "k": uniform(1, 4, 6, 6, low=-1, high=2),
        },
    )  # fmt: skip
    options = {"activations": "int8", "symmetric_activations": True} if symmetric else {}
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form, **options)
    assert "op" in checked.quantized()
    constant = checked.weight("op")
    assert constant.dtype.name == ("int8" if symmetric else "uint8")
    assert int(constant.zero_point) == (0 if symmetric else 85)
    assert checked.sqnr() >= 28


@formats
@pytest.mark.parametrize("mask", [-np.inf, -1e38])
def test_a_mask_is_never_part_of_a_range(form, mask):
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [op] b = Add(a, k)
            [sm] p = Softmax<axis=-1>(b)
            [c2] y = Conv<pads=[1,1,1,1]>(p, w2)
        }""",
        {
            "w1": normal(4, 4, 3, 3, scale=0.2), "w2": normal(4, 4, 3, 3, seed=1, scale=0.2),
            "k": np.triu(np.full((6, 6), mask, np.float32), 1) if np.isfinite(mask) else _triangle(mask),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert "op" not in checked.quantized()
    assert all(abs(v) < 1e3 for p in checked.result.plan.tensors.values() for v in p.range)
    assert checked.sqnr() >= 30


def _triangle(value: float) -> np.ndarray:
    mask = np.zeros((6, 6), np.float32)
    mask[np.triu_indices(6, 1)] = value
    return mask


@formats
@pytest.mark.parametrize(
    "pool",
    [
        "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>",
        "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>",
        "GlobalAveragePool",
        "LeakyRelu<alpha=0.2>",
        "Sigmoid",
    ],
)
def test_operators_between_convs(form, pool):
    kernel = 1 if pool == "GlobalAveragePool" else 3
    model = build(
        f"""m (float[N,4,6,6] x) => (float[N,4,h,w] y) {{
            [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
            [op] b = {pool}(a)
            [c2] y = Conv(b, w2)
        }}""",
        {"w1": normal(4, 4, 3, 3, scale=0.2), "w2": normal(4, 4, kernel, kernel, seed=1, scale=0.2)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form, agreement_db=28)
    assert checked.quantized() == ["c1", "op", "c2"]
    assert checked.sqnr() >= 26


@formats
def test_a_skip_connection_from_what_a_conv_reads_anyway(form):
    """The input is quantized for the Conv: the Add takes the same codes instead of breaking the chain."""
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            [c1] a = Conv<pads=[1,1,1,1]>(x, w)
            [add] b = Add(a, x)
            [c2] y = Conv<pads=[1,1,1,1]>(b, w)
        }""",
        {"w": normal(4, 4, 3, 3, scale=0.2)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.quantized() == ["c1", "add", "c2"]
    assert checked.sqnr() >= 30


@formats
def test_a_skip_connection_that_only_the_add_reads_stays_float(form):
    model = build(
        """m (float[N,4,6,6] x, float[N,4,6,6] z) => (float[N,4,6,6] y) {
            [c1] a = Conv<pads=[1,1,1,1]>(x, w)
            [add] b = Add(a, z)
            [c2] y = Conv<pads=[1,1,1,1]>(b, w)
        }""",
        {"w": normal(4, 4, 3, 3, scale=0.2)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2), "z": normal(4, 4, 6, 6, seed=3)}, format=form)
    assert "add" not in checked.quantized()
    assert "its inputs exist in float" in checked.reason("add")
