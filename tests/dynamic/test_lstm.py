"""LSTM as DynamicQuantizeLSTM, against the float operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.errors import NothingToQuantizeError
from tests.dynamic.support import Dynamic, dynamic
from tests.models import normal

STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 16, 24
OUTPUTS = ("y", "y_h", "y_c")


def lstm(
    optional: tuple[str, ...] = (), *, opset: int = 14, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one LSTM with these optional inputs, and its feeds."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    arrays = {
        "W": normal(directions, 4 * HIDDEN, WIDTH, scale=0.3),
        "R": normal(directions, 4 * HIDDEN, HIDDEN, seed=1, scale=0.3),
        "B": normal(directions, 8 * HIDDEN, seed=2, scale=0.1),
        "lens": np.array([STEPS, STEPS - 2], np.int32),
        "h0": normal(directions, BATCH, HIDDEN, seed=3),
        "c0": normal(directions, BATCH, HIDDEN, seed=4),
        "P": normal(directions, 3 * HIDDEN, seed=5, scale=0.3),
    }
    names = ["x", "W", "R", *(n if n in optional else "" for n in ("B", "lens", "h0", "c0", "P"))]
    while not names[-1]:
        names.pop()
    node = helper.make_node("LSTM", names, OUTPUTS, name="rnn", **{"hidden_size": HIDDEN, **attributes})
    shapes = [["s", directions, "b", HIDDEN], [directions, "b", HIDDEN], [directions, "b", HIDDEN]]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, WIDTH])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, s) for o, s in zip(OUTPUTS, shapes, strict=True)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {"x": normal(STEPS, BATCH, WIDTH, seed=6)}


def check(optional: tuple[str, ...] = (), options: dict[str, Any] | None = None, **attributes: Any) -> Dynamic:
    model, feeds = lstm(optional, **attributes)
    done = dynamic(model, feeds, spec=False, **(options or {}))
    assert done.ops == {"DynamicQuantizeLSTM": 1}
    assert min(done.sqnr(o) for o in OUTPUTS) > 32
    return done


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_directions_and_types(direction, weights):
    done = check(("B", "h0", "c0"), {"weights": weights}, direction=direction)
    constants = {t.name: t for t in done.model.graph.initializer}
    directions = 2 if direction == "bidirectional" else 1
    assert list(constants["W_quantized"].dims) == [directions, WIDTH, 4 * HIDDEN]
    assert list(constants["R_quantized"].dims) == [directions, HIDDEN, 4 * HIDDEN]
    assert list(constants["W_scale"].dims) == [directions, 4 * HIDDEN]
    assert {(o.domain, o.version) for o in done.model.opset_import} == {("", 14), ("com.microsoft", 1)}


def test_codes_by_hand():
    """Row g of direction d has the scale absmax / 127, and lies in column g."""
    done = check((), direction="bidirectional")
    constants = {t.name: numpy_helper.to_array(t) for t in done.model.graph.initializer}
    weight = normal(2, 4 * HIDDEN, WIDTH, scale=0.3)
    scale = (np.abs(weight).max(axis=2).astype(np.float64) / 127).astype(np.float32)
    np.testing.assert_array_equal(constants["W_scale"], scale)
    codes = np.rint(weight / scale[:, :, None]).astype(np.int8).transpose(0, 2, 1)
    np.testing.assert_array_equal(constants["W_quantized"], codes)


def test_one_scale_per_direction():
    done = check((), {"per_channel": False}, direction="bidirectional")
    assert next(list(t.dims) for t in done.model.graph.initializer if t.name == "W_scale") == [2]


@pytest.mark.parametrize(
    ("optional", "attributes"),
    [
        ((), {}),
        (("h0",), {}),
        (("c0",), {}),
        (("B", "lens"), {}),
        (("B", "P"), {}),
        (("B", "lens", "h0", "c0", "P"), {}),
        (("B",), {"clip": 0.5}),
        (("B",), {"input_forget": 1}),
        (("B",), {"activations": ["Sigmoid", "Relu", "Tanh"] * 2}),
        (("B",), {"activations": ["HardSigmoid", "Tanh", "Tanh"] * 2, "activation_alpha": [0.2] * 2,
                  "activation_beta": [0.5] * 2}),
    ],
)  # fmt: skip
def test_options_are_respected(optional, attributes):
    check(optional, direction="bidirectional", **attributes)


@pytest.mark.parametrize("opset", [7, 14, 22])
def test_opsets(opset):
    check(("B",), opset=opset)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: lstm(layout=1)[0], "the runtime's LSTM with 8-bit weights has no batch-first layout"),
        (lambda: _without(lstm()[0], "W"), "its W is not constant"),
    ],
)
def test_what_stays_float(model, reason):
    with pytest.raises(NothingToQuantizeError, match=f"0 of 1 nodes were quantized: {reason}"):
        qtool.quantize(model(), dynamic=True)


def test_gru_stays_float():
    model, _ = lstm()
    node = model.graph.node[0]
    node.op_type = "GRU"
    del node.output[2:], model.graph.output[2:], model.graph.initializer[:]
    arrays = {"W": normal(1, 3 * HIDDEN, WIDTH), "R": normal(1, 3 * HIDDEN, HIDDEN)}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    with pytest.raises(NothingToQuantizeError, match="the runtime has none with 8-bit weights"):
        qtool.quantize(model, dynamic=True)


def _without(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with an initializer made an input."""
    index = next(i for i, t in enumerate(model.graph.initializer) if t.name == name)
    tensor = model.graph.initializer[index]
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, tensor.dims))
    del model.graph.initializer[index]
    return model
