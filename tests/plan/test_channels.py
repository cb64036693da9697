"""What the graph says about the errors of a tensor: energies, clipping, floors."""

from math import inf

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.plan.channels import ATTENTION, WINDOW, wanted_of
from qtool.prepare.load import load_model

RANDOM = np.random.default_rng(0)


def model_of(nodes, weights, x=("N", 4, 6), outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return load_model(onnx.shape_inference.infer_shapes(model))


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def wanted(nodes, weights, name="x", **options):
    (found,) = wanted_of(model_of(nodes, weights, **options), [name])
    return found


def test_a_product_from_the_right():
    w = RANDOM.standard_normal((6, 5))
    found = wanted([node("MatMul", "x w", "y")], {"w": w})
    assert found.channel_axis == -1
    assert found.channel_energy == pytest.approx((np.float32(w) ** 2).sum(axis=1), rel=1e-6)
    assert found.coherence == pytest.approx(max(0, (w.sum(axis=0) ** 2).sum() / (w**2).sum() - 1), rel=1e-5)
    assert (found.clip_weight, found.floor) == (1, -inf)


def test_weights_at_the_end_of_float32_have_finite_energies():
    largest = float(np.finfo(np.float32).max)
    found = wanted([node("MatMul", "x w", "y")], {"w": np.full((6, 5), largest)})
    assert found.channel_energy.tolist() == [largest] * 6


def test_a_product_from_the_left():
    w = RANDOM.standard_normal((5, 4))
    found = wanted([node("MatMul", "w x", "y")], {"w": w})
    assert found.channel_axis == -2
    assert found.channel_energy == pytest.approx((np.float32(w) ** 2).sum(axis=0), rel=1e-6)


@pytest.mark.parametrize("flipped", [0, 1])
def test_gemm(flipped):
    w = RANDOM.standard_normal((5, 6) if flipped else (6, 5))
    found = wanted([node("Gemm", "x w", "y", transB=flipped)], {"w": w}, x=(3, 6))
    assert found.channel_axis == -1
    assert found.channel_energy == pytest.approx((np.float32(w) ** 2).sum(axis=0 if flipped else 1), rel=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_of_groups(groups):
    w = RANDOM.standard_normal((8, 4 // groups, 3))
    found = wanted([node("Conv", "x w", "y", group=groups)], {"w": w}, x=(1, 4, 9))
    x = np.eye(4)[:, :, None]  # an impulse in each channel, at each tap, sees all of its weights
    expected = [
        sum(
            float(
                np.float32(w)[m, c - m // (8 // groups) * (4 // groups)]
                @ np.float32(w)[m, c - m // (8 // groups) * (4 // groups)]
            )
            for m in range(8)
            if c // (4 // groups) == m // (8 // groups)
        )
        for c in range(len(x))
    ]
    assert found.channel_axis == 1
    assert found.channel_energy == pytest.approx(expected, rel=1e-6)
    assert found.clip_weight == WINDOW


def test_a_conv_of_single_places_has_no_window():
    assert wanted([node("Conv", "x w", "y")], {"w": np.ones((2, 4, 1))}).clip_weight == 1


def test_readers_add_up_and_those_that_disagree_cancel():
    u, w = RANDOM.standard_normal((6, 5)), RANDOM.standard_normal((6, 2))
    two = [node("MatMul", "x u", "a"), node("MatMul", "x w", "y")]
    found = wanted(two, {"u": u, "w": w}, outputs=("a", "y"))
    assert found.channel_energy == pytest.approx((u**2).sum(axis=1) + (w**2).sum(axis=1), rel=1e-6)
    other = [node("MatMul", "x u", "a"), node("Conv", "x k", "y")]
    found = wanted(other, {"u": u, "k": np.ones((2, 4, 1))}, outputs=("a", "y"))
    assert (found.channel_axis, found.channel_energy) == (None, None)


def test_queries_and_keys_are_read_by_every_position():
    nodes = [
        node("MatMul", "x q", "a"), node("Add", "a b", "a2"), node("MatMul", "x k", "c"),
        node("Transpose", "c", "ct", perm=[0, 2, 1]), node("MatMul", "a2 ct", "y"),
    ]  # fmt: skip
    weights = {"q": np.ones((6, 3)), "k": np.ones((6, 3)), "b": np.ones(3)}
    assert wanted(nodes, weights).clip_weight == ATTENTION
    assert wanted(nodes, weights, "a2").clip_weight == 1
    assert (
        wanted(
            [node("MatMul", "x q", "a"), node("MatMul", "a k", "y")], {"q": np.ones((6, 3)), "k": np.ones((3, 2))}
        ).clip_weight
        == 1
    )


def test_where_only_maxima_are_read_nothing_is_clipped():
    nodes = [node("Conv", "x w", "a"), node("Gelu", "a", "b"), node("GlobalMaxPool", "b", "y")]
    assert wanted(nodes, {"w": np.ones((2, 4, 1))}, "a").clip_weight == inf
    more = [*nodes, node("Relu", "b", "z"), node("MatMul", "z m", "z2")]
    assert wanted(more, {"w": np.ones((2, 4, 1)), "m": np.ones((6, 2))}, "a", outputs=("y", "z2")).clip_weight == 1
    assert wanted(nodes, {"w": np.ones((2, 4, 1))}, "a", outputs=("y", "a")).clip_weight == 1


def test_names_that_are_no_values_of_the_graph():
    (found,) = wanted_of(model_of([node("Relu", "x", "y")], {}), ["gone"])
    assert (found.name, found.channel_axis, found.clip_weight) == ("gone", None, 1)


SQRT2 = np.sqrt(2.0)
GATES = {
    "gelu": ([node("Gelu", "x", "y")], -3.5),
    "erf": (
        [
            node("Div", "x r", "a"), node("Erf", "a", "b"), node("Add", "b one", "c"), node("Mul", "x c", "d"),
            node("Mul", "d half", "y"),
        ],
        -3.5,
    ),
    "silu": ([node("Sigmoid", "x", "a"), node("Mul", "x a", "y")], -9.125),
    "hardswish": ([node("HardSwish", "x", "y")], -3.0),
    "its parts": ([node("Add", "x three", "a"), node("Clip", "a zero six", "b"), node("Mul", "x b", "y")], -3.0),
    "relu": ([node("Relu", "x", "y")], 0.0),
    "identity": ([node("Tanh", "x", "y")], -inf),
    "leaky": ([node("LeakyRelu", "x", "y")], -inf),
    "read elsewhere": ([node("Gelu", "x", "a"), node("Add", "a x", "y")], -inf),
    "another operand": ([node("Mul", "x p", "y")], -inf),
}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
def test_the_floor_of_gates(gate):
    nodes, floor = GATES[gate]
    weights = {"r": SQRT2, "one": 1.0, "half": 0.5, "three": 3.0, "zero": 0.0, "six": 6.0, "p": np.ones(6)}
    assert wanted(nodes, weights).floor == floor
