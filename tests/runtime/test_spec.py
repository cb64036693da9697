"""The spec engine: whole models with exact semantics."""

from __future__ import annotations

import importlib
import tracemalloc
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test.case.node as shipped
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import qtool
from qtool import kernels
from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import TensorInfo, create_session
from qtool.runtime.spec.operators import OPERATORS
from tests.kernels.elementwise import assert_same_bits

SPEC = {"engine": "spec"}
RELU = "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Relu(x) z = Neg(x) }"


def model(text: str, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> {text}')


def built(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, int],
    constants: dict[str, Any],
    *,
    opset: int,
    ir_version: int,
) -> onnx.ModelProto:
    """A model of any element types; constants as arrays, or as TensorProtos."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


# ---------------------------------------------------------------------------------------- the cases that onnx ships


PAGES = {"If": "if_", "BatchNormalization": "batch_normalization"}


def _collect() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op_type in [*OPERATORS, "Loop", "If"]:
            importlib.import_module(f"{shipped.__name__}.{PAGES.get(op_type, op_type.lower())}")
    wanted = {*OPERATORS, "Loop", "If"}
    cases = {c.name: c for c in shipped._NodeTestCases if any(n.op_type in wanted for n in c.model.graph.node)}
    # sequences and optionals are no arrays, and not what a session takes or gives; training is not its job
    return {
        name: case
        for name, case in cases.items()
        if "training" not in name
        and all(v.type.HasField("tensor_type") for v in (*case.model.graph.input, *case.model.graph.output))
    }


CASES = _collect()
QUANTIZED = {name for name in OPERATORS if "Linear" in name or "Integer" in name}


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.parametrize("name", CASES)
def test_node_case(name):
    case = CASES[name]
    session = create_session(case.model, **SPEC)
    for inputs, expected in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        found = session.run(dict(zip(names, map(_array, inputs), strict=True)))
        for f, e in zip(found.values(), map(_array, expected), strict=True):
            if {n.op_type for n in case.model.graph.node} & QUANTIZED:
                assert_same_bits(f, e)
            else:
                assert f.dtype == e.dtype
                assert f.shape == e.shape
                np.testing.assert_allclose(f, e, rtol=case.rtol, atol=case.atol)


def test_there_is_a_case_of_every_operator():
    assert {n.op_type for c in CASES.values() for n in c.model.graph.node} >= {*OPERATORS, "Loop", "If"}


# ------------------------------------------------------------------------------------------------------- the protocol


@pytest.mark.parametrize("form", ["proto", "bytes", "path", "str"])
def test_every_form_of_a_model_runs(tmp_path, form):
    proto = model(RELU)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    given = {"proto": proto, "bytes": proto.SerializeToString(), "path": path, "str": str(path)}[form]
    session = create_session(given, num_threads=1, **SPEC)
    x = np.array([[-1.0, 0.0, 2.0, 3.0]], np.float32)
    result = session.run({"x": x})
    assert list(result) == ["y", "z"]
    np.testing.assert_array_equal(result["y"], [[0, 0, 2, 3]])
    np.testing.assert_array_equal(result["z"], -x)
    assert list(session.run({"x": x}, ["z", "y"])) == ["z", "y"]
    assert session.run({"x": x}, []) == {}


@pytest.mark.parametrize(("given", "variable", "expected"), [(None, None, 1), (None, "2", None), (1, "2", 1)])
def test_kernels_have_one_thread_unless_told(given, variable, expected, monkeypatch):
    """Threads of NumPy's BLAS contend with more for the processors; None leaves it to the variable."""
    seen = []
    real = kernels.quantize
    monkeypatch.setattr(kernels, "quantize", lambda *a, num_threads, **k: seen.append(num_threads) or real(*a, **k))
    monkeypatch.delenv("QTOOL_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("QTOOL_NUM_THREADS", variable)
    text = "g (float[2] x, float s) => (uint8[2] y) { y = QuantizeLinear(x, s) }"
    feeds = {"x": np.ones(2, np.float32), "s": np.ones((), np.float32)}
    create_session(model(text), num_threads=given, **SPEC).run(feeds)
    assert seen == [expected]


def test_inputs_and_outputs_are_described():
    text = "g (float16[N, 3, ?] x, int64 i, int4[2] q, string[N] s) => (float16[N, 3, 8] y) { y = Identity(x) }"
    session = create_session(model(text, 21, 10), **SPEC)
    assert session.inputs == (
        TensorInfo("x", np.dtype(np.float16), ("N", 3, None)),
        TensorInfo("i", np.dtype(np.int64), ()),
        TensorInfo("q", np.dtype(ml_dtypes.int4), (2,)),
        TensorInfo("s", np.dtype(np.str_), ("N",)),
    )
    assert session.outputs == (TensorInfo("y", np.dtype(np.float16), ("N", 3, 8)),)
    assert session.opaque_outputs == {}


def test_sequences():
    text = (
        "g (float[N] x) => (seq(float[N]) s, float[M] y) { s = SequenceConstruct(x) y = ConcatFromSequence<axis=0>(s) }"
    )
    session = create_session(model(text), **SPEC)
    assert session.opaque_outputs == {"s": "sequence"}
    assert list(session.run({"x": np.ones(2, np.float32)})) == ["y"]
    with pytest.raises(ModelError, match="output 's' is sequence, which is no array"):
        session.run({"x": np.ones(2, np.float32)}, ["s"])
    proto = model("g (seq(float[N]) x) => (float[M] y) { y = ConcatFromSequence<axis=0>(x) }")
    with pytest.raises(ModelError, match="input 'x' is sequence; expected a tensor"):
        create_session(proto, **SPEC)


def test_initializers_listed_as_inputs_can_be_replaced():
    proto = model("g (float[N] x, float[1] w) => (float[N] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    session = create_session(proto, **SPEC)
    assert [info.name for info in session.inputs] == ["x"]
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], [2, 2])
    np.testing.assert_array_equal(session.run({"x": x, "w": np.array([3], np.float32)})["y"], [3, 3])


