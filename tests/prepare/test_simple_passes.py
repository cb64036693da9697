"""Passes that only move names and constants: inputs, constants, identities, dead nodes, imports, functions."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.prepare.eliminate_identity import EliminateIdentityPass
from qtool.prepare.hide_initializer_inputs import HideInitializerInputsPass
from qtool.prepare.inline_functions import InlineFunctionsPass
from qtool.prepare.lift_constants import LiftConstantsPass
from qtool.prepare.merge_opset_imports import MergeOpsetImportsPass
from qtool.prepare.remove_dead_nodes import RemoveDeadNodesPass

X = {"x": np.asarray([[-1.5, 2.0, 3.0]], np.float32)}


# ---- hide_initializer_inputs


def test_initializers_leave_the_inputs(build, apply, same):
    proto = build(
        "g (float[1,3] x, float[3] w) => (float[1,3] y) { y = Add(x, w) }",
        {"w": np.ones(3, np.float32)},
        opset=8,
        ir_version=3,
    )
    step = HideInitializerInputsPass()
    model, modified = apply(proto, step)
    assert modified
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert model.ir_version == 4
    assert step.actions == ("took 1 initializer off the graph inputs",)
    same(proto, model, X)


def test_inputs_without_initializers_stay(build, apply):
    model, modified = apply(build("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }"), HideInitializerInputsPass())
    assert not modified
    assert model.ir_version == 8


# ---- lift_constants


@pytest.mark.parametrize(
    "attribute",
    ["value = float[3] {1, 2, 3}", "value_floats = [1.0, 2.0, 3.0]", "value_float = 2.5", "value = float {7}"],
)
def test_constants_become_initializers_of_the_same_name(build, apply, same, attribute):
    proto = build(f"g (float[1,3] x) => (float[1,3] y) {{ c = Constant<{attribute}>() y = Add(x, c) }}")
    model, modified = apply(proto, LiftConstantsPass())
    assert modified
    assert list(model.graph.initializers) == ["c"]
    assert [n.op_type for n in model.graph] == ["Add"]
    same(proto, model, X)


@pytest.mark.parametrize("attribute", ["value_int = 2", "value_ints = [2]"])
def test_integer_constants(build, apply, attribute):
    proto = build(f"g (int64[1] x) => (int64[1] y) {{ c = Constant<{attribute}>() y = Add(x, c) }}")
    model, _ = apply(proto, LiftConstantsPass())
    assert model.graph.initializers["c"].const_value.numpy().dtype == np.int64
    assert model.graph.initializers["c"].const_value.numpy().ravel().tolist() == [2]


def test_a_constant_that_is_an_output_stays(build, apply):
    proto = build(
        "g (float[1,3] x) => (float[1] c, float[1,3] y) { c = Constant<value = float[1] {1}>() y = Add(x, c) }"
    )
    model, modified = apply(proto, LiftConstantsPass())
    assert not modified
    assert [n.op_type for n in model.graph] == ["Constant", "Add"]


def test_constants_in_bodies_stay_and_captured_ones_are_lifted(build, apply, same):
    proto = build("""g (bool c, float[1,3] x) => (float[1,3] y) {
        k = Constant<value = float[1] {4}>()
        y = If(c) <then_branch = a () => (float[1,3] t) {
                       j = Constant<value = float[1] {5}>() u = Add(x, k) t = Add(u, j)
                   },
                   else_branch = b () => (float[1,3] e) { e = Mul(x, k) }>
    }""")
    model, _ = apply(proto, LiftConstantsPass())
    assert list(model.graph.initializers) == ["k"]
    assert [n.op_type for n in model.graph[0].attributes["then_branch"].as_graph()] == ["Constant", "Add", "Add"]
    for flag in (True, False):
        same(proto, model, {**X, "c": np.asarray(flag)})


def test_typed_fields_become_arrays(build, apply, same):
    proto = build("g (float[1,3] x) => (float[1,3] y) { y = Add(x, w) }")
    proto.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2, 3]))
    step = LiftConstantsPass()
    model, modified = apply(proto, step)
    assert modified
    assert isinstance(model.graph.initializers["w"].const_value, ir.Tensor)
    assert step.actions == ()  # no Constant node was lifted
    same(proto, model, X)


def test_serializing_the_result_does_not_write_names_into_the_source(build):
    proto = build("g (float[1,3] x) => (float[1,3] y) { c = Constant<value = float[3] {1, 2, 3}>() y = Add(x, c) }")
    raw = onnx.numpy_helper.from_array(np.asarray([1, 2, 3], np.float32), "another name")
    proto.graph.node[0].attribute[0].t.CopyFrom(raw)
    before = proto.SerializeToString(deterministic=True)
    model = ir.from_proto(proto).clone()
    LiftConstantsPass()(model)
    ir.to_proto(model)
    assert proto.SerializeToString(deterministic=True) == before


# ---- eliminate_identity


def test_identity_between_nodes_goes(build, apply, same, ops):
    proto = build("g (float[1,3] x) => (float[1,3] y) { a = Relu(x) b = Identity(a) y = Neg(b) }")
    model, modified = apply(proto, EliminateIdentityPass())
    assert modified
    assert ops(model) == ["Relu", "Neg"]
    same(proto, model, X)


def test_identity_into_an_output_gives_its_name_to_the_producer(build, apply, same, ops):
    proto = build("g (float[1,3] x) => (float[1,3] y) { a = Relu(x) b = Neg(a) y = Identity(b) z = Abs(b) }")
    model, _ = apply(proto, EliminateIdentityPass())
    assert ops(model) == ["Relu", "Neg", "Abs"]
    same(proto, model, X)


def test_casts_to_the_type_that_is_there_go(build, apply, same, ops):
    """As function bodies leave them; one that changes the type, and one of a type that is not known, stay."""
    proto = build("""g (float[1,3] x) => (float[1,3] y, double[1,3] z) <float[3] w = {1, 2, 3}> {
        a = CastLike(w, x)
        b = Cast<to=1>(x)
        y = Mul(b, a)
        z = Cast<to=11>(x)
    }""")
    model, _ = apply(proto, EliminateIdentityPass())
    assert ops(model) == ["Mul", "Cast"]
    same(proto, model, X)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,3] x) => (float[1,3] y) { y = Identity(x) }",
        "g (float[1,3] x) => (float[1,3] a, float[1,3] y) { a = Relu(x) y = Identity(a) }",
        "g (float[1,3] x) => (float[3] y, float[1,3] z) <float[3] w = {1, 2, 3}> { y = Identity(w) z = Add(x, w) }",
    ],
    ids=["input to output", "output to output", "initializer to output"],
)
def test_identity_between_names_of_the_interface_stays(build, apply, same, text):
    proto = build(text)
    model, modified = apply(proto, EliminateIdentityPass())
    assert not modified
    same(proto, model, X)


def test_identity_that_a_body_reads(build, apply, same):
    proto = build("""g (bool c, float[1,3] x) => (float[1,3] y) {
        a = Relu(x)
        b = Identity(a)
        y = If(c) <then_branch = t () => (float[1,3] p) { p = Neg(b) },
                   else_branch = e () => (float[1,3] q) { q = Abs(b) }>
    }""")
    model, _ = apply(proto, EliminateIdentityPass())
    assert [n.op_type for n in model.graph] == ["Relu", "If"]
    same(proto, model, {**X, "c": np.asarray(True)})


def test_dropout_in_inference_goes_and_with_a_used_mask_stays(build, apply, same, ops):
    proto = build("g (float[1,3] x) => (float[1,3] y) { a = Dropout(x) y = Neg(a) }")
    model, _ = apply(proto, EliminateIdentityPass())
    assert ops(model) == ["Neg"]
    same(proto, model, X)
    kept = build("g (float[1,3] x) => (float[1,3] y, bool[1,3] m) { a, m = Dropout(x) y = Neg(a) }")
    assert not apply(kept, EliminateIdentityPass())[1]


# ---- remove_dead_nodes


def test_dead_chains_and_their_weights_go(build, apply, same, ops):
    proto = build(
        "g (float[1,3] x) => (float[1,3] y) { a = Add(x, w) b = Neg(a) y = Relu(x) }", {"w": np.ones(3, np.float32)}
    )
    step = RemoveDeadNodesPass()
    model, modified = apply(proto, step)
    assert modified
    assert ops(model) == ["Relu"]
    assert not model.graph.initializers
    assert step.actions == ("removed 2 nodes that no output needs",)
    same(proto, model, X)


def test_captured_values_are_alive(build, apply):
    proto = build(
        """g (bool c, float[1,3] x) => (float[1,3] y) {
        a = Add(x, w)
        y = If(c) <then_branch = t () => (float[1,3] p) { d = Abs(a) p = Neg(a) },
                   else_branch = e () => (float[1,3] q) { q = Abs(v) }>
    }""",
        {"w": np.ones(3, np.float32), "v": np.ones((1, 3), np.float32)},
    )
    model, modified = apply(proto, RemoveDeadNodesPass())
    assert not modified
    assert len(model.graph[1].attributes["then_branch"].as_graph()) == 2  # bodies are not touched


# ---- merge_opset_imports


@pytest.mark.parametrize(
    ("imports", "expected"),
    [((("", 13), ("ai.onnx", 11)), 11), ((("", 11), ("ai.onnx", 13)), 13), ((("ai.onnx", 17),), 17)],
)
def test_c41_both_spellings_of_the_default_domain(build, apply, imports, expected):
    proto = build("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in imports)
    model, modified = apply(proto, MergeOpsetImportsPass())
    assert modified
    assert dict(model.opset_imports) == {"": expected}


def test_other_domains_are_kept(build, apply):
    proto = build(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 2]> g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }'
    )
    model, modified = apply(proto, MergeOpsetImportsPass())
    assert not modified
    assert dict(model.opset_imports) == {"": 17, "ai.onnx.ml": 2}


# ---- inline_functions

FUNCTION = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[1,3] x) => (float[1,3] y) { [call1] a = local.double(x) [call2] y = local.double(a) }
<opset_import: ["": %d], domain: "local"> double (p) => (q) { [mul] r = Add(p, p) q = Neg(r) }
<opset_import: ["": 17], domain: "local"> unused (p) => (q) { q = Neg(p) }
"""


