"""C37-C41, C44: which nodes are quantized, by the names of the user's model; and models with nothing to quantize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.__main__ import main
from qtool.errors import ConfigError, ModelError, NothingToQuantizeError
from tests.cases.files_support import mlp, model, random, samples, snapshot

QUANTIZED = {"QLinearConv", "QLinearMatMul", "QuantizeLinear"}


def network() -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, Conv, Flatten, Gemm (alpha, transB, bias), Gemm (its bias is an input)."""
    nodes = [
        helper.make_node("Conv", ["x", "W1"], ["a"], "/block1/conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["bn"], "/block1/bn"),
        helper.make_node("Relu", ["bn"], ["r"], "/block1/relu"),
        helper.make_node("Conv", ["r", "W2"], ["c"], "/block2/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["c"], ["f"], "/head/flatten"),
        helper.make_node("Gemm", ["f", "W3", "B3"], ["g"], "/head/fc1", alpha=0.5, transB=1),
        helper.make_node("Gemm", ["g", "W4", "skip"], ["y"], "/head/fc2", beta=2.0),
    ]
    weights = {
        "W1": random(4, 4, 3, 3, seed=1), "W2": random(2, 4, 3, 3, seed=2, scale=0.3), "W3": random(6, 32, seed=3),
        "B3": random(6, seed=4), "W4": random(6, 5, seed=5), "s": np.abs(random(4, seed=6)) + 0.5,
        "b": random(4, seed=7), "m": random(4, seed=8), "v": np.abs(random(4, seed=9)) + 0.5,
    }  # fmt: skip
    return model(nodes, weights, inputs={"x": ["N", 4, 4, 4], "skip": ["N", 5]}, outputs={"y": ["N", 5]})


DATA = {"x": random(16, 4, 4, 4, seed=10), "skip": random(16, 5, seed=11)}


def plan(proto: onnx.ModelProto = None, **options: object) -> qtool.api.QuantizeResult:
    return qtool.quantize(proto or network(), DATA if proto is None else None, dry_run=True, **options)


def decided(result: qtool.api.QuantizeResult) -> set[str]:
    """Prepared nodes that are quantized, absorbed ones included."""
    return {name for d in result.plan.decisions for name in (d.node, *d.absorbed)}


def reasons(result: qtool.api.QuantizeResult) -> dict[str, str]:
    return {skip.node: skip.reason for skip in result.skips}


# --------------------------------------------------------------------------------------------------- C37 selection


def test_c37_everything_by_default():
    result = plan()
    kinds = [d.op_type for d in result.plan.decisions]
    assert kinds.count("Conv") == 2
    assert kinds.count("MatMul") + kinds.count("Gemm") == 2


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize(
    ("pattern", "kept", "still"),
    [
        # a BatchNormalization that was folded into its Conv: the Conv stands for both
        ("/block1/bn", {"/block1/conv"}, {"/block2/conv"}),
        ("op:BatchNormalization", {"/block1/conv"}, {"/block2/conv"}),
        ("/block1/conv", {"/block1/conv"}, {"/block2/conv"}),
        # a Relu that would be absorbed
        ("/block1/relu", {"/block1/relu"}, {"/block1/conv", "/block2/conv"}),
        ("op:Relu", {"/block1/relu"}, {"/block1/conv", "/block2/conv"}),
        # globs
        ("/block*/conv", {"/block1/conv", "/block2/conv"}, {"/head/fc1"}),
        ("*conv", {"/block1/conv", "/block2/conv"}, {"/head/fc1"}),
        ("/block[2-9]/*", {"/block2/conv"}, {"/block1/conv"}),
        ("/block?/relu", {"/block1/relu"}, {"/block1/conv"}),
        ("op:C*", {"/block1/conv", "/block2/conv"}, {"/head/fc1"}),
    ],
)
def test_c37_excluded_nodes_stay_float(pattern, kept, still, format_):
    result = plan(exclude=[pattern], format=format_)
    assert decided(result) & kept == set()
    assert decided(result) >= still
    assert {reasons(result)[name] for name in kept} == {f"excluded by '{pattern}'"}


@pytest.mark.parametrize("pattern", ["/head/fc1", "/head/fc2", "op:Gemm", "/head/*"])
def test_c37_a_gemm_that_was_rewritten(pattern):
    """fc1 lost alpha and transB; fc2, whose bias is an input, became a MatMul and an Add."""
    result = plan(exclude=[pattern])
    quantized = [d for d in result.plan.decisions if d.op_type in ("Gemm", "MatMul")]
    assert len(quantized) == (1 if pattern.startswith("/head/fc") else 0)
    assert all(pattern[:9] not in d.node for d in quantized)
    made = qtool.quantize(network(), DATA, exclude=[pattern]).model
    report = qtool.evaluate(network(), made, DATA, latency=False)
    assert report.outputs[0].values["sqnr"] > 20


def test_c37_the_absence_of_a_node_type_after_rewriting_is_no_match():
    """Names and types are the user's: there is no MatMul in the file, although fc2 becomes one inside."""
    with pytest.raises(ConfigError, match="op:MatMul' matches no node"):
        plan(exclude=["op:MatMul"])


def test_c37_include():
    assert decided(plan(include=["/block2/conv"])) == {"/block2/conv"}
    assert decided(plan(include=["op:Conv"])) == {"/block1/conv", "/block2/conv"}
    assert decided(plan(include=["/block1/*"])) == {"/block1/conv", "/block1/relu"}
    assert decided(plan(include=["op:Conv", "/block1/relu"], exclude=["/block2/*"])) == {
        "/block1/conv",
        "/block1/relu",
    }
    assert reasons(plan(include=["/block2/conv"]))["/block1/conv"] == "not among the included nodes"


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c37_an_excluded_node_is_float_in_the_result(format_):
    made = qtool.quantize(network(), DATA, exclude=["/block1/bn"], format=format_).model
    (conv,) = [n for n in made.graph.node if n.op_type == "Conv" and n.name.startswith("/block1")]
    weights = {t.name: t.data_type for t in made.graph.initializer}
    assert weights[conv.input[1]] == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("/blok1/conv", "'/block1/conv'"),
        ("/block1/Conv", "'/block1/conv'"),
        ("Conv", "Did you mean 'op:Conv'?"),
        ("op:conv", "op:Conv"),
        ("op:Gem", "op:Gemm"),
        ("op:MatMul", "op:"),
        ("/nothing/*", "qtool inspect"),
        ("zzzzzz", "qtool inspect"),
    ],
)
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_c37_what_matches_nothing_is_refused_with_the_nearest_names(pattern, near, option):
    with pytest.raises(ConfigError, match="matches no node of the model") as caught:
        plan(**{option: ["op:Relu", pattern]})
    assert pattern in caught.value.message
    assert f"--{option}" in caught.value.message
    assert near in caught.value.hint
    assert caught.value.exit_code == 2