def test_a_scale_that_is_an_input_is_no_constant():
    text = """g (float[1] x, float s) => (float[1] y) <int8[1] q = {2}, float s = {1.0}>
        { w = DequantizeLinear(q, s) y = Add(x, w) }"""
    session = create_session(model(text), **SPEC)
    x = np.ones(1, np.float32)
    assert session.run({"x": x})["y"] == 3
    assert session.run({"x": x, "s": np.array(10, np.float32)})["y"] == 21


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({}, "required inputs are missing: x"),
        ({"x": np.ones((1, 4), np.float64)}, "input 'x' is float64; expected float32"),
        ({"x": np.ones((1, 3), np.float32)}, r"input 'x' has shape \(1, 3\); expected \('N', 4\)"),
        ({"x": np.ones(4, np.float32)}, r"input 'x' has shape \(4,\); expected 2 axes"),
        ({"x": np.ones((1, 4), np.float32), "q": np.ones(1)}, "there is no input 'q'; expected x"),
    ],
)
def test_feeds_that_do_not_fit(feeds, said):
    with pytest.raises(DataError, match=f"^Model does not run on these inputs: {said}"):
        create_session(model(RELU), **SPEC).run(feeds)


def test_a_node_that_fails_is_named_on_one_line():
    session = create_session(model("g (float[N, 4] x, float[M, 4] z) => (float[K, 4] y) { y = Add(x, z) }"), **SPEC)
    x, z = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    with pytest.raises(DataError, match=r"inputs: node Add that gives 'y': operands could not be broadcast") as caught:
        session.run({"x": x, "z": z})
    assert "\n" not in caught.value.message


