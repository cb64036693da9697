from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qtool.prepare.fold_constants import FoldConstantsPass
from qtool.prepare.lift_constants import LiftConstantsPass


def fold(apply, proto):
    step = FoldConstantsPass()
    model, modified = apply(proto, step)
    assert modified == bool(step.actions)
    return model


@pytest.mark.parametrize(
    ("chain", "shape"),
    [
        ("w = Transpose<perm=[1,0]>(c)", (3, 4)),
        ("s = Constant<value = int64[2] {4, 3}>() w = Reshape(c, s)", (12,)),
        ("w = Identity(c)", (4, 3)),
        ("d = Cast<to=10>(c) w = Cast<to=1>(d)", (4, 3)),
        ("t = Transpose<perm=[1,0]>(c) u = Transpose<perm=[1,0]>(t) v = Mul(u, u) w = Sub(v, u)", (4, 3)),
        ("n = ReduceL2<axes=[0], keepdims=1>(c) w = Div(c, n)", (4, 3)),
    ],
)
def test_weights_come_to_light(build, apply, same, rng, chain, shape):
    proto = build(
        f"g (float[N,4] x) => (float[N,3] y) {{ {chain} y = MatMul(x, w) }}",
        {"c": rng.normal(size=shape).astype(np.float32)},
    )
    model = ir.from_proto(proto)
    LiftConstantsPass()(model)
    FoldConstantsPass()(model)
    assert [n.op_type for n in model.graph] == ["MatMul"]
    assert "w" in model.graph.initializers
    assert model.graph.initializers["w"].const_value.numpy().flags.c_contiguous
    same(proto, model, {"x": rng.normal(size=(2, 4)).astype(np.float32)}, rtol=1e-6)


def test_shape_arithmetic(build, apply, same, ops):
    proto = build(
        """g (float[2,6] x) => (float[6,2] y) {
            a = Add(p, q) b = Div(a, q) m = Mul(b, q) s = Concat<axis=0>(m, f)
            y = Reshape(x, s)
        }""",
        {"p": np.asarray([4]), "q": np.asarray([2]), "f": np.asarray([-1])},
    )
    model = fold(apply, proto)
    assert ops(model) == ["Reshape"]
    same(proto, model, {"x": np.arange(12, dtype=np.float32).reshape(2, 6)})


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        ("c = Div(p, q)", {"p": np.asarray([-7]), "q": np.asarray([2])}, "NumPy rounds down, ONNX truncates"),
        ("c = Div(p, q)", {"p": np.asarray([7]), "q": np.asarray([0])}, "division by zero"),
        ("c = Cast<to=7>(p)", {"p": np.asarray([1e30], np.float32)}, "out of range"),
        ("c = Cast<to=7>(p)", {"p": np.asarray([np.nan], np.float32)}, "not a number"),
        ("c = Reshape(p, q)", {"p": np.asarray([1, 2]), "q": np.asarray([3])}, "not a valid node"),
        ("d = RandomNormalLike(p) c = Cast<to=7>(d)", {"p": np.asarray([1.0], np.float32)}, "not deterministic"),
    ],
)
def test_what_has_no_exact_result_stays(build, apply, body, arrays, reason):
    proto = build(f"g (int64[1] x) => (int64[1] y) {{ {body} y = Add(x, c) }}", arrays)
    assert [n.op_type for n in fold(apply, proto).graph] == [n.op_type for n in proto.graph.node], reason


def test_never_a_dequantize(build, apply, ops):
    proto = build(
        "g (float[1,3] x) => (float[1,3] y) { w = DequantizeLinear(q, s) y = Add(x, w) }",
        {"q": np.zeros(3, np.uint8), "s": np.float32(0.1)},
    )
    assert ops(fold(apply, proto)) == ["DequantizeLinear", "Add"]