def test_c37_unnamed_nodes_have_the_names_that_inspect_shows():
    proto = mlp()
    for node in proto.graph.node:
        node.name = ""
    names = [name for name, op, *_ in qtool.inspect(proto).nodes if op == "MatMul"]
    assert len(set(names)) == 2
    result = plan(proto, exclude=[names[0]])
    assert reasons(result)[names[0]] == f"excluded by '{names[0]}'"
    assert names[1] in decided(result)


def test_c37_a_name_with_glob_characters_is_matched_as_it_is():
    proto = mlp()
    proto.graph.node[0].name = "layer[0]/fc*"
    assert "layer[0]/fc*" in reasons(plan(proto, exclude=["layer[0]/fc*"]))


# ------------------------------------------------------------------------------------------ C38 nothing to quantize


def identity() -> onnx.ModelProto:
    return model(
        [helper.make_node("Identity", ["x"], ["y"], "id")], {}, inputs={"x": ["N", 4]}, outputs={"y": ["N", 4]}
    )


def fused_matmul() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("FusedMatMul", ["x", "W"], ["y"], "fused", domain="com.microsoft", alpha=0.5)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(random(4, 4), "W")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize("build", [identity, fused_matmul])
def test_c38_nothing_to_quantize(tmp_path, monkeypatch, capsys, build, format_):
    monkeypatch.chdir(tmp_path)
    onnx.save(build(), "m.onnx")
    np.savez("c.npz", x=random(8, 4))
    before = snapshot(tmp_path)
    args = ["quantize", "m.onnx", "--calib", "c.npz", "--format", format_]
    assert main(args) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert line.startswith("error: 0 of 1 nodes were quantized: ")
    assert snapshot(tmp_path) == before
    assert main([*args, "--allow-empty"]) == 0
    made = onnx.load("m.int8.onnx")
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in build().graph.node]
    if build is fused_matmul:
        assert "com.microsoft" in {opset.domain for opset in made.opset_import}
    report = qtool.evaluate("m.onnx", "m.int8.onnx", "c.npz", latency=False)
    assert report.outputs[0].values["max_abs"] == 0


def test_c38_the_reason_is_told():
    with pytest.raises(NothingToQuantizeError, match=r"com\.microsoft"):
        qtool.quantize(fused_matmul(), {"x": random(8, 4)})
    with pytest.raises(NothingToQuantizeError, match="excluded by"):
        qtool.quantize(mlp(), samples(), exclude=["fc?"])
    with pytest.raises(NothingToQuantizeError, match="0 of 3 nodes"):
        qtool.quantize(mlp(), samples(), exclude=["fc?"], dry_run=True)


# ------------------------------------------------------------------------------------------- C39 quantized already


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c39_a_quantized_model_is_refused(format_):
    made = qtool.quantize(mlp(), samples(), format=format_).model
    with pytest.raises(ModelError, match=r"is quantized already: it holds .*QuantizeLinear") as caught:
        qtool.quantize(made, samples())
    assert "--force" in caught.value.hint
    assert caught.value.exit_code == 2


