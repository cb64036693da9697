"""What readers behind a scalar function say about its argument."""

from __future__ import annotations

from math import inf

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.calibrate.methods._bins import filled_bins
from qtool.calibrate.methods.auto import channel_weights, without_unseen
from qtool.calibrate.statistics import StatisticsBehind, TensorStatistics
from qtool.calibrate.wanted import Wanted
from qtool.plan.behind import with_readers_behind
from qtool.plan.bodies import planned_values
from qtool.plan.channels import wanted_of
from qtool.prepare.load import load_model
from tests.models import run

NUMBERS = {"two": 2.0, "three": 3.0, "six": 6.0, "zero": 0.0, "minus_one": -1.0}
HARD_SWISH = [("Add", "x three", "a"), ("Clip", "a zero six", "g"), ("Mul", "x g", "m"), ("Div", "m six", "u")]
WEIGHT = np.asarray([[3.0, 0.0], [4.0, 1.0]], np.float32)  # energies 9 and 17 of the rows


def graph_of(nodes, output, w=WEIGHT):
    weights = {**{k: np.float32(v) for k, v in NUMBERS.items()}, "w": w}
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), o.split()) for op, i, o in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 2))],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto)


def behind(nodes, values, *, w=WEIGHT):
    """Statistics of x, of shape (n, 2), as they are with what ``u W`` says of it, beside those of x alone."""
    values = np.asarray(values, np.float32)
    model = load_model(graph_of([*nodes, ("MatMul", "u w", "y")], "y", w))
    own, there = wanted_of(model, ["x", "u"])
    x = TensorStatistics.of(values, histogram=True, wanted=own)
    result = run(graph_of(nodes, "u", w), {"x": values})["u"]
    u = TensorStatistics.of(result, histogram=True, wanted=there)
    return with_readers_behind(*planned_values(model)["x"], x, {"x": x, "u": u}), x


VALUES = np.stack([np.linspace(-8, 1, 200), np.linspace(-20, 10, 200)], axis=1)


def test_a_product_scales_the_reach():
    found, _ = behind([("Mul", "x two", "u")], VALUES)
    assert isinstance(found, StatisticsBehind)
    assert found.channel_axis == -1
    assert found.channel_energy.tolist() == [9.0, 17.0]
    assert found.channel_absmax == pytest.approx([8.0, 20.0], abs=0.01)
    assert found.gain.tolist() == pytest.approx([1.0] * len(found.gain))


def test_what_a_hard_swish_hides_is_no_reach():
    found, x = behind(HARD_SWISH, VALUES)
    assert x.channel_energy is None
    # the first channel gives hard_swish(1) = 2/3 at most, whatever its low values; 0.02 are three steps of the points
    assert found.channel_absmax == pytest.approx([3.0, 10.0], abs=0.02)
    assert found.floor == -3.0


def test_a_hard_swish_counts_by_its_slope():
    found, _ = behind(HARD_SWISH, VALUES)
    slope = np.clip(2 * found.points + 3, -3.0, 9.0) / 6  # between -3 and 3; 1 above
    expected = np.where(found.points > 3, 1.0, slope) / 1.5
    inner = (np.abs(found.points - 3) > 0.01) & (found.points > -2.99)
    assert np.sqrt(found.gain)[inner] == pytest.approx(np.abs(expected)[inner], abs=5e-3)


def test_weights_of_the_bins():
    """Above 1 only the second channel reaches, whose energy is 17; below, the mean energy is 13."""
    seen = without_unseen(behind([("Relu", "x", "u")], VALUES)[0])
    bins = filled_bins(seen)
    weights = channel_weights(seen, bins)
    assert weights[bins.low > 1.1] == pytest.approx(17 / 13)
    assert weights[(bins.low > 0.1) & (bins.high < 0.9)] == pytest.approx(1.0)
    assert bins.low.min() == 0.0


def test_weights_of_the_bins_by_slope():
    found, _ = behind([("Clip", "x minus_one two", "u")], VALUES)
    bins = filled_bins(found)
    weights = channel_weights(found, bins)
    assert weights[(bins.low > -0.9) & (bins.high < 0.9)] == pytest.approx(1.0)
    assert weights[(bins.high < -1.1) | (bins.low > 2.1)] == pytest.approx(1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Relu", "x", "v"), ("Softmax", "v", "u")],  # no function of each element
        [("Mul", "x zero", "u")],  # nothing is left of it
        [("Relu", "x", "u"), ("MatMul", "x w", "z")],  # x has weights of its own
    ],
)
def test_nothing_is_known(nodes):
    found, x = behind(nodes, VALUES)
    assert found is x


def test_values_that_are_all_the_same():
    found, x = behind([("Mul", "x two", "u")], np.zeros((3, 2)))
    assert found is x


def test_a_tensor_without_values():
    x = TensorStatistics.empty(histogram=True, wanted=Wanted("x"))
    assert (x.minimum, x.maximum) == (inf, -inf)
    graph, value = planned_values(load_model(graph_of([("Relu", "x", "u")], "u")))["x"]
    assert with_readers_behind(graph, value, x, {}) is x