def test_a_graph_output_stays_a_node(build, apply, ops):
    proto = build(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Neg(w) z = Add(x, y) }", {"w": np.ones(2, np.float32)}
    )
    assert ops(fold(apply, proto)) == ["Neg", "Add"]


BIG = np.asarray([1024, 1024], np.int64)


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ("c = ConstantOfShape<value = float[1] {2}>(s)", {"s": BIG}),
        ("c = Expand(v, s)", {"v": np.asarray([2], np.float32), "s": BIG}),
        ("c = Tile(v, s)", {"v": np.asarray([[2]], np.float32), "s": BIG}),
        ("c = Add(v, w)", {"v": np.ones((1024, 1), np.float32), "w": np.ones((1, 1024), np.float32)}),
    ],
)
def test_blow_ups_are_folded_only_into_weights(build, apply, ops, body, arrays):
    kept = build(f"g (float[1024,1024] x) => (float[1024,1024] y) {{ {body} y = Add(x, c) }}", arrays)
    assert len(ops(fold(apply, kept))) == 2
    weight = build(
        f"g (float[N,1024] x) => (float[N,1024] y) {{ {body} t = Transpose<perm=[1,0]>(c) y = MatMul(x, t) }}", arrays
    )
    assert ops(fold(apply, weight)) == ["MatMul"]


def test_range(build, apply, ops):
    arrays = {"a": np.int64(0), "b": np.int64(5), "d": np.int64(2)}
    model = fold(apply, build("g (int64[3] x) => (int64[3] y) { r = Range(a, b, d) y = Add(x, r) }", arrays))
    assert model.graph.initializers["r"].const_value.numpy().tolist() == [0, 2, 4]
    big = {**arrays, "b": np.int64(10**9)}
    assert ops(fold(apply, build("g (int64[1] x) => (int64[n] y) { r = Range(a, b, d) y = Add(x, r) }", big))) == [
        "Range",
        "Add",
    ]


def test_a_gather_of_few_rows_of_a_large_table_is_small(build, apply, ops):
    proto = build(
        "g (float[2,64] x) => (float[2,64] y) { r = Gather(t, i) y = Add(x, r) }",
        {"t": np.ones((10_000, 64), np.float32), "i": np.asarray([3, 5])},
    )
    assert ops(fold(apply, proto)) == ["Add"]


def test_float16_and_bfloat16_weights_behind_a_cast(build, apply, same, rng):
    weight = rng.normal(size=(4, 3)).astype(np.float32)
    for narrow in (np.float16, ml_dtypes.bfloat16):
        proto = build(
            "g (float[N,4] x) => (float[N,3] y) { w = Cast<to=1>(c) y = MatMul(x, w) }", {"c": weight.astype(narrow)}
        )
        model = fold(apply, proto)
        assert np.array_equal(
            model.graph.initializers["w"].const_value.numpy(), weight.astype(narrow).astype(np.float32)
        )


def test_split_gives_several_constants(build, apply, same, ops):
    proto = build(
        "g (float[2] x) => (float[2] y) { a, b = Split<axis=0>(w) c = Sub(a, b) y = Add(x, c) }",
        {"w": np.asarray([1, 2, 3, 5], np.float32)},
    )
    model = fold(apply, proto)
    assert ops(model) == ["Add"]
    same(proto, model, {"x": np.zeros(2, np.float32)})


def test_nodes_with_inputs_of_the_caller_stay(build, apply, ops):
    proto = build("g (float[2] x) => (float[2] y) { a = Add(x, w) y = Mul(a, w) }", {"w": np.ones(2, np.float32)})
    assert ops(fold(apply, proto)) == ["Add", "Mul"]


def test_an_initializer_that_the_caller_can_override_is_no_constant(build, apply, ops):
    proto = build(
        "g (float[2] x, float[2] w) => (float[2] y) { a = Neg(w) y = Mul(a, x) }", {"w": np.ones(2, np.float32)}
    )
    assert ops(fold(apply, proto)) == ["Neg", "Mul"]
