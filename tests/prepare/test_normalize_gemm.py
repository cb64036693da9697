from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from qtool.prepare.normalize_gemm import NormalizeGemmPass

M, K, N = 5, 4, 3
ROWS = [(), (1,), (N,), (1, N), (1, 1)]
OTHERS = [(M, N), (M, 1)]


def gemm(build, rng, *, alpha, beta, trans_a, trans_b, bias, constant_b=True, constant_c=True, dtype=np.float32):
    kind = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    shapes = {"A": (K, M) if trans_a else (M, K), "B": (N, K) if trans_b else (K, N), "C": bias}
    arrays = {key: rng.normal(size=shape).astype(dtype) for key, shape in shapes.items() if shape is not None}
    given = ["A"] + ["B"] * (not constant_b) + ["C"] * (bias is not None and not constant_c)
    inputs = ", ".join(f"{kind}[{','.join(map(str, arrays[key].shape))}] {key}" for key in given)
    call = f"Gemm<alpha={alpha}, beta={beta}, transA={trans_a:d}, transB={trans_b:d}>"
    args = ", ".join(key for key in "ABC" if key in arrays)
    proto = build(
        f"g ({inputs}) => ({kind}[{M},{N}] Y) {{ [dense] Y = {call}({args}) }}",
        {key: array for key, array in arrays.items() if key not in given},
    )
    return proto, {key: arrays[key] for key in given}


@pytest.mark.parametrize(
    ("alpha", "beta", "trans_a", "trans_b"),
    [*itertools.product([1.0, 0.5], [1.0, -2.0, 0.0], [False, True], [False, True])],
)
@pytest.mark.parametrize("bias", [None, *ROWS])
def test_constant_weight_and_row_bias(alpha, beta, trans_a, trans_b, bias, build, apply, same, rng):
    proto, feeds = gemm(build, rng, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, bias=bias)
    step = NormalizeGemmPass()
    model, modified = apply(proto, step)
    assert modified == (alpha != 1.0 or (beta != 1.0) or trans_a or trans_b or bias not in (None, (N,)))
    node = model.graph[-1]
    assert node.op_type == "Gemm"
    assert node.name == "dense"
    assert [n.op_type for n in model.graph] == (["Transpose"] if trans_a else []) + ["Gemm"]
    if modified:
        assert not node.attributes
        assert step.actions == ("normalized 1 Gemm",)
        assert node.inputs[1].const_value.shape.numpy() == (K, N)
        if bias is not None and beta != 0.0:
            assert node.inputs[2].const_value.shape.numpy() == (N,)
        else:
            assert len(node.inputs) == 2
        if trans_a:
            assert json.loads(model.graph[0].metadata_props["qtool.origin"]) == ["dense"]
    same(proto, model, feeds, rtol=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), [*itertools.product([1.0, 0.5], [1.0, -2.0, 0.0])])
@pytest.mark.parametrize(
    ("bias", "constant_b", "constant_c"),
    [
        *((shape, True, True) for shape in OTHERS),
        ((N,), True, False),
        ((N,), False, True),
        ((M, 1), False, False),
        (None, False, True),
    ],
)
@pytest.mark.parametrize("trans", [False, True])
def test_anything_else_becomes_matmul_and_add(
    alpha, beta, bias, constant_b, constant_c, trans, build, apply, same, rng
):
    proto, feeds = gemm(
        build,
        rng,
        alpha=alpha,
        beta=beta,
        trans_a=trans,
        trans_b=trans,
        bias=bias,
        constant_b=constant_b,
        constant_c=constant_c,
    )
    model, modified = apply(proto, NormalizeGemmPass())
    assert modified
    types = [n.op_type for n in model.graph]
    assert "Gemm" not in types
    assert types.count("MatMul") == 1
    assert types.count("Add") == (bias is not None and beta != 0.0)
    assert next(n for n in model.graph if n.op_type == "MatMul").name == "dense"
    for node in model.graph:
        if node.name != "dense":
            assert json.loads(node.metadata_props["qtool.origin"]) == ["dense"]
    same(proto, model, feeds, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(dtype, build, apply, same, rng):
    proto, feeds = gemm(build, rng, alpha=0.5, beta=2.0, trans_a=False, trans_b=True, bias=(1, N), dtype=dtype)
    model, _ = apply(proto, NormalizeGemmPass())
    assert model.graph[0].inputs[1].const_value.numpy().dtype == dtype
    same(proto, model, feeds, rtol=2e-3 if dtype == np.float16 else 1e-14)


def test_integer_gemm_stays(build, apply):
    proto = build("g (int32[2,2] A) => (int32[2,2] Y) { Y = Gemm<transB=1>(A, B) }", {"B": np.ones((2, 2), np.int32)})
    assert not apply(proto, NormalizeGemmPass())[1]


def test_a_weight_that_two_nodes_read_differently(build, apply, same, rng):
    proto = build(
        "g (float[2,3] A) => (float[2,3] Y) { h = Gemm<transB=1>(A, B) Y = Gemm(h, B) }",
        {"B": rng.normal(size=(3, 3)).astype(np.float32)},
    )
    model, _ = apply(proto, NormalizeGemmPass())
    assert [n.inputs[1].name for n in model.graph] == ["B_transposed", "B"]
    same(proto, model, {"A": rng.normal(size=(2, 3)).astype(np.float32)}, rtol=1e-6)


def test_the_result_keeps_its_name_when_others_read_it(build, apply, same, rng):
    proto = build(
        "g (float[2,3] A, float[2,4] C) => (float[2,4] Y, float[2,4] Z) { Y = Gemm(A, B, C) Z = Relu(Y) }",
        {"B": rng.normal(size=(3, 4)).astype(np.float32)},
    )
    model, _ = apply(proto, NormalizeGemmPass())
    assert [n.op_type for n in model.graph] == ["MatMul", "Add", "Relu"]
    assert model.graph[1].outputs[0].name == model.graph[2].inputs[0].name == "Y"
    feeds = {"A": rng.normal(size=(2, 3)).astype(np.float32), "C": rng.normal(size=(2, 4)).astype(np.float32)}
    same(proto, model, feeds, rtol=1e-6)