def test_models_that_are_refused(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"broken.onnx' is not accepted by the spec engine: it does not parse"):
        create_session(broken, **SPEC)
    with pytest.raises(ModelError, match=r"missing.onnx' is not a file that exists\.$"):
        create_session(tmp_path / "missing.onnx", **SPEC)
    foreign = model(RELU)
    foreign.graph.node[0].domain = "foo"
    foreign.opset_import.append(helper.make_opsetid("foo", 1))
    with pytest.raises(ModelError, match=r"is not accepted by the spec engine: .*foo") as caught:
        create_session(foreign, **SPEC)
    assert "\n" not in caught.value.message
    with pytest.raises(ModelError, match=r"has opset 999; onnx .* knows up to"):
        create_session(model(RELU, 999), **SPEC)
    with pytest.raises(ModelError, match=r"has no output 'q'; its outputs are y, z\.$"):
        create_session(model(RELU), **SPEC).run({"x": np.ones((1, 4), np.float32)}, ["q"])
    with pytest.raises(ConfigError, match="Number of threads is 0"):
        create_session(model(RELU), num_threads=0, **SPEC)


def test_external_data_of_a_proto_is_found_in_its_folder(tmp_path):
    weight = np.arange(4096, dtype=np.float32)
    proto = model("g (float[4096] x) => (float[4096] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    loaded = onnx.load(path, load_external_data=False)
    x = np.ones(4096, np.float32)
    for session in (create_session(path, **SPEC), create_session(loaded, base_dir=tmp_path, **SPEC)):
        np.testing.assert_array_equal(session.run({"x": x})["y"], weight + 1)
    assert loaded.graph.initializer[0].data_location == TensorProto.EXTERNAL  # the caller's proto is as it was
    with pytest.raises(ModelError, match=r"^Model keeps 'w' in an external file"):
        create_session(loaded, **SPEC)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match="has external data that cannot be read"):
        create_session(path, **SPEC)


def test_outputs_are_the_callers_own():
    session = create_session(model("g (float[2] x) => (float[2] y) { y = Identity(x) }"), **SPEC)
    x = np.zeros(2, np.float32)
    y = session.run({"x": x})["y"]
    y[:] = 1
    assert not x.any()


def test_values_are_dropped_after_their_last_use():
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    proto = built(nodes, {"v0": (1, [1 << 18])}, {"v20": 1}, {}, opset=17, ir_version=8)
    session = create_session(proto, **SPEC)
    x = np.ones(1 << 18, np.float32)
    tracemalloc.start()
    try:
        session.run({"v0": x})
        assert tracemalloc.get_traced_memory()[1] < 4 * x.nbytes
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------- graphs in graphs, and functions


def test_branches_read_what_is_around_them():
    text = """g (bool c, float[2] x) => (float[2] y) {
        t = Neg(x)
        y = If(c) <then_branch = a () => (float[2] p) { p = Relu(t) },
                  else_branch = b () => (float[2] q) { q = Abs(t) }>
    }"""
    session = create_session(model(text), **SPEC)
    x = np.array([1.0, -2.0], np.float32)
    np.testing.assert_array_equal(session.run({"c": np.array(True), "x": x})["y"], [0, 2])
    np.testing.assert_array_equal(session.run({"c": np.array(False), "x": x})["y"], [1, 2])


LOOP = """g (int64 n, int64[2] x) => (int64[2] last, int64[K, 2] rows, int64[K] steps) {
    c = Constant<value = bool {1}>()
    last, rows, steps = Loop(n, c, x) <body = b (int64 i, bool go, int64[2] v)
        => (bool on, int64[2] w, int64[2] r, int64 s) { on = Identity(go) w = Add(v, x) r = Mul(w, i) s = Identity(i) }>
}"""


def test_scan_outputs_of_a_loop_are_stacked():
    session = create_session(model(LOOP), **SPEC)
    result = session.run({"n": np.array(3), "x": np.array([1, 2])})
    np.testing.assert_array_equal(result["last"], [4, 8])
    np.testing.assert_array_equal(result["rows"], [[0, 0], [3, 6], [8, 16]])
    np.testing.assert_array_equal(result["steps"], [0, 1, 2])
    none = session.run({"n": np.array(0), "x": np.array([1, 2])})
    assert none["rows"].shape == (0, 2)
    assert none["steps"].shape == (0,)
    np.testing.assert_array_equal(none["last"], [1, 2])


