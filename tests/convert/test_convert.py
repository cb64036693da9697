"""qtool convert: every form into every other, parameters to the last bit, functions that are equal."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import qtool
from qtool.convert import convert_model, difference, parameters_of
from qtool.errors import ConfigError, ModelError, VerificationError
from qtool.prepare.load import load_model
from qtool.signal import sqnr_db
from tests.models import FORMATS, build, normal, run

CNN = build(
    """m (float[N,3,8,8] x) => (float[N,5] y) {
        [c1] a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        [r1] b = Relu(a)
        [p1] c = MaxPool<kernel_shape = [2,2], strides = [2,2]>(b)
        [c2] d = Conv<pads = [1,1,1,1]>(c, w2, b2)
        [k2] e = Clip(d, zero, six)
        [g] f = GlobalAveragePool(e)
        [fl] h = Flatten(f)
        [m1] i = MatMul(h, w3)
        [m2] j = MatMul(i, w4)
        [s] y = Tanh(j)
    }""",
    {
        "w1": normal(6, 3, 3, 3, seed=1, scale=0.3), "b1": normal(6, seed=2, scale=0.3),
        "w2": normal(8, 6, 3, 3, seed=3), "b2": normal(8, seed=4), "w3": normal(8, 12, seed=5),
        "w4": normal(12, 5, seed=6, scale=0.3), "zero": np.float32(0), "six": np.float32(6),
    },
)  # fmt: skip
X = {"x": normal(16, 3, 8, 8, seed=9)}


def quantized(format_: str, model: onnx.ModelProto = CNN, samples=X, **options) -> onnx.ModelProto:
    result = qtool.quantize(model, samples, format=format_, **options)
    assert result.model is not None
    return result.model


def converted(model: onnx.ModelProto, to: str) -> onnx.ModelProto:
    before = model.SerializeToString()
    result = qtool.convert(model, to, data=X if model.graph.input[0].name == "x" else None)
    assert model.SerializeToString() == before
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    return result.model


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def compare(a: onnx.ModelProto, b: onnx.ModelProto):
    return difference(parameters_of(load_model(a)), parameters_of(load_model(b)))


def constants(model: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


# ------------------------------------------------------------------------------------------------------- round trips


def test_operators_to_qdq_and_back():
    source = quantized("qlinear")
    there = converted(source, "qdq")
    assert not {"QLinearConv", "QLinearMatMul"} & set(ops(there))
    back = converted(there, "qlinear")
    assert ops(back) == ops(source)
    assert {n.name for n in back.graph.node} == {n.name for n in source.graph.node}
    assert constants(back) == constants(source)
    for other in (there, back):
        assert compare(source, other).is_empty
        assert compare(other, source).is_empty
        assert np.array_equal(run(source, X)["y"], run(other, X)["y"])


def test_qdq_to_operators_and_back():
    source = quantized("qdq")
    there = converted(source, "qlinear")
    found = ops(there)
    assert (found["QLinearConv"], found["Conv"]) == (2, 0)
    assert compare(source, there).is_empty
    assert compare(source, converted(there, "qdq")).is_empty
    step = 1 / 128 * 1.01  # no code of the output is further than rounding takes it
    assert np.abs(run(source, X)["y"] - run(there, X)["y"]).max() <= step


@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_in_the_form_already_is_not_touched(format_):
    source = quantized(format_)
    result = qtool.convert(source, format_, data=X)
    assert ops(result.model)["QLinearConv"] == ops(source)["QLinearConv"]
    assert np.array_equal(run(source, X)["y"], run(result.model, X)["y"])
    assert result.sqnr_db == {"y": np.inf}
    if format_ == "qdq":
        assert result.notes == ["nothing was rewritten: what could be in qdq form is in it already"]


# ------------------------------------------------------------------------------------------------------------- float


@pytest.mark.parametrize("format_", FORMATS)
def test_to_float_keeps_the_codes_of_weights_and_rounds_no_activation(format_):
    source = quantized(format_)
    result = qtool.convert(source, "float", data=X, reference=CNN)
    model = result.model
    assert not {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"} & set(ops(model))
    assert {"w1", "w2", "w3", "w4"} <= constants(model).keys()
    weights = {t.name: t for t in parameters_of(load_model(source)).tensors if t.kind == "weight"}
    for initializer in model.graph.initializer:
        tensor = weights.get(initializer.name)
        if tensor is None:
            continue
        codes = tensor.codes.numpy().astype(np.float32)
        shape = [1] * codes.ndim
        shape[tensor.axis] = -1
        exact = codes * tensor.scale.reshape(shape)
        assert numpy_helper.to_array(initializer).tobytes() == exact.tobytes()
    before, after = result.reference_db["y"]
    assert after > before > 20
    assert result.sqnr_db["y"] > 20
    # by hand: the float model with these weights and biases
    same = onnx.ModelProto.FromString(CNN.SerializeToString())
    known = {t.name: t for t in model.graph.initializer}
    for t in same.graph.initializer:
        if t.name in known and t.name not in ("zero", "six"):
            t.CopyFrom(known[t.name])
    assert sqnr_db(run(same, X)["y"], run(model, X)["y"]) > 100


def test_a_saturating_operator_becomes_the_relu_that_it_stood_for():
    model = converted(quantized("qlinear"), "float")
    found = ops(model)
    assert (found["Relu"], found["Clip"]) == (1, 1)  # the Clip's 6 is the largest code to the last bit
    (clip,) = [n for n in model.graph.node if n.op_type == "Clip"]
    bounds = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert [float(bounds[n]) for n in clip.input[1:]] == [0.0, 6.0]
    negative = {"x": -10 * np.ones((1, 3, 8, 8), np.float32)}
    assert np.isfinite(run(model, negative)["y"]).all()


def test_a_division_that_a_scale_stands_for_comes_back():
    text = """m (float[N,4,6,6] x) => (float[N,4,4,4] y) {
        [c1] a = Conv(x, w1)
        [add] b = Add(a, three)
        [clip] c = Clip(b, zero, six)
        [mul] d = Mul(a, c)
        [div] e = Div(d, six)
        [c2] y = Conv(e, w2)
    }"""
    arrays = {
        "w1": normal(4, 4, 3, 3, seed=1), "w2": normal(4, 4, 1, 1, seed=2), "three": np.float32(3),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    model, data = build(text, arrays), {"x": normal(8, 4, 6, 6, seed=3)}
    for format_ in FORMATS:
        source = quantized(format_, model, data)
        result = qtool.convert(source, "float", data=data, reference=model)
        before, after = result.reference_db["y"]
        assert after > before > 25


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "float8e4m3fn"])
def test_weight_only_files_become_float(dtype):
    text = """m (int64[N] ids) => (float[N,24] y) {
        [g] a = Gather(table, ids)
        [m1] b = MatMul(a, w1)
        [m2] y = Gemm<transB = 1>(b, w2)
    }"""
    arrays = {
        "table": normal(50, 64, seed=1),
        "w1": normal(64, 72, seed=2),
        "w2": normal(24, 72, seed=3),
    }
    model = build(text, arrays, opset=21, ir_version=10)
    result = qtool.quantize(model, weight_only=True, weights=dtype)
    source = result.model
    ids = {"ids": np.arange(20)}
    got = qtool.convert(source, "float", data=ids)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(ops(got.model))
    assert got.dequantized == result.quantized
    # onnxruntime's optimizations round activations where they fuse the source, but not the result
    assert sqnr_db(run(source, ids)["y"], run(got.model, ids)["y"]) > 110
    assert got.sqnr_db["y"] > 30
    assert got.bytes_after > 4 * sum(a.size for a in arrays.values())


# ----------------------------------------------------------------------------------------------------- dynamic files


@pytest.mark.parametrize("to", ["qdq", "float"])
def test_dynamic_products_get_their_scales_back(to):
    text = """m (float[N,1,6,6] x) => (float[N,3] y) {
        [c] a = Conv(x, w1, b1)
        [f] b = Flatten(a)
        [m] y = MatMul(b, w2)
    }"""
    arrays = {"w1": normal(4, 1, 3, 3, seed=1), "b1": normal(4, seed=2), "w2": normal(64, 3, seed=3)}
    model, data = build(text, arrays), {"x": normal(8, 1, 6, 6, seed=4)}
    source = qtool.quantize(model, data, dynamic=True).model
    assert ops(source)["MatMulInteger"] == 1
    result = qtool.convert(source, to, data=data, reference=model)
    found = ops(result.model)
    assert (found["MatMulInteger"], found["ConvInteger"], found["MatMul"], found["Conv"]) == (0, 0, 1, 1)
    assert found["DynamicQuantizeLinear"] == (0 if to == "float" else ops(source)["DynamicQuantizeLinear"])
    if to == "qdq":
        assert compare(source, result.model).is_empty
        assert result.sqnr_db["y"] > 90  # the same numbers but for the order of float sums
    else:
        assert result.reference_db["y"][1] > result.reference_db["y"][0]


def test_a_table_with_scales_of_its_rows():
    text = """m (int64[N] ids) => (float[N,16] y) {
        [g] a = Gather(table, ids)
        [m] y = MatMul(a, w)
    }"""
    model = build(text, {"table": normal(8192, 32, seed=1), "w": normal(32, 16, seed=2)})
    source = qtool.quantize(model, dynamic=True).model
    assert ops(source)["Gather"] == 2
    ids = {"ids": np.arange(100)}
    result = qtool.convert(source, "float", data=ids, reference=model)
    assert ops(result.model) == {"Gather": 1, "MatMul": 1}
    assert {t.data_type for t in result.model.graph.initializer} == {onnx.TensorProto.FLOAT}
    assert result.reference_db["y"][1] > result.reference_db["y"][0] > 30
    (table,) = [t for t in parameters_of(load_model(source)).tensors if t.name == "table"]
    assert (table.kind, table.granularity, table.scale.shape) == ("weight", "axis 0", (8192,))
    exact = table.codes.numpy() * table.scale[:, None]
    assert constants(result.model)["table"] == exact.astype(np.float32).tobytes()


def test_doubtful_scales_are_refused():
    model = build(
        """m (float[N,8] x) => (float[N,4] y) {
            q, s, z = DynamicQuantizeLinear(x)
            [p] i = MatMulInteger(q, w, z)
            f = Cast<to = 1>(i)
            y = Mul(f, both)
        }""",
        {"w": np.arange(-16, 16, dtype=np.int8).reshape(8, 4), "both": np.float32(0.01)},
    )
    with pytest.raises(ModelError, match=r"node 'p' \(MatMulInteger\): its result is not multiplied by one scale"):
        qtool.convert(model, "qdq")
    kept = qtool.convert(model, "qlinear")  # it is an operator on codes already
    assert ops(kept.model)["MatMulInteger"] == 1


# ------------------------------------------------------------------------------------------------- files of other tools


def foreign(**changes) -> onnx.ModelProto:
    """QLinearConv -> QLinearAdd -> Pad and QGemm as onnxruntime's own quantizer writes them, zero points not 0."""
    arrays = {
        "xs": np.float32(0.05), "xz": np.uint8(120), "w": (normal(4, 3, 1, 1) * 50).astype(np.int8),
        "ws": np.linspace(0.01, 0.04, 4, dtype=np.float32), "wz": np.zeros(4, np.int8), "ys": np.float32(0.15),
        "yz": np.uint8(128), "b": np.arange(4, dtype=np.int32) * 100, "as": np.float32(0.3), "az": np.uint8(120),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "gw": (normal(100, 6, seed=1) * 50).astype(np.int8),
        "gs": np.float32(0.02), "gz": np.int8(2), "gb": np.arange(6, dtype=np.int32),
    }  # fmt: skip
    return build(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        m (float[N,3,3,3] x) => (float[N,6] y) {
            [q] xq = QuantizeLinear(x, xs, xz)
            [conv] c = QLinearConv(xq, xs, xz, w, ws, wz, ys, yz, b)
            [add] a = com.microsoft.QLinearAdd(c, ys, yz, c, ys, yz, as, az)
            [pad] p = Pad(a, pads, az)
            [flat] f = Flatten(p)
            [gemm] y = com.microsoft.QGemm<alpha = 1.0>(f, as, az, gw, gs, gz, gb)
        }""",
        arrays | changes,
    )


def test_operators_of_microsoft_and_a_pad_on_codes():
    source = foreign()
    data = {"x": normal(8, 3, 3, 3, seed=5, scale=2)}
    for to in ("qdq", "float"):
        model = qtool.convert(source, to, data=data).model
        assert {o.domain for o in model.opset_import} >= {""}
        assert {n.domain for n in model.graph.node} == {""}
        expected, got = run(source, data)["y"], run(model, data)["y"]
        if to == "qdq":
            # the product is exact in both; one code of the Add more or less weighs little beside 100 of them
            assert sqnr_db(expected, got) > 35
            assert difference(parameters_of(load_model(source)), parameters_of(load_model(model))).is_empty
        else:
            assert "QuantizeLinear" not in ops(model)
            assert sqnr_db(expected, got) > 25


@pytest.mark.parametrize("zero", [0, 3])
def test_an_int32_bias_with_a_zero_point(zero):
    arrays = {
        "s": np.float32(0.5), "z": np.uint8(10), "w": np.ones((3, 2), np.int8), "ws": np.float32(0.25),
        "wz": np.int8(0), "b": np.array([8, -8], np.int32), "bs": np.float32(0.125), "bz": np.int32(zero),
    }  # fmt: skip
    source = build(
        """m (float[N,3] x) => (float[N,2] y) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            v = DequantizeLinear(w, ws, wz)
            c = DequantizeLinear(b, bs, bz)
            y = Gemm(d, v, c)
        }""",
        arrays,
    )
    if zero:
        with pytest.raises(ModelError, match="int32 and has a zero point"):
            convert_model(load_model(source), "float")
        return
    model = qtool.convert(source, "float").model
    assert np.array_equal(run(model, {"x": np.ones((1, 3), np.float32)})["y"], [[1.75, -0.25]])


def test_a_missing_pad_value_is_code_zero():
    arrays = {"s": np.float32(0.5), "z": np.uint8(10), "pads": np.array([0, 1, 0, 1])}
    source = build(
        """m (float[N,3] x) => (float[N,5] y) {
            q = QuantizeLinear(x, s, z)
            p = Pad(q, pads)
            y = DequantizeLinear(p, s, z)
        }""",
        arrays,
    )
    feeds = {"x": np.ones((2, 3), np.float32)}
    expected = run(source, feeds)["y"]
    assert expected[0, 0] == -5.0
    for to in ("qdq", "float"):
        assert np.array_equal(run(qtool.convert(source, to, data=feeds).model, feeds)["y"], expected)


def test_codes_at_the_interface_stay():
    arrays = {"s": np.float32(0.1), "z": np.uint8(128), "w": normal(4, 4), "t": np.float32(0.2), "u": np.uint8(9)}
    source = build(
        """m (uint8[N,4] image) => (uint8[N,4] y) {
            x = DequantizeLinear(image, s, z)
            m = MatMul(x, w)
            y = QuantizeLinear(m, t, u)
        }""",
        arrays,
    )
    result = qtool.convert(source, "float")
    assert result.notes == [
        "2 quantizers stay: inputs or outputs of the model are codes",
        "nothing was rewritten: what could be in float form is in it already",
    ]
    assert ops(result.model) == ops(source)


def test_a_branch_is_converted_too():
    text = """m (float[N,4] x, bool c) => (float[N,4] y) {
        [if] y = If(c) <
            then_branch = g1 () => (float[N,4] t) {
                q = QuantizeLinear(x, s, z)
                [m] p = QLinearMatMul(q, s, z, w, ws, wz, s, z)
                t = DequantizeLinear(p, s, z)
            },
            else_branch = g2 () => (float[N,4] e) { e = Neg(x) }
        >
    }"""
    arrays = {
        "s": np.float32(0.05), "z": np.uint8(128), "w": (normal(4, 4) * 40).astype(np.int8),
        "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8),
    }  # fmt: skip
    source = build(text, arrays)
    for condition in (True, False):
        feeds = {"x": normal(8, 4), "c": np.array(condition)}
        expected = run(source, feeds)["y"]
        there = convert_model(load_model(source), "qdq")
        assert there.converted == {"QLinearMatMul": 1}
        assert np.array_equal(run(ir.to_proto(there.model), feeds)["y"], expected)
        back = convert_model(there.model, "qlinear")
        assert back.converted == {"MatMul": 1}
        assert np.array_equal(run(ir.to_proto(back.model), feeds)["y"], expected)
        floats = ir.to_proto(convert_model(load_model(source), "float").model)
        assert np.abs(run(floats, feeds)["y"] - expected).max() <= 0.05


def test_what_operators_cannot_hold_stays_in_qdq_form_with_its_reason():
    arrays = {
        "s": np.float32(0.05), "z": np.uint8(128), "w": (normal(4, 4) * 40).astype(np.int8),
        "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8), "t": np.float32(0.1),
    }  # fmt: skip
    source = build(
        """m (float[N,4] x) => (float[N,4] y, float[N,4] v) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            wd = DequantizeLinear<axis = 0>(w, ws, wz)
            [rows] a = MatMul(d, wd)
            aq = QuantizeLinear(a, t, z)
            y = DequantizeLinear(aq, t, z)
            wc = DequantizeLinear<axis = 1>(w, ws, wz)
            [end] v = MatMul(d, wc)
        }""",
        arrays,
    )
    left = qtool.convert(source, "qlinear").left
    assert left == (
        ("rows", "MatMul", "its weight has scales along another axis than its columns"),
        ("end", "MatMul", "its result is needed as floats"),
    )


# --------------------------------------------------------------------------------------------------------- refusals


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="expected one of qlinear, qdq, float"):
        qtool.convert(CNN, "int8")
    with pytest.raises(ModelError, match="The model is not quantized"):
        qtool.convert(CNN, "qdq")
    nbits = qtool.quantize(
        build("m (float[N,64] x) => (float[N,32] y) { y = MatMul(x, w) }", {"w": normal(64, 32)}, opset=21),
        weight_only=True,
        weights="int4",
        matmul_nbits=True,
    ).model
    with pytest.raises(ModelError, match=r"MatMulNBits of com\.microsoft, which has no counterpart in qdq form"):
        qtool.convert(nbits, "qdq")
    path = tmp_path / "m.onnx"
    onnx.save(quantized("qlinear"), path)
    first = qtool.convert(path, "qdq", data=X)
    assert first.model_path == tmp_path / "m.qdq.onnx"
    with pytest.raises(ConfigError, match="exists already"):
        qtool.convert(path, "qdq", data=X)
    meta = {p.key: p.value for p in onnx.load(first.model_path).metadata_props}
    assert meta["qtool.convert.to"] == "qdq"
    assert "qtool.config" in meta


def test_another_function_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(quantized("qlinear"), path)
    wrong = onnx.ModelProto.FromString(path.read_bytes())
    (tensor,) = [t for t in wrong.graph.initializer if t.name == "w2_quantized"]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name))
    answer = convert_model(load_model(wrong), "qdq")
    monkeypatch.setattr(sys.modules["qtool.convert"], "convert_model", lambda *_: answer)
    with pytest.raises(VerificationError, match="expected equal numbers but for a code here and there"):
        qtool.convert(path, "qdq", data=X)
    assert list(tmp_path.iterdir()) == [path]
