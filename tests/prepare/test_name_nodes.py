from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.name_nodes import NameNodesPass

TEXT = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Relu(b) }"


def named(model):
    return [node.name for node in model.graph]


def test_unnamed_nodes_get_unique_names(build, apply):
    model, modified = apply(build(TEXT), NameNodesPass())
    assert modified
    assert named(model) == ["node_Relu", "node_Neg", "node_Relu_1"]


def test_the_first_holder_keeps_a_shared_name(build, apply):
    proto = build(TEXT)
    for node, name in zip(proto.graph.node, ["n", "n", "n_1"], strict=True):
        node.name = name
    step = NameNodesPass()
    model, _ = apply(proto, step)
    assert named(model) == ["n", "n_2", "n_1"]
    assert step.actions == ("changed 1 name that stood for two things",)


def test_good_names_are_left_alone(build, apply):
    proto = build(TEXT)
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    step = NameNodesPass()
    model, modified = apply(proto, step)
    assert (modified, step.actions) == (False, ())
    assert [v.name for n in model.graph for v in n.outputs] == ["a", "b", "y"]


def test_values_that_share_a_name_are_told_apart_by_object(run):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    first = ir.node("Relu", [x], name="r")
    second = ir.node("Neg", first.outputs, name="n")
    first.outputs[0].name = second.outputs[0].name = "y"
    second.outputs[0].type, second.outputs[0].shape = x.type, x.shape
    graph = ir.Graph([x], second.outputs, nodes=[first, second], opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    assert NameNodesPass()(model).modified
    assert second.outputs[0].name == "y"  # a graph output keeps its name, whoever came first
    assert first.outputs[0].name == "y_1"
    assert run(model, {"x": np.asarray([-1, 2], np.float32)})[0].tolist() == [0.0, -2.0]


def test_optional_outputs_that_are_left_out_stay_so(build, apply):
    model, _ = apply(build("g (float[4] x, int64[1] k) => (int64[n] i) { , i = TopK(x, k) }"), NameNodesPass())
    assert [v.name for v in model.graph[0].outputs] == ["", "i"]
