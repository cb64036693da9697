"""The whole preparation: what it keeps, what it records, and that it never touches its input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.errors import ModelError
from qtool.prepare import SourceNode, load_model
from qtool.prepare.prepare import prepare

ROOT = Path(__file__).parents[2]


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def prepared(proto, **floors):
    return prepare(load_model(proto), **{"min_opset": 13, "min_ir": 7, **floors})


def conv_bn(build, rng, tail="y = Relu(n)"):
    return build(
        f"""g (float[1,1,4,4] x) => (float[1,2,4,4] y) {{
            [conv1] a = Conv(x, w)
            [bn1] n = BatchNormalization<epsilon=0.0>(a, scale, beta, mean, var)
            [act] {tail}
        }}""",
        {
            "w": floats(rng, 2, 1, 1, 1),
            "scale": np.asarray([2, 3], np.float32),
            "beta": floats(rng, 2),
            "mean": floats(rng, 2),
            "var": np.asarray([1, 4], np.float32),
        },
    )


def test_c33_conv_and_batch_norm_are_one_conv(build, same, ops, rng):
    proto = conv_bn(build, rng)
    result = prepared(proto)
    assert ops(result.model) == ["Conv", "Relu"]
    conv = result.model.graph[0]
    assert (conv.name, conv.outputs[0].name) == ("conv1", "n")
    assert json.loads(conv.metadata_props["qtool.origin"]) == ["conv1", "bn1"]
    assert "qtool.origin" not in result.model.graph[1].metadata_props
    assert result.actions == ("folded 1 BatchNormalization into the weights before",)
    same(proto, result.model, {"x": floats(rng, 1, 1, 4, 4)}, rtol=1e-6)


def test_c33_relu_between_keeps_the_batch_norm(build, same, ops, rng):
    proto = build(
        """g (float[1,1,4,4] x) => (float[1,2,4,4] y) {
            a = Conv(x, w) r = Relu(a) y = BatchNormalization(r, s, b, m, v)
        }""",
        {"w": floats(rng, 2, 1, 1, 1), **{k: np.asarray([1, 2], np.float32) for k in "sbmv"}},
    )
    result = prepared(proto)
    assert ops(result.model) == ["Conv", "Relu", "BatchNormalization"]
    same(proto, result.model, {"x": floats(rng, 1, 1, 4, 4)})


def test_c36_a_decomposed_layer_norm_is_not_touched(build, same, ops, rng):
    proto = build(
        """g (float[2,8] x) => (float[2,8] y) {
            p = Pow(x, two) m = ReduceMean<axes=[1]>(p) s = Sqrt(m) y = Div(x, s)
        }""",
        {"two": np.float32(2)},
    )
    result = prepared(proto)
    assert ops(result.model) == ["Pow", "ReduceMean", "Sqrt", "Div"]
    assert result.actions == ()
    same(proto, result.model, {"x": floats(rng, 2, 8)})


@pytest.mark.parametrize("dims", [[4], [2, 3, 3], [7, 7]])
@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.INT8])
def test_c40_a_stale_value_info_is_replaced(dims, dtype, build, run, rng):
    proto = build("g (float[2,4] x) => (float[2,3] y) { a = MatMul(x, w) y = Relu(a) }", {"w": floats(rng, 4, 3)})
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", dtype, dims))
    result = prepared(proto)
    value = result.model.graph[0].outputs[0]
    assert (value.name, value.shape.numpy(), value.dtype) == ("a", (2, 3), ir.DataType.FLOAT)
    x = floats(rng, 2, 4)
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    np.testing.assert_allclose(run(result.model, {"x": x})[0], np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)


def test_c40_failed_shape_inference_is_not_fatal(build, ops, rng):
    proto = build("g (float[2,4] x) => (float[5,6,7] y) { a = MatMul(x, w) y = Relu(a) }", {"w": floats(rng, 5, 3)})
    assert ops(prepared(proto).model) == ["MatMul", "Relu"]


def test_c40_what_only_the_model_knows_about_a_custom_operator_stays(build):
    proto = build(
        """<ir_version: 8, opset_import: ["": 17, "custom": 1]>
        g (float[2,4] x) => (float[a,b] y) { a = custom.F(x) y = Relu(a) }"""
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2, 5]))
    value = prepared(proto).model.graph[0].outputs[0]
    assert (value.shape.numpy(), value.dtype) == ((2, 5), ir.DataType.FLOAT)


def test_c41_opset_13_stays_13_and_its_ir_stays(build):
    result = prepared(build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=13, ir_version=7))
    assert (dict(result.model.opset_imports), result.model.ir_version) == ({"": 13}, 7)


@pytest.mark.parametrize("opset", [11, 17])
def test_c44_everything_about_the_model_is_kept(build, rng, opset):
    proto = build(
        f"""<ir_version: 7, opset_import: ["": {opset}, "ai.onnx.ml": 2], producer_name: "maker",
            producer_version: "1.2", domain: "org.example", model_version: 9, doc_string: "a model",
            metadata_props: ["author": "x", "n": "1"]>
        g (float[N,4] x) => (float[N,2] y) {{ [dense] y = MatMul(x, w) }}
        <opset_import: ["": {opset}], domain: "local"> spare (p) => (q) {{ q = Neg(p) }}""",
        {"w": floats(rng, 4, 2)},
    )
    proto.graph.doc_string, proto.graph.node[0].doc_string = "a graph", "a node"
    proto.graph.input[0].doc_string, proto.graph.output[0].doc_string = "an input", "an output"
    proto.graph.metadata_props.append(onnx.StringStringEntryProto(key="g", value="h"))
    proto.graph.node[0].metadata_props.append(onnx.StringStringEntryProto(key="namespace", value="net.dense"))
    after = ir.to_proto(prepared(proto).model)
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string", "metadata_props"):
        assert getattr(after, field) == getattr(proto, field), field
    assert (after.graph.name, after.graph.doc_string) == ("g", "a graph")
    assert after.graph.metadata_props == proto.graph.metadata_props
    assert after.graph.node[0].doc_string == "a node"
    assert after.graph.node[0].metadata_props == proto.graph.node[0].metadata_props
    assert after.graph.input == proto.graph.input
    assert after.graph.output == proto.graph.output
    assert {o.domain: o.version for o in after.opset_import} == {"": max(opset, 13), "ai.onnx.ml": 2}
    # A function must import the model's opset: one of an older opset cannot stay.
    assert [f.name for f in after.functions] == (["spare"] if opset >= 13 else [])
    onnx.checker.check_model(after, full_check=True)


TRICKY = """g (bool c, float[1,3,8,8] x, float[4,3,3,3] w) => (float[n,m] y, float[1,3] k) {
    k = Constant<value = float[1,3] {1, 2, 3}>()
    p = Constant<value = int64[8] {0,0,1,1,0,0,1,1}>()
    xi = Identity(x)
    xp = Pad(xi, p)
    a = Conv(xp, w)
    b = BatchNormalization(a, s, t, m1, v)
    d = Add(b, e)
    f = Flatten(d)
    h = Gemm<alpha=0.5, transB=1>(f, g2, q)
    dead = Neg(h)
    y = If(c) <then_branch = t1 () => (float[n,m] u) { o = Constant<value = float {2}>() u = Mul(h, o) },
               else_branch = t2 () => (float[n,m] u2) { u2 = Add(h, q) }>
}"""


def tricky(build, rng, **options):
    positive = np.asarray([1, 2, 3, 4], np.float32)
    proto = build(
        TRICKY,
        {
            "w": floats(rng, 4, 3, 3, 3),
            **dict.fromkeys(("s", "t", "m1", "v"), positive),
            "e": floats(rng, 4, 1, 1),
            "g2": floats(rng, 5, 256),
            "q": floats(rng, 1, 5),
        },
        **options,
    )
    typed = proto.graph.initializer[5]
    values = onnx.numpy_helper.to_array(typed).ravel().tolist()
    typed.ClearField("raw_data")
    typed.float_data.extend(values)
    return proto


@pytest.mark.parametrize("opset", [11, 17])
def test_c53_the_input_is_never_changed(build, rng, same, opset):
    proto = tricky(build, rng, opset=opset, ir_version=7)
    before = proto.SerializeToString(deterministic=True)
    result = prepared(proto)
    ir.to_proto(result.model)
    assert proto.SerializeToString(deterministic=True) == before

    model = ir.from_proto(proto)
    text = ir.to_proto(model).SerializeToString(deterministic=True)
    result = prepare(model, min_opset=13, min_ir=7)
    for node in result.model.graph:
        for value in node.outputs:
            value.name = f"{value.name}_renamed"
    ir.to_proto(result.model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == text
    assert proto.SerializeToString(deterministic=True) == before


def test_c53_remarks_of_other_tools_are_not_renamed(rng):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    first = ir.node("Relu", [x])
    second = ir.node("Neg", first.outputs)
    first.outputs[0].name = second.outputs[0].name = "y"
    remark = ir.Tensor(np.zeros(2, np.float32), name="y")
    first.outputs[0].const_value = remark
    graph = ir.Graph([x], second.outputs, nodes=[first, second], opset_imports={"": 17}, name="g")
    result = prepare(ir.Model(graph, ir_version=8), min_opset=13, min_ir=7)
    assert [node.outputs[0].name for node in result.model.graph] == ["y_1", "y"]
    assert (remark.name, first.outputs[0].const_value) == ("y", remark)


@pytest.mark.parametrize("opset", [11, 17])
def test_everything_at_once(build, rng, run, ops, opset):
    proto = tricky(build, rng, opset=opset, ir_version=7)
    result = prepared(proto)
    assert ops(result.model) == ["Constant", "Conv", "Flatten", "Gemm", "If"]
    assert result.actions == (
        "took 1 initializer off the graph inputs",
        "lifted 1 Constant node to initializers",
        *((f"raised the opset from {opset} to 13",) if opset < 13 else ()),
        "removed 1 node that no output needs",
        "removed 1 identity node",
        "folded 1 BatchNormalization into the weights before",
        "folded 1 Add of a constant into convolution biases",
        "folded 1 Pad into convolution pads",
        "normalized 1 Gemm",
    )
    conv = result.model.graph[1]
    names = {
        node.output[0]: load_name
        for node, load_name in zip(proto.graph.node, [n.name for n in result.source_nodes if not n.scope], strict=True)
    }
    assert json.loads(conv.metadata_props["qtool.origin"]) == [names[v] for v in ("a", "b", "d", "xp")]
    for flag in (True, False):
        feeds = {"c": np.asarray(flag), "x": floats(rng, 1, 3, 8, 8)}
        for old, new in zip(run(proto, feeds), run(result.model, feeds), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_preparing_twice_changes_nothing_more(build, rng):
    first = prepared(tricky(build, rng))
    second = prepare(first.model, min_opset=13, min_ir=7)
    assert second.actions == ()
    assert ir.to_proto(second.model) == ir.to_proto(first.model)


def test_source_nodes_are_the_users_with_scopes(build, rng):
    nodes = prepared(tricky(build, rng)).source_nodes
    assert [n.op_type for n in nodes if not n.scope] == [
        *(
            "Constant",
            "Constant",
            "Identity",
            "Pad",
            "Conv",
            "BatchNormalization",
            "Add",
            "Flatten",
            "Gemm",
            "Neg",
            "If",
        )
    ]
    branch = next(n.name for n in nodes if n.op_type == "If")
    assert [(n.op_type, n.scope) for n in nodes if n.scope] == [
        ("Constant", f"{branch}/then_branch"),
        ("Mul", f"{branch}/then_branch"),
        ("Add", f"{branch}/else_branch"),
    ]
    assert len({n.name for n in nodes if not n.scope}) == 11
    assert all(n.domain == "" for n in nodes)


def test_source_nodes_of_the_tiny_model(build, rng):
    assert prepared(conv_bn(build, rng)).source_nodes == (
        SourceNode("conv1", "Conv", "", ""),
        SourceNode("bn1", "BatchNormalization", "", ""),
        SourceNode("act", "Relu", "", ""),
    )


def test_a_weight_of_nan_on_a_dead_branch_is_gone(build, rng):
    proto = build(
        "g (float[2,4] x) => (float[2,4] y) { dead = MatMul(x, w) y = Relu(x) }",
        {"w": np.full((4, 3), np.nan, np.float32)},
    )
    assert not prepared(proto).model.graph.initializers


def test_an_ir_model_out_of_order_is_one_line(rng):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    first = ir.node("Relu", [x])
    second = ir.node("Neg", first.outputs)
    graph = ir.Graph([x], second.outputs, nodes=[second, first], opset_imports={"": 17}, name="g")
    with pytest.raises(ModelError) as info:
        prepare(ir.Model(graph, ir_version=8), min_opset=13, min_ir=7)
    assert "\n" not in info.value.message


SCRIPT = """
import hashlib, sys
import onnx_ir as ir
from qtool.prepare import load_model
from qtool.prepare.prepare import prepare
result = prepare(load_model(sys.argv[1]), min_opset=13, min_ir=7)
data = ir.to_proto(result.model).SerializeToString(deterministic=True)
print(hashlib.sha256(data + repr(result.actions).encode()).hexdigest())
"""


def test_the_same_bytes_whatever_the_hash_seed(build, rng, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(tricky(build, rng, opset=11, ir_version=7), path)
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1


def test_c50_small_external_tensors_are_found_from_any_folder(build, rng, run, tmp_path, monkeypatch):
    proto = build(
        """g (float[2,64] x) => (float[N,1,64] y) {
            a = MatMul(x, w) b = Unsqueeze<axes=[0]>(a) c = Squeeze<axes=[0]>(b) y = Reshape(c, s)
        }""",
        {"w": floats(rng, 64, 64), "s": np.asarray([-1, 1, 64])},
        opset=11,
    )
    onnx.save_model(
        onnx.ModelProto.FromString(proto.SerializeToString()),
        *(tmp_path / "m.onnx",),
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    monkeypatch.chdir("/")
    model = prepare(load_model(tmp_path / "m.onnx"), min_opset=13, min_ir=7).model
    assert model.graph.node("node_Reshape").outputs[0].is_graph_output()
    assert model.graph[0].outputs[0].shape.numpy() == (2, 64)
    x = floats(rng, 2, 64)
    weights = model.graph.initializers["w"]
    assert isinstance(weights.const_value, ir.ExternalTensor)
    weights.const_value = ir.Tensor(weights.const_value.numpy().copy(), name="w")
    assert np.array_equal(run(model, {"x": x})[0], run(proto, {"x": x})[0])


def test_external_weights_are_not_read(build, rng, tmp_path):
    proto = build("g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }", {"w": floats(rng, 64, 64)}, opset=11)
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    result = prepare(load_model(path), min_opset=13, min_ir=7)
    tensor = result.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None  # not even mapped
