"""Questions to graphs that replace slower ones of onnx_ir answer the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from qtool.prepare.graph_edits import all_graphs, attribute_tensors, tensor_of
from qtool.prepare.load import load_model

NESTED = """<ir_version: 8, opset_import: ["": 17]> g (float[N] x, bool c) => (float[N] y, float[N] z) {
    y = If (c) <
        then_branch = a () => (float[N] p) {
            p = If (c) <then_branch = b () => (float[N] q) { q = Neg(x) },
                        else_branch = d () => (float[N] r) { k = Constant<value = float {2.0}>() r = Mul(x, k) }>
        },
        else_branch = e () => (float[N] s) { s = Abs(x) }
    >
    z = If (c) <then_branch = f () => (float[N] t) { t = Neg(x) }, else_branch = h () => (float[N] u) { u = Abs(x) }>
}"""


@pytest.fixture
def nested(build) -> ir.Model:
    return load_model(build(NESTED))


def test_graphs_are_those_of_the_model_in_its_order(nested):
    found = list(all_graphs(nested))
    assert [graph.name for graph in found] == ["g", "a", "b", "d", "e", "f", "h"]
    assert all(one is other for one, other in zip(found, nested.graphs(), strict=True))


def test_a_body_that_two_nodes_share_comes_once(nested):
    first, second = (node for node in nested.graph if node.op_type == "If")
    second.attributes["then_branch"] = first.attributes["then_branch"]
    found = list(all_graphs(nested))
    assert [graph.name for graph in found] == ["g", "a", "b", "d", "e", "h"]
    assert all(one is other for one, other in zip(found, nested.graphs(), strict=True))


def test_tensors_of_attributes():
    one, two = (numpy_helper.from_array(np.full(3, value, np.float32)) for value in (1, 2))
    node = ir.from_proto(helper.make_node("Odd", [], ["y"], domain="d", value=one, number=1, several=[two, one]))
    assert [tensor.numpy()[0] for tensor in attribute_tensors(node)] == [2, 1, 1]  # in the order of their names
    node.attributes["value"] = ir.RefAttr("value", "outer", ir.AttributeType.TENSOR)
    assert len(list(attribute_tensors(node))) == 2


def test_only_a_tensor_is_one():
    assert tensor_of(ir.AttrTensor("value", ir.tensor([1.0]))).numpy().tolist() == [1.0]
    with pytest.raises(TypeError, match="is not of type TENSOR"):
        tensor_of(ir.AttrInt64("value", 1))
