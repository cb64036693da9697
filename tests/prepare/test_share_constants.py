"""Constants of bodies that are equal are one, in the graph that all bodies see."""

from __future__ import annotations

import numpy as np
import onnx

from qtool.prepare.share_constants import ShareConstantsPass
from tests.models import normal

TEXT = """g (float[2,32] x, bool c) => (float[2,32] y) { y = If(c) <
    then_branch = t () => (float[2,32] a) { h = MatMul(x, w1) a = Add(h, b1) },
    else_branch = e () => (float[2,32] d) { k = MatMul(x, w2) d = Sub(k, b2) } > }"""


def with_branch_weights(build, then_branch, else_branch, top=None) -> onnx.ModelProto:
    proto = build(TEXT, top)
    for attribute in proto.graph.node[0].attribute:
        arrays = then_branch if attribute.name == "then_branch" else else_branch
        attribute.g.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


def test_equal_constants_move_out(build, apply, same):
    weight, row = normal(32, 32), normal(32, seed=1)
    proto = with_branch_weights(build, {"w1": weight, "b1": row}, {"w2": weight.copy(), "b2": row})
    step = ShareConstantsPass()
    model, modified = apply(proto, step)
    assert modified
    assert list(model.graph.initializers) == ["w1"]  # the rows are too small to be worth it
    (node,) = model.graph
    assert [list(a.as_graph().initializers) for a in node.attributes.values()] == [["b1"], ["b2"]]
    assert step.actions == ("stored 1 constant of subgraphs only once",)
    for condition in (True, False):
        same(proto, model, {"x": normal(2, 32, seed=2), "c": np.asarray(condition)})


def test_the_one_of_the_top_graph_is_kept(build, apply, same):
    weight = normal(32, 32)
    rows = {"b1": normal(32), "b2": normal(32)}
    proto = with_branch_weights(build, {"w1": weight}, {}, {"w2": weight, "other": weight} | rows)
    model, modified = apply(proto, ShareConstantsPass())
    assert modified
    assert set(model.graph.initializers) == {"w2", "other", "b1", "b2"}
    same(proto, model, {"x": normal(2, 32, seed=2), "c": np.asarray(True)})


def test_constants_that_differ_in_bits_type_or_place_stay(build, apply):
    zero, minus = np.zeros((32, 32), np.float32), np.full((32, 32), -0.0, np.float32)
    rows = {"b1": normal(32), "b2": normal(32)}
    for then_branch, else_branch, top in (
        ({"w1": zero}, {"w2": minus}, rows),
        ({"w1": normal(32, 32)}, {"w2": normal(32, 32, seed=1)}, rows),
        ({}, {}, rows | {"w1": zero, "w2": zero}),
    ):
        _, modified = apply(with_branch_weights(build, then_branch, else_branch, top), ShareConstantsPass())
        assert not modified
