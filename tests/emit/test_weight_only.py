"""Weight-only mode: numbers of every layout, what onnxruntime fuses, and weights that are shared or odd."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from qtool.granularity import PerAxis, PerBlock, PerTensor
from qtool.plan.stored import Layout
from qtool.weight_settings import WEIGHT_ONLY_DTYPES
from tests.emit.weight_only_support import store
from tests.models import build, normal, run

INTEGERS = ("int8", "uint8", "int4", "uint4", "int2", "uint2")


def product(k: int = 64, n: int = 32, *, opset: int = 17, bias: tuple[int, ...] | None = None) -> onnx.ModelProto:
    """y = x w (+ b), x of (rows, k)."""
    arrays = {"w": normal(k, n, seed=1)}
    text = f"g (float[rows, {k}] x) => (float[rows, {n}] y) {{ y = MatMul (x, w) }}"
    if bias is not None:
        arrays["b"] = normal(*bias, seed=2)
        text = text.replace("y = MatMul (x, w)", "p = MatMul (x, w) y = Add (p, b)")
    return build(text, arrays, opset=opset)


def rows(k: int = 64, count: int = 5) -> dict[str, np.ndarray]:
    return {"x": normal(count, k, seed=9)}


# ------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("weights", WEIGHT_ONLY_DTYPES)
def test_a_product_in_every_type(weights, tmp_path):
    model = store(product(), rows(), weights=weights)
    assert model.ops == {"DequantizeLinear": 1, "MatMul": 1}
    if not weights.startswith("float"):
        assert model.fused(tmp_path / "o.onnx") == {"MatMulNBits": 1}


@pytest.mark.parametrize("weights", ["float8e4m3fn", "float8e5m2", "float4e2m1"])
@pytest.mark.parametrize("block", [None, 16, 48])
def test_microscaling(weights, block):
    model = store(product(), rows(), weights=weights, scale_type="float8e8m0", block=block)
    assert model.weight().granularity == PerBlock(0, block or 32)
    (scale,) = (t for t in model.model.graph.initializer if t.name == "w_scale")
    assert scale.data_type == TensorProto.FLOAT8E8M0
    assert "w_zero_point" not in model.initializers  # a float format has none


@pytest.mark.parametrize("weights", INTEGERS)
@pytest.mark.parametrize("block", [16, 24, 32, 100, 128])
@pytest.mark.parametrize(("k", "n"), [(70, 33), (100, 36), (33, 68)])
def test_odd_shapes_and_partial_blocks(weights, block, k, n):
    """Among them the columns that onnxruntime 1.32 fuses wrongly at 2 bits."""
    store(product(k, n), rows(k), weights=weights, block=block)


@pytest.mark.parametrize("weights", ["int2", "uint2"])
def test_2_bit_columns_that_onnxruntime_would_fuse_wrongly_are_transposed(weights, tmp_path):
    model = store(product(64, 33), rows(), weights=weights)
    assert model.weight().layout is Layout.TRANSPOSED
    assert "MatMulNBits" not in model.fused(tmp_path / "o.onnx")
    assert store(product(64, 36), rows(), weights=weights).fused(tmp_path / "o.onnx") == {"MatMulNBits": 1}


@pytest.mark.parametrize("bias", [(32,), (1, 32)])
def test_a_bias_does_not_keep_a_product_from_being_fused(bias, tmp_path):
    model = build(
        "g (float[4, 64] x) => (float[4, 32] y) { p = MatMul (x, w) y = Add (p, b) }",
        {"w": normal(64, 32, seed=1), "b": normal(*bias, seed=2)},
    )
    assert store(model, rows(count=4), weights="int4").fused(tmp_path / "o.onnx") == {"MatMulNBits": 1}


def test_a_bias_that_raises_the_rank_stays():
    model = build(
        "g (float[4, 64] x) => (float[1, 4, 32] y) { p = MatMul (x, w) y = Add (p, b) }",
        {"w": normal(64, 32, seed=1), "b": normal(1, 1, 32, seed=2)},
    )
    assert store(model, rows(count=4), weights="int4").initializers["b"].shape == (1, 1, 32)


@pytest.mark.parametrize("trans", [0, 1])
def test_gemm(trans, tmp_path):
    w = normal(*((32, 64) if trans else (64, 32)), seed=1)
    model = build(
        f"g (float[4, 64] x) => (float[4, 32] y) {{ y = Gemm <transB={trans}> (x, w, b) }}",
        {"w": w, "b": normal(32, seed=2)},
    )
    import qtool

    result = qtool.quantize(model, weight_only=True, weights="int4")
    assert result.model is not None
    feeds = rows(count=4)
    (weight,) = result.plan.decisions[0].weights
    expected, got = run(model, feeds)["y"], run(result.model, feeds, optimize=True)["y"]
    assert np.corrcoef(expected.ravel(), got.ravel())[0, 1] > 0.99
    assert weight.params is not None
    assert weight.params.granularity == PerBlock(0, 32)
    from tests.models import optimized_ops

    assert optimized_ops(result.model, tmp_path / "o.onnx") == {"MatMulNBits": 1}


@pytest.mark.parametrize("weights", ["int8", "int4", "float8e4m3fn"])
@pytest.mark.parametrize(
    ("x", "w", "left"),
    [((3, 5, 64), (3, 64, 16), False), ((64,), (64, 32), False), ((5, 64), (64,), False), ((64, 5), (48, 64), True)],
)
def test_ranks_and_sides(weights, x, w, left):
    shape = np.matmul(np.zeros(w if left else x), np.zeros(x if left else w)).shape
    operands = "w, x" if left else "x, w"
    out = ", ".join(map(str, shape))
    # a 1-D weight of 64 elements is not worth it: make it one of 640
    k = 64 if len(w) > 1 else 640
    x = tuple(k if d == 64 else d for d in x)
    w = tuple(k if d == 64 else d for d in w)
    model = build(
        f"g (float[{', '.join(map(str, x))}] x) => (float[{out}] y) {{ y = MatMul ({operands}) }}", {"w": normal(*w)}
    )
    store(model, {"x": normal(*x, seed=4)}, weights=weights)


@pytest.mark.parametrize("weights", ["int8", "uint8", "int4", "float8e4m3fn"])
def test_half_precision_models_keep_their_type(weights):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3, 48])],
        [onnx.numpy_helper.from_array(normal(64, 48).astype(np.float16), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stored = store(model, {"x": normal(3, 64).astype(np.float16)}, weights=weights, exact=45.0)
    assert stored.initializers["w_scale"].dtype == np.float16


def test_tied_weights_are_stored_once_and_that_is_said():
    model = build(
        "g (float[4, 64] x) => (float[4, 64] y) { a = MatMul (x, w) b = Tanh (a) y = MatMul (b, w) }",
        {"w": normal(64, 64, scale=0.1)},
    )
    stored = store(model, rows(count=4), weights="int4")
    assert sum(t.data_type == TensorProto.INT4 and t.dims[0] == 64 for t in stored.model.graph.initializer) == 1
    assert stored.ops["DequantizeLinear"] == 1
    assert any("stored once" in note for note in stored.result.notes)


def test_equal_weights_of_two_nodes_have_scales_of_their_own(tmp_path):
    """A shared scale would keep onnxruntime from fusing either."""
    w = normal(64, 64, scale=0.1)
    model = build(
        "g (float[4, 64] x) => (float[4, 64] y) { a = MatMul (x, w) b = Tanh (a) y = MatMul (b, v) }",
        {"w": w, "v": w.copy()},
    )
    fused = store(model, rows(count=4), weights="int4").fused(tmp_path / "o.onnx")
    assert fused["MatMulNBits"] == 2


# --------------------------------------------------------------------------------------------------- convolutions

CONVS = {
    "1x1": ((48, 64, 1, 1), "group = 1", Layout.DIRECT, PerBlock(1, 32)),
    "whole blocks": ((24, 32, 3, 3), "pads = [1, 1, 1, 1]", Layout.DIRECT, PerBlock(1, 32)),
    "flat": ((24, 20, 3, 3), "pads = [1, 1, 1, 1]", Layout.FLAT, PerBlock(1, 32)),
    "1x1 odd": ((48, 50, 1, 1), "group = 1", Layout.DIRECT, PerBlock(1, 32)),
    "depthwise": ((160, 1, 3, 3), "group = 160", Layout.DIRECT, PerAxis(0)),
}


@pytest.mark.parametrize("weights", ["int4", "uint4", "int2", "float4e2m1"])
@pytest.mark.parametrize("kind", CONVS)
def test_convolutions(kind, weights):
    shape, attributes, layout, granularity = CONVS[kind]
    channels = 160 if kind == "depthwise" else shape[1]
    model = build(
        f"g (float[1, {channels}, 6, 6] x) => (float[1, {shape[0]}, h, v] y) {{ "
        f"c = Conv <{attributes}> (x, w, b) y = Relu (c) }}",
        {"w": normal(*shape), "b": normal(shape[0])},
    )
    stored = store(model, {"x": normal(1, channels, 6, 6, seed=3)}, weights=weights)
    weight = stored.weight()
    assert (weight.layout, weight.granularity) == (layout, granularity)
    assert stored.ops["Reshape"] == (layout is Layout.FLAT)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(weights, rank):
    kernel, space = [3] * rank, [5] * rank
    dims = ", ".join(map(str, [1, 16, *space]))
    out = ", ".join(["1", "24", *(["3"] * rank)])
    model = build(f"g (float[{dims}] x) => (float[{out}] y) {{ y = Conv (x, w) }}", {"w": normal(24, 16, *kernel)})
    store(model, {"x": normal(1, 16, *space)}, weights=weights)


@pytest.mark.parametrize("weights", ["int8", "int4", "float8e4m3fn"])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions(weights, group):
    model = build(
        f"g (float[1, 32, 4, 4] x) => (float[1, {24 * group}, h, v] y) {{ y = ConvTranspose <group={group}> (x, w) }}",
        {"w": normal(32, 24, 2, 2)},
    )
    stored = store(model, {"x": normal(1, 32, 4, 4)}, weights=weights)
    expected = PerBlock(0, 32) if weights == "int4" else PerAxis(1 if group == 1 else 0)
    assert stored.weight().granularity == expected


# --------------------------------------------------------------------------------------------------------- tables


def table(*shape: int, axis: int = 0, opset: int = 17, index: str = "int64[2, 3] i") -> onnx.ModelProto:
    rank = len(shape) - 1 + (0 if "[" not in index else 2)
    out = ", ".join(f"d{i}" for i in range(rank))
    return build(
        f"g ({index}) => (float[{out}] y) {{ y = Gather <axis={axis}> (t, i) }}", {"t": normal(*shape)}, opset=opset
    )


INDICES = {"i": np.array([[0, 5, -1], [7, 7, 2]], np.int64)}


@pytest.mark.parametrize("weights", WEIGHT_ONLY_DTYPES)
@pytest.mark.parametrize("shape", [(50, 40), (20, 6, 24)])
def test_tables_are_gathered_before_they_are_dequantized(weights, shape):
    stored = store(table(*shape), INDICES, weights=weights)
    weight = stored.weight()
    assert weight.layout is Layout.ROWS
    assert weight.dtype is not None
    assert weight.dtype.name == (weights if weights in ("int8", "uint8") else "int8")
    assert stored.ops == {"Gather": 3 if weights == "uint8" else 2, "DequantizeLinear": 1}
    assert stored.model.opset_import[0].version >= 21
    said = any("stored as int8" in note for note in stored.result.notes)
    assert said == (weights not in ("int8", "uint8"))


def test_table_blocks_and_one_scale_per_tensor():
    assert store(table(50, 40), INDICES, weights="int8", block=16).weight().granularity == PerBlock(1, 16)
    stored = store(table(50, 40), INDICES, weights="int8", per_channel=False)
    assert stored.weight().granularity == PerTensor()
    assert stored.ops == {"Gather": 1, "DequantizeLinear": 1}
    assert stored.model.opset_import[0].version == 17


def test_a_scalar_index_and_another_axis():
    stored = store(table(50, 40, index="int64 i"), {"i": np.array(3, np.int64)}, weights="int8")
    assert stored.ops["DequantizeLinear"] == 1
    import qtool

    result = qtool.quantize(table(50, 40, axis=1), weight_only=True, allow_empty=True)
    assert result.skips[0].reason == "it does not take rows"


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("text", "index"), [("int64", 3), ("int64[1]", [3]), ("int64[k]", [1, 1]), ("int32[2]", [0, -1])]
)
@pytest.mark.parametrize("block", [None, 16])
def test_every_rank_of_indices(weights, text, index, block):
    """A row with one scale is a tensor with one scale to onnxruntime, and takes no block size."""
    dtype = np.int32 if "32" in text else np.int64
    rank = "" if text == "int64" else "k, "
    proto = build(f"g ({text} i) => (float[{rank}40] y) {{ y = Gather (t, i) }}", {"t": normal(50, 40)})
    store(proto, {"i": np.asarray(index, dtype)}, weights=weights, block=block)


# ------------------------------------------------------------------------------------- onnxruntime's own operators


@pytest.mark.parametrize("weights", INTEGERS)
@pytest.mark.parametrize(("k", "n", "block"), [(64, 32, 32), (100, 33, 16), (70, 9, 64), (300, 7, 256)])
def test_matmul_nbits(weights, k, n, block):
    stored = store(product(k, n), rows(k), weights=weights, block=block, matmul_nbits=True)
    assert stored.ops == {"MatMulNBits": 1}
    (node,) = stored.model.graph.node
    assert node.name == stored.result.plan.decisions[0].node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["K"] == k
    assert attributes["N"] == n
    assert attributes["bits"] == int(weights.lstrip("uint"))
    assert len(node.input) == (4 if weights.startswith("u") else 3)
    assert stored.initializers["w_quantized"].nbytes == n * -(-k // block) * block * attributes["bits"] // 8


def test_matmul_nbits_takes_the_bias_of_a_gemm():
    model = build(
        "g (float[4, 64] x) => (float[4, 32] y) { y = Gemm (x, w, b) }", {"w": normal(64, 32), "b": normal(32)}
    )
    assert store(model, rows(count=4), weights="int4", matmul_nbits=True).ops == {"MatMulNBits": 1}


def test_tied_products_share_one_set_of_blocks():
    model = build(
        "g (float[4, 64] x) => (float[4, 64] y) { a = MatMul (x, w) b = Tanh (a) y = MatMul (b, w) }",
        {"w": normal(64, 64, scale=0.1)},
    )
    stored = store(model, rows(count=4), weights="int4", matmul_nbits=True)
    assert sorted(stored.initializers) == ["w_quantized", "w_scale"]


@pytest.mark.parametrize("weights", ["int4", "uint4", "int8", "uint8", "int2"])
@pytest.mark.parametrize(("width", "block"), [(64, 32), (40, 16), (36, 32)])
def test_gather_block_quantized(weights, width, block):
    stored = store(table(60, width), INDICES, weights=weights, block=block, matmul_nbits=True)
    if weights == "int2":  # which it does not have
        assert stored.ops == {"Gather": 2, "DequantizeLinear": 1}
    else:
        assert stored.ops == {"GatherBlockQuantized": 1}


# ----------------------------------------------------------------------------------------------------------- bodies


def branches() -> onnx.ModelProto:
    """Both branches multiply by a weight of the outer graph, one of them by one of its own; names repeat."""

    def branch(name: str, nodes: list[onnx.NodeProto], arrays: dict[str, np.ndarray]) -> onnx.GraphProto:
        output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
        tensors = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()]
        return helper.make_graph(nodes, name, [], [output], tensors)

    own = normal(64, 64, seed=7, scale=0.2)
    constant = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(normal(64, 64, seed=8)))
    then = branch(
        "then",
        [helper.make_node("MatMul", ["x", "w"], ["a"], "mm"), helper.make_node("MatMul", ["a", "v"], ["out"], "mm2")],
        {"v": own},
    )
    other = branch(
        "else",
        [
            constant,
            helper.make_node("MatMul", ["x", "w"], ["a"], "mm"),
            helper.make_node("MatMul", ["a", "c"], ["out"], "mm2"),
        ],
        {},
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=other)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 64]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 64])],
        [onnx.numpy_helper.from_array(normal(64, 64, seed=6, scale=0.2), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    "options", [{"weights": "int8"}, {"weights": "int4"}, {"weights": "int4", "matmul_nbits": True}]
)
def test_bodies(options):
    import qtool

    model = branches()
    result = qtool.quantize(model, weight_only=True, **options)
    assert result.model is not None
    assert [d.node for d in result.plan.decisions] == [
        "if/else_branch/mm",
        "if/else_branch/mm2",
        "if/then_branch/mm",
        "if/then_branch/mm2",
    ]
    assert result.bytes_after < 0.5 * result.bytes_before
    names = {t.name for t in result.model.graph.initializer}
    assert "w" not in names
    for flag in (True, False):
        feeds = {"x": normal(3, 64), "flag": np.array(flag)}
        expected = run(model, feeds)["y"]
        for optimize in (False, True):
            got = run(result.model, feeds, optimize=optimize)["y"]
            assert np.corrcoef(expected.ravel(), got.ravel())[0, 1] > 0.98


# ---------------------------------------------------------------------------------------------------- random graphs


@st.composite
def chains(draw):
    """A few products of random widths in a row, some of them with a bias, a Relu or a shared weight."""
    widths = draw(st.lists(st.integers(17, 70), min_size=2, max_size=4))
    lines, arrays, value = [], {}, "x"
    for number, (k, n) in enumerate(pairwise(widths)):
        arrays[f"w{number}"] = normal(k, n, seed=draw(st.integers(0, 99)), scale=k**-0.5)
        lines.append(f"p{number} = MatMul ({value}, w{number})")
        value = f"p{number}"
        if draw(st.booleans()):
            arrays[f"b{number}"] = normal(n, seed=number)
            lines.append(f"s{number} = Add ({value}, b{number})")
            value = f"s{number}"
        if draw(st.booleans()):
            lines.append(f"r{number} = Tanh ({value})")
            value = f"r{number}"
    lines.append(f"y = Identity ({value})")
    text = f"g (float[rows, {widths[0]}] x) => (float[rows, {widths[-1]}] y) {{ {' '.join(lines)} }}"
    return build(text, arrays, opset=draw(st.sampled_from((13, 17, 21)))), widths[0]


@given(chains(), st.sampled_from(WEIGHT_ONLY_DTYPES), st.sampled_from((None, 16, 20, 32)), st.booleans())
@settings(max_examples=25, deadline=None)
def test_random_chains(case, weights, block, nbits):
    model, width = case
    nbits = nbits and not weights.startswith("float") and block != 20
    store(model, rows(width, 3), weights=weights, block=block, matmul_nbits=nbits, allow_empty=True)
