"""Statistics of arrays in the runtime's own layout, against those of the same arrays as the model hands them out."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtool.calibrate import blocked
from qtool.calibrate.blocked import BlockedModel, open_run
from qtool.calibrate.collect import collect
from qtool.calibrate.samples import open_samples
from qtool.calibrate.segments import SegmentedModel, SourceGraph
from qtool.calibrate.statistics import TensorStatistics
from qtool.calibrate.wanted import Wanted
from qtool.runtime import create_session
from qtool.runtime.blocked import block_size, out_of_blocks

in_the_layout = pytest.mark.skipif(block_size() is None, reason="onnxruntime has no such layout on this processor")


def net(inputs: int = 3, width: int = 24) -> onnx.ModelProto:
    """Convolutions of `width` channels, one of them depthwise, a residual sum, pools, and a product at the end."""
    random = np.random.default_rng(7)
    weights = {
        "w0": (width, inputs, 3, 3), "b0": (width,), "w1": (width, 1, 3, 3), "w2": (width, width, 1, 1),
        "w3": (40, width, 3, 3), "w4": (40, 5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[1] * 4, group=width),
        helper.make_node("Conv", ["c1", "w2"], ["c2"]),
        helper.make_node("Add", ["c2", "r0"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "w3"], ["c3"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c3"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w4"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", inputs, "H", "W"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 5])],
        [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 4, name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TENSORS = ["x", "c0", "r0", "c1", "c2", "a", "m", "c3", "g", "f", "y", "w2"]
X = np.random.default_rng(3).standard_normal((6, 3, 38, 38)).astype(np.float32)


def values_of(proto: onnx.ModelProto, x: np.ndarray) -> dict[str, np.ndarray]:
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    produced = [name for node in proto.graph.node for name in node.output]
    for name in produced[:-1]:
        whole.graph.output.add().name = name
    values = create_session(whole, num_threads=1).run({"x": x}, produced)
    return values | {"x": x, "w2": numpy_helper.to_array(proto.graph.initializer[3])}


@in_the_layout
def test_tensors_come_in_blocks_and_are_what_the_model_hands_out():
    proto = net(width=32)
    run = open_run(SourceGraph(proto, None), TENSORS, per_segment=2)
    assert isinstance(run, BlockedModel)
    assert (run.fed, run.constants) == (["x"], ["w2"])
    assert {name: run.channels[name] for name in ("r0", "c2", "a", "m")} == {"r0": 32, "c2": 32, "a": 32, "m": 32}
    assert "y" not in run.channels
    expected = values_of(proto, X[:1])
    seen = {}
    for arrays, alive in run.steps({"x": X[:1]}):
        assert alive >= sum(array.nbytes for array in arrays.values())
        seen |= {
            name: out_of_blocks(array, run.channels[name]) if name in run.channels else array
            for name, array in arrays.items()
        }
    assert sorted(seen) == sorted(set(TENSORS) - {"w2"})
    for name, array in seen.items():
        np.testing.assert_array_equal(array, expected[name], name)


@in_the_layout
@pytest.mark.parametrize("width", [16, 24, 5])
def test_statistics_are_those_of_the_values_whatever_the_cuts_batches_and_threads(width):
    proto = net(width=width)
    wanted = {name: Wanted(name) for name in TENSORS}
    wanted |= {
        name: Wanted(name, axis, np.ones(width, np.float64))
        for name, axis in (("r0", 1), ("c1", -3), ("a", 1), ("m", 1))
    }
    options = {"histograms": True}
    samples = open_samples({"x": X}, create_session(proto).inputs)
    seen = collect(proto, list(wanted.values()), samples, **options)
    expected = {name: TensorStatistics.empty(histogram=True, wanted=one) for name, one in wanted.items()}
    for row in range(len(X)):
        for name, array in values_of(proto, X[row : row + 1]).items():
            expected[name].update(array)
    assert {name: one for name, one in seen.items() if name in expected} == expected
    for other in ({"num_threads": 1}, {"batch_size": 4}, {"max_memory": 4 << 30}):
        assert collect(proto, list(wanted.values()), samples, **options, **other) == seen


@in_the_layout
@pytest.mark.parametrize("channel", [0, 20])
def test_nan_of_a_channel_is_counted_once_and_what_fills_a_block_up_is_not(channel):
    proto = net()
    bias = np.zeros(24, np.float32)
    bias[channel] = np.nan
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(bias, "b0"))
    samples = open_samples({"x": X[:1]}, create_session(proto).inputs)
    seen = collect(proto, [Wanted("c0", 1, np.ones(24))], samples, histograms=True, on_nan="skip")["c0"]
    assert (seen.nan, seen.count) == (38 * 38, 24 * 38 * 38)
    assert [bool(one) for one in seen.channel_absmax] == [at != channel for at in range(24)]


def test_where_blocks_are_not_known_a_model_is_cut_as_it_is(monkeypatch):
    monkeypatch.setattr(blocked, "block_size", lambda: None)
    run = open_run(SourceGraph(net(), None), TENSORS, per_segment=2)
    assert isinstance(run, SegmentedModel)
    expected = values_of(net(), X[:1])
    for arrays, _ in run.steps({"x": X[:1]}):
        for name, array in arrays.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


def test_a_model_without_images_is_cut_as_it_is():
    graph = onnx.parser.parse_graph("g (float[N, 4] x) => (float[N, 4] y) { a = Relu(x) y = Neg(a) }")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert isinstance(open_run(SourceGraph(proto, None), ["a", "y"], per_segment=1), SegmentedModel)
