from __future__ import annotations

import json

import numpy as np
import pytest

from qtool.prepare.fold_pad import FoldPadPass

PADS = np.asarray([0, 0, 1, 2, 0, 0, 3, 0], np.int64)


def model_of(build, rng, pad="Pad(x, p)", conv="Conv(a, w)", arrays=None, opset=17):
    weights = {"p": PADS, "w": rng.normal(size=(3, 2, 2, 2)).astype(np.float32), **(arrays or {})}
    proto = build(f"g (float[1,2,5,6] x) => (float[n,c,h,w1] y) {{ a = {pad} y = {conv} }}", weights, opset=opset)
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    return proto


@pytest.mark.parametrize(
    ("pad", "conv", "pads", "arrays"),
    [
        ("Pad(x, p)", "Conv(a, w)", [1, 2, 3, 0], {}),
        ("Pad(x, p)", "Conv<pads=[1,0,0,1]>(a, w)", [2, 2, 3, 1], {}),
        ("Pad(x, p)", 'Conv<auto_pad="VALID", strides=[2,1]>(a, w)', [1, 2, 3, 0], {}),
        ('Pad<mode="constant">(x, p, v)', "Conv<dilations=[2,1]>(a, w)", [1, 2, 3, 0], {"v": np.float32(-0.0)}),
    ],
)
def test_zero_pads_move_into_the_convolution(pad, conv, pads, arrays, build, apply, same, ops, rng):
    proto = model_of(build, rng, pad, conv, arrays)
    step = FoldPadPass()
    model, modified = apply(proto, step)
    assert modified
    assert ops(model) == ["Conv"]
    assert list(model.graph[0].attributes["pads"].as_ints()) == pads
    assert json.loads(model.graph[0].metadata_props["qtool.origin"]) == ["n1", "n0"]
    assert step.actions == ("folded 1 Pad into convolution pads",)
    same(proto, model, {"x": rng.normal(size=(1, 2, 5, 6)).astype(np.float32)})


def test_axes(build, apply, same, rng):
    arrays = {"p": np.asarray([2, 1, 0, 3]), "x3": np.asarray([-1, 2])}
    proto = model_of(build, rng, "Pad(x, p, , x3)", arrays=arrays, opset=18)
    model, _ = apply(proto, FoldPadPass())
    assert list(model.graph[0].attributes["pads"].as_ints()) == [1, 2, 3, 0]
    same(proto, model, {"x": rng.normal(size=(1, 2, 5, 6)).astype(np.float32)})


@pytest.mark.parametrize(
    ("pad", "conv", "arrays"),
    [
        ("Pad(x, p, v)", "Conv(a, w)", {"v": np.float32(1)}),
        ('Pad<mode="reflect">(x, p)', "Conv(a, w)", {}),
        ('Pad<mode="edge">(x, p)', "Conv(a, w)", {}),
        ("Pad(x, p)", 'Conv<auto_pad="SAME_UPPER">(a, w)', {}),
        (
            "Pad(x, p)",
            "Conv(a, w)",
            {"p": np.asarray([0, 1, 0, 0, 0, 0, 0, 0]), "w": np.ones((3, 3, 2, 2), np.float32)},
        ),
        ("Pad(x, p)", "Conv(a, w)", {"p": np.asarray([0, 0, -1, 0, 0, 0, 0, 0])}),
        ("Pad(x, p)", "MaxPool<kernel_shape=[2,2]>(a)", {}),
        ("Pad(x, p)", "AveragePool<kernel_shape=[2,2]>(a)", {}),
    ],
    ids=["value", "reflect", "edge", "auto_pad", "channels", "negative", "max pool", "average pool"],
)
def test_other_pads_stay(pad, conv, arrays, build, apply, rng):
    proto = model_of(build, rng, pad, conv, arrays)
    assert not apply(proto, FoldPadPass())[1]


def test_pads_that_the_caller_gives_stay(build, apply, rng):
    proto = build(
        "g (float[1,2,5,6] x, int64[8] p) => (y) { a = Pad(x, p) y = Conv(a, w) }",
        {"w": np.ones((3, 2, 2, 2), np.float32)},
    )
    assert not apply(proto, FoldPadPass())[1]


def test_a_pad_with_another_reader_stays_for_it(build, apply, same, ops, rng):
    proto = build(
        "g (float[1,2,5,6] x) => (float[n,c,h,w1] y, float[n,c2,h2,w2] z) { a = Pad(x, p) y = Conv(a, w) z = Relu(a) }",
        {"p": PADS, "w": rng.normal(size=(3, 2, 2, 2)).astype(np.float32)},
    )
    model, _ = apply(proto, FoldPadPass())
    assert ops(model) == ["Pad", "Conv", "Relu"]
    assert model.graph[1].inputs[0].name == "x"
    same(proto, model, {"x": rng.normal(size=(1, 2, 5, 6)).astype(np.float32)})