def test_c39_one_more_time_with_force(tmp_path):
    """fc1 is quantized already; what is still float follows."""
    once = qtool.quantize(mlp(), samples(), exclude=["fc2"]).model
    onnx.save(once, tmp_path / "once.onnx")
    result = qtool.quantize(tmp_path / "once.onnx", samples(), output=tmp_path / "twice.onnx", force=True)
    assert "fc2" in decided(result)
    report = qtool.evaluate(mlp(), tmp_path / "twice.onnx", samples(), latency=False)
    assert report.outputs[0].values["sqnr"] > 20


@pytest.mark.parametrize(
    ("op", "domain"), [("MatMulNBits", "com.microsoft"), ("QGemm", "com.microsoft"), ("MatMulInteger", "")]
)
def test_c39_every_kind_of_quantized_operator(op, domain):
    proto = mlp()
    proto.graph.node[2].op_type, proto.graph.node[2].domain = op, domain
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(ModelError, match=op):
        qtool.quantize(proto, samples())


def test_c39_inside_a_branch():
    branch = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "inner_q"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["o"], "inner_dq"),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["o2"], "inner_id")],
        "else",
        [],
        [helper.make_tensor_value_info("o2", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], "if", then_branch=branch, else_branch=other),
        helper.make_node("MatMul", ["i", "W"], ["y"], "fc"),
    ]
    weights = {"W": random(4, 4), "s": np.float32(0.1), "z": np.uint8(3), "c": np.array(True)}
    proto = model(nodes, weights, inputs={"x": ["N", 4]}, outputs={"y": ["N", 4]})
    with pytest.raises(ModelError, match="is quantized already"):
        qtool.quantize(proto, {"x": random(4, 4)})


# ------------------------------------------------------------------------------------ C40 stale shapes, C41 versions


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize("shape", [[3], ["N", 8, 1, 1], ["N", 9], []])
def test_c40_a_stale_shape_is_dropped(tmp_path, format_, shape):
    proto = mlp()
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, shape))
    onnx.save(proto, tmp_path / "m.onnx")
    # without its intermediate shapes the model is right, so the float side can run
    onnx.save(mlp(), tmp_path / "right.onnx")
    result = qtool.quantize(proto, samples(), format=format_)
    assert result.quantized == 3
    onnx.checker.check_model(result.model, full_check=True)
    for info in result.model.graph.value_info:
        if info.name == "a":
            assert len(info.type.tensor_type.shape.dim) == 2
    assert qtool.evaluate(mlp(), result.model, samples(), latency=False).outputs[0].values["sqnr"] > 25


def test_c41_two_spellings_of_the_default_domain():
    proto = mlp()
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    result = qtool.quantize(proto, samples())
    assert result.quantized == 3
    assert [(o.domain, o.version) for o in result.model.opset_import if o.domain in ("", "ai.onnx")] == [("", 17)]


def test_c41_only_the_long_spelling():
    proto = mlp()
    proto.opset_import[0].domain = "ai.onnx"
    assert qtool.quantize(proto, samples()).quantized == 3


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c41_a_sufficient_opset_stays(opset, format_):
    proto = mlp(opset=opset)
    made = qtool.quantize(proto, samples(), format=format_).model
    assert [(o.domain, o.version) for o in made.opset_import] == [("", opset)]
    assert made.ir_version == proto.ir_version


def test_c41_opset_9_with_upsample_is_converted():
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Upsample", ["a", "scales"], ["y"], "up", mode="nearest"),
    ]
    weights = {"W": random(2, 4, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)}
    proto = model(
        nodes, weights, inputs={"x": [1, 4, 4, 4]}, outputs={"y": [1, 2, 8, 8]}, opset=9, ir_version=4
    )  # fmt: skip
    data = {"x": random(8, 4, 4, 4)}
    made = qtool.quantize(proto, data).model
    onnx.checker.check_model(made, full_check=True)
    (opset,) = made.opset_import
    assert opset.version >= 10
    assert "Upsample" not in {node.op_type for node in made.graph.node}
    assert qtool.evaluate(proto, made, data, latency=False).outputs[0].values["sqnr"] > 30


# ------------------------------------------------------------------------------------------------ C44 the interface


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c44_inputs_and_outputs_keep_names_order_types_and_shapes(format_):
    proto = network()
    made = qtool.quantize(proto, DATA, format=format_).model
    assert list(made.graph.input) == list(proto.graph.input)
    assert list(made.graph.output) == list(proto.graph.output)
    assert QUANTIZED & {node.op_type for node in made.graph.node}


def test_c44_the_example_keeps_its_interface(examples: Path, tmp_path):
    result = qtool.quantize(examples / "mnist_cnn.onnx", examples / "mnist_calib.npz", output=tmp_path / "q.onnx")
    before, after = onnx.load(examples / "mnist_cnn.onnx"), onnx.load(result.model_path)
    constants = {tensor.name for tensor in before.graph.initializer}
    assert [i.name for i in after.graph.input] == [i.name for i in before.graph.input if i.name not in constants]
    assert list(after.graph.output) == list(before.graph.output)
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, field) == getattr(before, field)
