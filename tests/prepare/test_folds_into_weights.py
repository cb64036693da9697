"""BatchNormalization, Mul and Add behind an operator with weights: folded where exact, left where not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.prepare.fold_batch_norm import FoldBatchNormPass
from qtool.prepare.fold_conv_affine import FoldConvAddPass, FoldConvMulPass

RTOL = 1e-6
BN = "BatchNormalization(a, scale, beta, mean, var)"


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def bn(rng, channels):
    return {
        "scale": floats(rng, channels),
        "beta": floats(rng, channels),
        "mean": floats(rng, channels),
        "var": rng.uniform(0.5, 4, channels).astype(np.float32),
    }


def name_nodes(proto):
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type.lower()}{number}"
    return proto


# ---- BatchNormalization

OPERATORS = {
    "conv": ("Conv(x, w)", (2, 3, 6, 6), (4, 3, 3, 3), 4),
    "conv bias": ("Conv(x, w, b)", (2, 3, 6, 6), (4, 3, 3, 3), 4),
    "conv 1-D": ("Conv(x, w, b)", (2, 3, 6), (4, 3, 3), 4),
    "conv 3-D": ("Conv(x, w)", (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), 3),
    "depthwise": ("Conv<group=3, pads=[1,1,1,1]>(x, w)", (2, 3, 6, 6), (3, 1, 3, 3), 3),
    "transpose": ("ConvTranspose<strides=[2,2]>(x, w, b)", (2, 3, 5, 5), (3, 4, 2, 2), 4),
    "transpose grouped": ("ConvTranspose<group=2>(x, w, b)", (2, 4, 5, 5), (4, 3, 2, 2), 6),
    "gemm": ("Gemm(x, w, b)", (5, 3), (3, 4), 4),
    "gemm transB": ("Gemm<transB=1>(x, w)", (5, 3), (4, 3), 4),
    "matmul": ("MatMul(x, w)", (5, 3), (3, 4), 4),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_batch_norm_behind(name, build, apply, same, ops, rng):
    call, x, w, channels = OPERATORS[name]
    arrays = {"w": floats(rng, *w), **bn(rng, channels)}
    if ", b)" in call:
        arrays["b"] = floats(rng, channels)
    dims = ",".join(map(str, x))
    rank = ",".join("abcdefg"[: len(x)])
    proto = name_nodes(build(f"g (float[{dims}] x) => (float[{rank}] y) {{ a = {call} y = {BN} }}", arrays))
    step = FoldBatchNormPass()
    model, modified = apply(proto, step)
    assert modified
    assert ops(model) == [{"MatMul": "Gemm"}.get(call.split("(")[0], call.split("(")[0].split("<")[0])]
    node = model.graph[0]
    assert node.name == proto.graph.node[0].name
    assert json.loads(node.metadata_props["qtool.origin"]) == [n.name for n in proto.graph.node]
    assert step.actions == ("folded 1 BatchNormalization into the weights before",)
    same(proto, model, {"x": floats(rng, *x)}, rtol=RTOL)


def test_c33_the_folded_weights_are_these(build, apply):
    arrays = {
        "w": np.asarray([1, -2], np.float32).reshape(2, 1, 1, 1),
        "scale": np.asarray([2, 3], np.float32),
        "beta": np.asarray([10, 20], np.float32),
        "mean": np.asarray([1, 2], np.float32),
        "var": np.asarray([1, 4], np.float32),
    }
    text = f"g (float[1,1,2,2] x) => (float[1,2,2,2] y) {{ a = Conv(x, w) y = {BN} }}".replace(
        "(a,", "<epsilon=0.0>(a,"
    )
    model, _ = apply(build(text, arrays), FoldBatchNormPass())
    weight, bias = (value.const_value.numpy() for value in model.graph[0].inputs[1:])
    assert weight.ravel().tolist() == [2.0, -3.0]
    assert bias.tolist() == [8.0, 17.0]
    assert weight.dtype == bias.dtype == np.float32


@pytest.mark.parametrize(
    "body",
    [
        "a = Conv(x, w) r = Relu(a) y = BatchNormalization(r, scale, beta, mean, var)",
        f"a = Conv(x, w) y0 = {BN} y = Add(y0, a)",
        "a = Conv(x, w) y, m, v = BatchNormalization<training_mode = 1>(a, scale, beta, mean, var)",
    ],
    ids=["relu between", "two readers", "training"],
)
def test_batch_norm_stays(body, build, apply, ops, rng):
    proto = build(
        f"g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ {body} }}", {"w": floats(rng, 3, 2, 1, 1), **bn(rng, 3)}
    )
    model, modified = apply(proto, FoldBatchNormPass())
    assert not modified
    assert ops(model) == [n.op_type for n in proto.graph.node]


def test_batch_norm_stays_when_the_value_between_is_an_output_or_captured(build, apply, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1), **bn(rng, 3)}
    output = build(
        f"g (float[1,2,4,4] x) => (float[1,3,4,4] a, float[1,3,4,4] y) {{ a = Conv(x, w) y = {BN} }}", arrays
    )
    assert not apply(output, FoldBatchNormPass())[1]
    captured = build(
        f"""g (bool c, float[1,2,4,4] x) => (float[1,3,4,4] y) {{
            a = Conv(x, w) n = {BN}
            y = If(c) <then_branch = t () => (float[1,3,4,4] p) {{ p = Neg(a) }},
                       else_branch = e () => (float[1,3,4,4] q) {{ q = Abs(n) }}>
        }}""",
        arrays,
    )
    assert not apply(captured, FoldBatchNormPass())[1]


def test_batch_norm_inside_a_body_stays(build, apply, rng):
    proto = build(
        f"""g (bool c, float[1,2,4,4] x) => (float[1,3,4,4] y) {{
            a = Conv(x, w)
            y = If(c) <then_branch = t () => (float[1,3,4,4] p) {{ p = {BN} }},
                       else_branch = e () => (float[1,3,4,4] q) {{ q = Conv(x, w) }}>
        }}""",
        {"w": floats(rng, 3, 2, 1, 1), **bn(rng, 3)},
    )
    assert not apply(proto, FoldBatchNormPass())[1]


def test_batch_norm_with_parameters_that_are_not_constant_stays(build, apply, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1), **bn(rng, 3)}
    del arrays["mean"]
    proto = build(f"g (float[1,2,4,4] x, float[3] mean) => (float[1,3,4,4] y) {{ a = Conv(x, w) y = {BN} }}", arrays)
    assert not apply(proto, FoldBatchNormPass())[1]


def test_batch_norm_behind_a_3d_matmul_stays(build, apply, rng):
    proto = build(
        f"g (float[2,3,4] x) => (float[2,3,3] y) {{ a = MatMul(x, w) y = {BN} }}",
        {"w": floats(rng, 4, 3), **bn(rng, 3)},
    )
    assert not apply(proto, FoldBatchNormPass())[1]


def test_a_shared_weight_is_not_changed_for_its_other_reader(build, apply, same, rng):
    proto = build(
        f"g (float[1,2,4,4] x) => (float[1,3,4,4] y, float[1,3,4,4] z) {{ a = Conv(x, w) y = {BN} z = Conv(x, w) }}",
        {"w": floats(rng, 3, 2, 1, 1), **bn(rng, 3)},
    )
    model, _ = apply(proto, FoldBatchNormPass())
    assert model.graph[1].inputs[1].name == "w"
    assert model.graph[0].inputs[1].name != "w"
    same(proto, model, {"x": floats(rng, 1, 2, 4, 4)}, rtol=RTOL)


def test_float16_weights_that_would_overflow_stay(build, apply, rng):
    arrays = {k: v.astype(np.float16) for k, v in {"w": floats(rng, 3, 2, 1, 1) + 9, **bn(rng, 3)}.items()}
    arrays["scale"] = np.full(3, 60000, np.float16)
    proto = build(f"g (float16[1,2,4,4] x) => (float16[1,3,4,4] y) {{ a = Conv(x, w) y = {BN} }}", arrays)
    assert not apply(proto, FoldBatchNormPass())[1]


def test_new_names_do_not_collide(build, apply, same, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1), "w_folded": floats(rng, 1), **bn(rng, 3)}
    proto = name_nodes(
        build(
            f"""g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{
                a = Conv(x, w) conv0_bias = {BN} y = Add(conv0_bias, w_folded)
            }}""",
            arrays,
        )
    )
    model, _ = apply(proto, FoldBatchNormPass())
    assert [v.name for v in model.graph[0].inputs] == ["x", "w_folded_1", "conv0_bias_1"]
    same(proto, model, {"x": floats(rng, 1, 2, 4, 4)}, rtol=RTOL)


# ---- Add, Sub, Mul, Div

FOLLOWERS = [
    ("Add", "Add(a, c)", (3, 1, 1)),
    ("Add", "Add(c, a)", (1, 3, 1, 1)),
    ("Add", "Add(a, c)", ()),
    ("Add", "Add(a, c)", (1, 1)),
    ("Add", "Sub(a, c)", (3, 1, 1)),
    ("Add", "Sub(c, a)", (3, 1, 1)),
    ("Mul", "Mul(a, c)", (3, 1, 1)),
    ("Mul", "Mul(c, a)", (1,)),
    ("Mul", "Div(a, c)", (1, 3, 1, 1)),
]
PASSES = {"Add": FoldConvAddPass, "Mul": FoldConvMulPass}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("kind", "follower", "shape"), FOLLOWERS)
def test_affine_followers(kind, follower, shape, operator, bias, build, apply, same, ops, rng):
    arrays = {"w": floats(rng, *((3, 2) if operator == "Conv" else (2, 3)), 2, 2), "c": floats(rng, *shape)}
    if bias:
        arrays["b"] = floats(rng, 3)
    call = f"{operator}(x, w, b)" if bias else f"{operator}(x, w)"
    proto = name_nodes(build(f"g (float[1,2,4,4] x) => (float[a,b,c1,d] y) {{ a = {call} y = {follower} }}", arrays))
    model, modified = apply(proto, PASSES[kind]())
    assert modified
    assert ops(model) == [operator]
    assert json.loads(model.graph[0].metadata_props["qtool.origin"]) == [n.name for n in proto.graph.node]
    same(proto, model, {"x": floats(rng, 1, 2, 4, 4)}, rtol=RTOL)


@pytest.mark.parametrize(
    ("kind", "follower", "constant"),
    [
        ("Add", "Add(a, c)", np.ones((1, 1, 4, 1))),
        ("Add", "Add(a, c)", np.ones(4)),
        ("Add", "Add(a, c)", np.ones((1, 1, 1, 1, 1))),
        ("Add", "Add(a, c)", np.full((3, 1, 1), -np.inf)),
        ("Add", "Add(a, a)", np.ones(1)),
        ("Mul", "Mul(a, a)", np.ones(1)),
        ("Mul", "Div(c, a)", np.ones((3, 1, 1))),
        ("Mul", "Div(a, c)", np.asarray([1, 0, 1]).reshape(3, 1, 1)),
        ("Mul", "Mul(a, c)", np.full((3, 1, 1), np.nan)),
        ("Mul", "Mul(a, c)", np.full((3, 1, 1), 3e38)),
    ],
    ids=["height", "width", "raises the rank", "mask", "twice", "square", "reciprocal", "zero", "nan", "overflow"],
)
def test_affine_followers_that_stay(kind, follower, constant, build, apply, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1) + 9, "c": constant.astype(np.float32)}
    proto = build(f"g (float[1,2,4,4] x) => (y) {{ a = Conv(x, w) y = {follower} }}", arrays)
    assert not apply(proto, PASSES[kind]())[1]


def test_a_chain_folds_link_by_link(build, apply, same, ops, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1), "c": floats(rng, 3, 1, 1), "d": floats(rng, 1)}
    proto = build(
        "g (float[1,2,4,4] x) => (float[1,3,4,4] y) { a = Conv(x, w) p = Add(a, c) q = Sub(d, p) y = Add(q, c) }",
        arrays,
    )
    step = FoldConvAddPass()
    model, _ = apply(proto, step)
    assert ops(model) == ["Conv"]
    assert step.actions == ("folded 3 Add of a constant into convolution biases",)
    same(proto, model, {"x": floats(rng, 1, 2, 4, 4)}, rtol=RTOL)


def test_a_bias_that_is_not_constant_blocks_the_fold(build, apply, rng):
    arrays = {"w": floats(rng, 3, 2, 1, 1), "c": floats(rng, 3, 1, 1)}
    proto = build("g (float[1,2,4,4] x, float[3] b) => (float[1,3,4,4] y) { a = Conv(x, w, b) y = Add(a, c) }", arrays)
    assert not apply(proto, FoldConvAddPass())[1]


@settings(max_examples=30, deadline=None)
@given(
    group=st.integers(1, 3),
    per_in=st.integers(1, 3),
    per_out=st.integers(1, 3),
    spatial=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_scaling_channels_is_scaling_the_output(group, per_in, per_out, spatial, seed):
    import onnx_ir as ir

    from qtool.prepare.fold_scale_shift import _scale_channels, output_channels

    rng = np.random.default_rng(seed)
    attributes = [ir.AttrInt64("group", group)]
    factors = rng.normal(size=group * per_out)
    for op_type, shape in (("Conv", (group * per_out, per_in)), ("ConvTranspose", (group * per_in, per_out))):
        weight = floats(rng, *shape, *[2] * spatial)
        node = ir.Node("", op_type, [], attributes)
        assert output_channels(node, weight.shape) == group * per_out
        scaled = _scale_channels(node, weight, factors)
        for channel in range(group * per_out):
            if op_type == "Conv":
                ours, theirs = scaled[channel], weight[channel]
            else:
                rows = slice(channel // per_out * per_in, (channel // per_out + 1) * per_in)
                ours, theirs = scaled[rows, channel % per_out], weight[rows, channel % per_out]
            assert np.array_equal(ours, theirs.astype(np.float64) * factors[channel])