def test_functions_and_branches_use_the_kernels():
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (bool c, float[2] x) => (int8[2] y, int8[2] z) <float s = {1.0}, int8 o = {0}> {
        y = local.q(x, s, o)
        z = If(c) <then_branch = a () => (int8[2] p) { p = QuantizeLinear(x, s, o) },
                   else_branch = b () => (int8[2] r) { r = Identity(o2) }>
    }
    <domain: "local", opset_import: ["" : 21]> q (a, b, d) => (e) { e = QuantizeLinear(a, b, d) }""".replace(
            "Identity(o2)", "Identity(y)"
        )
    )
    x = np.array([3e9, np.inf], np.float32)  # onnx.reference gives -128 for both
    result = create_session(proto, **SPEC).run({"c": np.array(True), "x": x})
    np.testing.assert_array_equal(result["y"], [127, 127])
    np.testing.assert_array_equal(result["z"], [127, 127])


# ------------------------------------------------------------------------------------------------------- element types


def test_float4_in_blocks_with_e8m0_scales():
    codes = np.array([[0.5, 1.5], [-6, 2], [3, -0.5], [4, 6]], ml_dtypes.float4_e2m1fn)
    scale = np.array([[2, 0.25], [1, 8]], ml_dtypes.float8_e8m0fnu)
    dequantize = helper.make_node(
        "DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=2, output_dtype=TensorProto.FLOAT
    )
    proto = built(
        [dequantize, helper.make_node("MatMul", ["x", "f"], ["y"])],
        {"x": (1, ["N", 4])},
        {"y": 1},
        {"w": codes, "s": scale},
        opset=24,
        ir_version=12,
    )
    y = create_session(proto, **SPEC).run({"x": np.array([[1, 2, 3, 4], [0, 0, 1, 0]], np.float32)})["y"]
    # columns of f: (1, -12, 3, 4) and (0.375, 0.5, -4, 48)
    np.testing.assert_array_equal(y, [[2, 181.375], [3, -4]])


def test_int2_weights_and_activations():
    proto = built(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1),
            helper.make_node("MatMul", ["x", "f"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "t", "z"], ["y"]),
        ],
        {"x": (1, ["N", 4])},
        {"y": TensorProto.UINT2},
        {
            "w": np.array([[-2, 1], [0, 1], [1, -1], [-1, -2]], ml_dtypes.int2),
            "s": np.array([1, 0.5], np.float32),
            "t": np.float32(1),
            "z": np.array(1, ml_dtypes.uint2),
        },
        opset=25,
        ir_version=13,
    )
    y = create_session(proto, **SPEC).run({"x": np.array([[1, 1, 1, 1], [0, 1, 2, 0]], np.float32)})["y"]
    # m = (-2, -0.5), (2, -0.5): rint, + 1, saturate to 0..3
    assert y.dtype == np.dtype(ml_dtypes.uint2)
    np.testing.assert_array_equal(y.astype(int), [[0, 1], [3, 1]])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_float8_qdq(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    proto = built(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        {"x": (1, ["N"])},
        {"y": 1, "q": helper.np_dtype_to_tensor_dtype(dtype)},
        {"s": np.float32(2), "z": np.array(0, dtype)},
        opset=19,
        ir_version=9,
    )
    x = np.array([3.0, -1e9, np.inf, 0.0, 2.0625], np.float32)
    result = create_session(proto, **SPEC).run({"x": x})
    largest = float(ml_dtypes.finfo(dtype).max)
    assert result["q"].dtype == dtype
    np.testing.assert_array_equal(result["y"], [3, -2 * largest, 2 * largest, 0, 2])


def test_qlinear_matmul_of_float8():
    e4 = ml_dtypes.float8_e4m3fn
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 5)).astype(e4), rng.normal(size=(5, 4)).astype(e4)
    sb = np.array([1, 0.5, 2, 0.25], np.float32)
    zero = np.zeros((), e4)
    proto = built(
        [helper.make_node("QLinearMatMul", ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], ["y"])],
        {"a": (17, [3, 5])},
        {"y": 17},
        {
            "b": b,
            "sa": np.float32(0.5),
            "za": zero,
            "sb": sb,
            "zb": np.zeros(4, e4),
            "sy": np.float32(0.5),
            "zy": zero,
        },
        opset=21,
        ir_version=10,
    )
    y = create_session(proto, **SPEC).run({"a": a})["y"]
    assert y.dtype == np.dtype(e4)
    # products of powers of two and of short sums: exact in float32, so one conversion is all that rounds
    exact = a.astype(np.float64) @ b.astype(np.float64) * sb
    np.testing.assert_array_equal(y.astype(np.float32), exact.astype(np.float32).astype(e4).astype(np.float32))


def test_qlinear_matmul_rounds_before_it_adds_the_zero_point():
    proto = built(
        [helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "t", "zy"], ["y"])],
        {"a": (2, [1, 1])},
        {"y": 2},
        {
            "b": np.array([[1, 3, 5]], np.uint8),
            "s": np.float32(1),
            "z": np.uint8(0),
            "t": np.float32(2),
            "zy": np.uint8(1),
        },
        opset=21,
        ir_version=10,
    )
    y = create_session(proto, **SPEC).run({"a": np.array([[1]], np.uint8)})["y"]
    np.testing.assert_array_equal(y, [[1, 3, 3]])  # rint(.5, 1.5, 2.5) + 1


def test_a_type_that_the_opset_lacks_is_refused():
    proto = built(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        {"x": (1, [2])},
        {"y": TensorProto.INT4},
        {"s": np.float32(1), "z": np.array(0, ml_dtypes.int4)},
        opset=19,
        ir_version=10,
    )
    with pytest.raises(DataError, match=r"Input 'y_zero_point' is int4; at opset 19 the operator takes .*int8"):
        create_session(proto, **SPEC).run({"x": np.ones(2, np.float32)})


# --------------------------------------------------------------------------------------------------- float operators


@pytest.mark.parametrize("dtype", [1, 10])  # onnxruntime has no Conv of float64
@pytest.mark.parametrize(
    ("group", "channels", "options"),
    [
        (1, 6, "pads = [1, 0, 2, 1], strides = [2, 1]"),
        (2, 4, "dilations = [2, 1]"),
        (4, 8, 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
        (4, 4, 'auto_pad = "SAME_LOWER"'),
    ],
)
def test_conv_agrees_with_onnxruntime(group, channels, options, dtype):
    kind = {1: "float", 10: "float16"}[dtype]
    text = f"""g ({kind}[2, 4, 9, 8] x, {kind}[{channels}, {4 // group}, 3, 2] w, {kind}[{channels}] b)
        => ({kind}[N, C, H, W] y) {{ y = Conv<group = {group}, {options}>(x, w, b) }}"""
    proto = model(text)
    rng = np.random.default_rng(1)
    shapes = {"x": (2, 4, 9, 8), "w": (channels, 4 // group, 3, 2), "b": (channels,)}
    feeds = {k: rng.normal(size=s).astype(helper.tensor_dtype_to_np_dtype(dtype)) for k, s in shapes.items()}
    found, expected = (create_session(proto, engine=e).run(feeds)["y"] for e in ("spec", "ort"))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype == 10 else 1e-5, atol=2e-2 if dtype == 10 else 1e-5)


@pytest.mark.parametrize("dtype", [1, 10])
@pytest.mark.parametrize(
    ("group", "features", "options"),
    [
        (1, 3, "strides = [2, 3]"),
        (1, 3, "strides = [3, 4], pads = [1, 0, 2, 1], output_padding = [2, 1]"),
        (2, 1, "pads = [2, 1, 0, 1], dilations = [2, 3]"),
        (4, 2, "strides = [2, 2], dilations = [1, 2], output_padding = [1, 0]"),
        (1, 2, 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
        (2, 3, 'auto_pad = "SAME_LOWER", strides = [2, 1]'),
        (1, 2, 'auto_pad = "VALID", strides = [2, 1]'),
        (1, 2, "output_shape = [10, 9], strides = [2, 2]"),
        (1, 2, "output_shape = [12, 13], strides = [2, 3], output_padding = [1, 0]"),
        (1, 2, "strides = [4, 5]"),  # gaps between the taps
    ],
)
def test_conv_transpose_agrees_with_onnxruntime(group, features, options, dtype):
    kind = {1: "float", 10: "float16"}[dtype]
    text = f"""g ({kind}[2, 4, 5, 4] x, {kind}[4, {features}, 3, 2] w, {kind}[{features * group}] b)
        => ({kind}[N, C, H, W] y, {kind}[N, C, H, W] z)
        {{ y = ConvTranspose<group = {group}, {options}>(x, w, b)
           z = ConvTranspose<group = {group}, {options}>(x, w) }}"""
    proto = model(text)
    rng = np.random.default_rng(1)
    shapes = {"x": (2, 4, 5, 4), "w": (4, features, 3, 2), "b": (features * group,)}
    feeds = {k: rng.normal(size=s).astype(helper.tensor_dtype_to_np_dtype(dtype)) for k, s in shapes.items()}
    found = create_session(proto, **SPEC).run(feeds)
    for tensor in [proto.graph.input, proto.graph.output]:  # onnxruntime has no ConvTranspose of float16
        for value in tensor:
            value.type.tensor_type.elem_type = 1
    expected = create_session(proto, engine="ort").run({k: v.astype(np.float32) for k, v in feeds.items()})
    for name, value in expected.items():
        assert found[name].dtype == feeds["x"].dtype
        tolerance = 2e-3 if dtype == 10 else 1e-5
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spatial", [(5,), (2, 3, 4)])
def test_conv_transpose_has_any_number_of_axes(spatial):
    """Of one input element, and ones as weights: every output element is the sum of the taps that reach it."""
    rank = len(spatial)
    proto = built(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2] * rank)],
        {"x": (1, (1, 1, *spatial))},
        {"y": 1},
        {"w": np.ones((1, 1, *(3,) * rank), np.float32)},
        opset=17,
        ir_version=8,
    )
    y = create_session(proto, **SPEC).run({"x": np.ones((1, 1, *spatial), np.float32)})["y"]
    expected = np.ones(())
    for size in spatial:  # taps of stride 2 and 3 wide overlap at every second element but the ends
        row = [2.0 if i % 2 == 0 and 0 < i < 2 * size else 1.0 for i in range(2 * size + 1)]
        expected = np.multiply.outer(expected, row)
    np.testing.assert_array_equal(y[0, 0], expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pads": [3, 3, 3, 3]}, "leave an output of shape"),
        ({"pads": [1, 1]}, r"pads=\[1, 1\]; expected 4 values >= 0"),
        ({"kernel_shape": [3, 3]}, r"kernel_shape=\[3, 3\] and w of shape"),
        ({"group": 3}, "expected .* C divisible by group"),
    ],
)
def test_a_conv_transpose_that_contradicts_itself_is_refused(options, said):
    proto = built(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **options)],
        {"x": (1, (1, 2, 3, 3)), "w": (1, (2, 1, 2, 2))},
        {"y": 1},
        {},
        opset=17,
        ir_version=8,
    )
    feeds = {"x": np.ones((1, 2, 3, 3), np.float32), "w": np.ones((2, 1, 2, 2), np.float32)}
    with pytest.raises(DataError, match=said):
        create_session(proto, **SPEC).run(feeds)


@pytest.mark.parametrize(
    "options",
    [
        "strides = [2, 3]",
        "pads = [1, 0, 2, 1], strides = [2, 2], ceil_mode = 1",
        "dilations = [2, 2]",
        'auto_pad = "SAME_LOWER", strides = [2, 2]',
        'auto_pad = "VALID"',
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool<count_include_pad = 1>"])
def test_pools_agree_with_onnxruntime(op, options):
    name, _, more = op.rstrip(">").partition("<")
    more = f", {more}" if more else ""
    proto = model(
        f"g (float[2, 3, 9, 8] x) => (float[N, C, H, W] y) {{ y = {name}<kernel_shape = [3, 2]{more}, {options}>(x) }}",
        19,
        9,
    )
    x = np.random.default_rng(1).normal(size=(2, 3, 9, 8)).astype(np.float32)
    found, expected = (create_session(proto, engine=e).run({"x": x})["y"] for e in ("spec", "ort"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 17])
def test_batch_normalization_is_for_inference(opset):
    text = """g (float[1, 2, 2] x) => (float[1, 2, 2] y)
        <float[2] s = {1.0, 2.0}, float[2] b = {0.0, 1.0}, float[2] m = {0.0, 1.0}, float[2] v = {4.0, 1.0}>
        { y = BatchNormalization<epsilon = 0.0>(x, s, b, m, v) }"""
    x = np.array([[[2, 4], [1, 3]]], np.float32)
    np.testing.assert_array_equal(create_session(model(text, opset), **SPEC).run({"x": x})["y"], [[[1, 2], [1, 5]]])


@pytest.mark.parametrize("spatial", [(5,), (2, 3), (2, 3, 4)])
def test_global_max_pool_keeps_its_axes(spatial):
    x = np.random.default_rng(1).normal(size=(2, 3, *spatial)).astype(np.float32)
    proto = built(
        [helper.make_node("GlobalMaxPool", ["x"], ["y"])], {"x": (1, x.shape)}, {"y": 1}, {}, opset=17, ir_version=8
    )
    y = create_session(proto, **SPEC).run({"x": x})["y"]
    np.testing.assert_array_equal(y, x.reshape(2, 3, -1).max(axis=2).reshape(2, 3, *(1 for _ in spatial)))


@pytest.mark.parametrize("order", [0, 1])
def test_indices_of_max_pool_agree_with_onnxruntime(order):
    text = f"""g (float[2, 3, 9, 8] x) => (float[N, C, H, W] y, int64[N, C, H, W] i)
        {{ y, i = MaxPool<kernel_shape = [3, 2], pads = [1, 1, 1, 1], strides = [2, 2],
            storage_order = {order}>(x) }}"""
    x = np.random.default_rng(1).normal(size=(2, 3, 9, 8)).astype(np.float32)
    found, expected = (create_session(model(text), engine=e).run({"x": x}) for e in ("spec", "ort"))
    for name in ("y", "i"):
        np.testing.assert_array_equal(found[name], expected[name])


# ---------------------------------------------------------------------------------------------------- packed constants


def _with_weight(op_type: str, weight: np.ndarray, *, packed: bool, **attributes: Any) -> Any:
    """A session of one integer operator whose second operand is a constant; an input with a default otherwise."""
    x = np.zeros((1, weight.shape[-2]) if op_type == "MatMulInteger" else (1, 4, 5, 5), np.uint8)
    inputs = {"x": (TensorProto.UINT8, list(x.shape))}
    if not packed:
        inputs["w"] = (TensorProto.INT8, list(weight.shape))
    node = helper.make_node(op_type, ["x", "w"], ["y"], **attributes)
    proto = built([node], inputs, {"y": TensorProto.INT32}, {"w": weight}, opset=17, ir_version=8)
    return create_session(proto, **SPEC), np.random.default_rng(1).integers(0, 256, x.shape, np.uint8)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes"),
    [
        ("MatMulInteger", (70, 33), {}),
        ("MatMulInteger", (2, 70, 33), {}),
        ("ConvInteger", (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("ConvInteger", (6, 2, 3, 3), {"group": 2}),
        ("ConvInteger", (4, 1, 3, 3), {"group": 4}),
    ],
)
def test_a_constant_weight_is_packed_for_the_kernel_in_force(op_type, shape, attributes):
    weight = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    session, x = _with_weight(op_type, weight, packed=True, **attributes)
    plain, _ = _with_weight(op_type, weight, packed=False, **attributes)
    expected = plain.run({"x": x})["y"]
    other = plain.run({"x": x, "w": -(weight // 2)})["y"]
    assert not np.array_equal(expected, other)
    before = kernels.isa_info().cap
    try:
        for isa in (before, "scalar", "scalar", *kernels.isa_info().supported):
            kernels.cap_isa(isa)
            np.testing.assert_array_equal(session.run({"x": x})["y"], expected)
            np.testing.assert_array_equal(plain.run({"x": x, "w": -(weight // 2)})["y"], other)
    finally:
        kernels.cap_isa(before)


# -------------------------------------------------------------------------------------------------------- whole models


def with_codes(path) -> onnx.ModelProto:
    """A model whose 8-bit values are outputs too."""
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    present = {value.name for value in proto.graph.output}
    codes = [v for v in proto.graph.value_info if v.type.tensor_type.elem_type in (2, 3) and v.name not in present]
    assert codes
    proto.graph.output.extend(codes)
    return proto


@pytest.mark.parametrize("form", ["qlinear", "qdq"])
def test_the_example_agrees_with_onnxruntime(form, examples, tmp_path):
    path = tmp_path / "q.onnx"
    qtool.quantize(examples / "mnist_cnn.onnx", examples / "mnist_calib.npz", output=path, format=form)
    x = np.load(examples / "mnist_eval.npz")["Input3"]
    proto = with_codes(path)
    spec, ort = create_session(proto, **SPEC), create_session(proto, optimize=False)
    for sample in x[:8]:
        found, expected = (session.run({"Input3": sample[None]}) for session in (spec, ort))
        for name, value in expected.items():
            if value.dtype == np.float32:
                np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
            elif form == "qlinear":
                np.testing.assert_array_equal(found[name], value)
            else:  # a float sum in another order may fall on the other side of a tie
                assert np.abs(found[name].astype(int) - value).max() <= 1


def sqnr(expected: np.ndarray, found: np.ndarray) -> float:
    error = found.astype(np.float64) - expected
    return float(10 * np.log10((expected.astype(np.float64) ** 2).sum() / max((error**2).sum(), 1e-30)))


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("name", "form", "least"),
    [("efficientnet_lite0", "qlinear", 90), ("efficientnet_lite0", "qdq", 20), ("digits_vit", "qlinear", 40)],
)
def test_real_models_agree_with_onnxruntime(name, form, least, real):
    """In QDQ form each operator is a float sum, and a code that differs by one changes what follows."""
    path = real.quantized(name, form).model_path
    spec, ort = create_session(path, **SPEC), create_session(path, optimize=False)
    data = np.load(real.eval(name))
    feeds = {info.name: data[info.name][:2].astype(info.dtype) for info in spec.inputs}
    found, expected = spec.run(feeds), ort.run(feeds)
    for output, value in expected.items():
        assert found[output].shape == value.shape
        assert sqnr(value, found[output]) > least


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["digits_vit", "minilm_l6_v2"])
def test_between_codes_real_models_agree_with_onnxruntime(name, real):
    """With onnxruntime's codes in place of its own, no code of the spec engine can go astray.

    These models keep MatMul in float and amplify a single code, so that comparing whole runs says little.
    """
    path = real.quantized(name, "qlinear").model_path
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    types = {v.name: v for v in proto.graph.value_info}
    quantizers = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    present = {v.name for v in (*proto.graph.input, *proto.graph.output)}
    values = dict.fromkeys(node.input[0] for node in quantizers)
    proto.graph.output.extend(types[n] for n in values if n not in present)
    floats = [v.name for v in proto.graph.output]
    forced = onnx.ModelProto()
    forced.CopyFrom(proto)
    for node in quantizers:
        forced.graph.node.remove(node)
        forced.graph.input.append(types[node.output[0]])
        proto.graph.output.append(types[node.output[0]])
    data = np.load(real.eval(name))
    ort = create_session(proto, optimize=False)
    feeds = {info.name: data[info.name][:1].astype(info.dtype) for info in ort.inputs}
    expected = ort.run(feeds)
    codes = {node.output[0]: expected[node.output[0]] for node in quantizers}
    found = create_session(forced, **SPEC).run(feeds | codes)
    assert min(sqnr(expected[n], found[n]) for n in floats) > 110
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    for node in quantizers:
        x = feeds.get(node.input[0], expected.get(node.input[0]))
        np.testing.assert_array_equal(
            kernels.quantize(x, *(constants[n] for n in node.input[1:])), codes[node.output[0]]
        )