def test_functions_are_inlined_and_their_nodes_know_the_call(build, apply, same):
    proto = build(FUNCTION % 17)
    step = InlineFunctionsPass()
    model, modified = apply(proto, step)
    assert modified
    assert [n.op_type for n in model.graph] == ["Add", "Neg", "Add", "Neg"]
    origins = [json.loads(n.metadata_props["qtool.origin"]) for n in model.graph]
    assert origins == [["call1"], ["call1"], ["call2"], ["call2"]]
    assert len({n.name for n in model.graph}) == 4
    assert [f.name for f in model.functions.values()] == ["unused"]
    assert step.actions == ("inlined 2 calls of local functions",)
    same(proto, model, X)


def test_a_function_of_another_opset_stays_with_the_reason(build, apply):
    step = InlineFunctionsPass()
    model, modified = apply(build(FUNCTION % 15), step)
    assert not modified
    assert [n.op_type for n in model.graph] == ["double", "double"]
    assert step.actions == (
        "left 2 calls of local functions as they are: function 'double' needs opset 15 of '', the model has 17",
    )


def test_only_functions_that_hold_what_is_wanted_are_inlined(build, apply, same):
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[1,3] x, bool c) => (float[1,3] y) {
        a = local.plain(x) b = local.outer(a) d = local.branch(b, c) y = local.old(d)
    }
    <opset_import: ["": 17], domain: "local"> plain (p) => (q) { q = Tanh(p) }
    <opset_import: ["": 17, "local": 1], domain: "local"> outer (p) => (q) { r = local.inner(p) q = local.plain(r) }
    <opset_import: ["": 17], domain: "local"> inner (p) => (q) { q = Neg(p) }
    <opset_import: ["": 17], domain: "local"> branch (p, k) => (q) {
        q = If(k) <then_branch = t () => (s) { s = Neg(p) }, else_branch = e () => (u) { u = Abs(p) }>
    }
    <opset_import: ["": 16], domain: "local"> old (p) => (q) { q = Sin(p) }"""
    proto = build(text)
    step = InlineFunctionsPass(["Neg"])
    model, modified = apply(proto, step)
    assert modified
    assert [n.op_type for n in model.graph] == ["plain", "Neg", "plain", "If", "old"]
    assert step.actions == ("inlined 2 calls of local functions",)
    same(proto, model, X | {"c": np.asarray(True)})
    _, modified = apply(proto, InlineFunctionsPass(["Conv"]))
    assert not modified
