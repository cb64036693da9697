"""Random graphs under hypothesis: legal files, both runs of onnxruntime alike, errors within the propagated bound.

``QTOOL_RANDOM_GRAPHS=500`` sets the number of graphs; the default is small enough for every run of the tests.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import qtool
from qtool.errors import NothingToQuantizeError
from tests.emit.hostile import Maker, bounds
from tests.fusion import check_fusion
from tests.models import check_structure, normal, run

GRAPHS = int(os.environ.get("QTOOL_RANDOM_GRAPHS", "25"))
SMALL = st.integers(0, 63)
STEPS = st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL), min_size=2, max_size=12)
SHAPES = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 6), st.integers(2, 9)),
    st.tuples(st.integers(2, 12)),
)
TYPES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"per_channel": False},
    {"activations": "int8"},
    {"activations": "int8", "symmetric_activations": True},
    {"weights": "uint8"},
)


@settings(max_examples=GRAPHS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    shape=SHAPES,
    naming=st.integers(0, 5),
    symbolic=st.booleans(),
    outputs=st.lists(SMALL, max_size=2),
    opset=st.sampled_from([13, 17]),
    types=st.sampled_from(TYPES),
    form=st.sampled_from(["qlinear", "qdq"]),
    dedicated=st.booleans(),
)
def test_random_graphs(steps, shape, naming, symbolic, outputs, opset, types, form, dedicated):
    maker = Maker(steps, naming=naming, symbolic=symbolic, shape=shape)
    if not maker.nodes or (opset < 14 and any(n.proto.op_type == "HardSwish" for n in maker.nodes)):
        return
    event(check(maker, outputs, opset=opset, format=form, dedicated_qdq=dedicated, **types))


def check(maker: Maker, outputs: list[int], *, opset: int, **options: Any) -> str:
    """Quantize a made graph on the very sample that it is run on, and compare every output with its bound.

    Returns:
        What became of it, in a word or two.
    """
    model = maker.model(outputs, opset)
    onnx.checker.check_model(model, full_check=True)
    x = normal(*maker.shapes["x"], seed=len(maker.nodes))
    values = _all_values(model, x)
    if any(not np.isfinite(v).all() or np.abs(v).max(initial=0) > 1e4 for v in values.values() if v.dtype.kind == "f"):
        return "too large"  # powers of powers: no range is of use there
    try:
        result = qtool.quantize(model, {"x": x}, method="minmax", **options)
    except NothingToQuantizeError:
        return "nothing to quantize"
    quantized = result.model
    assert quantized is not None
    onnx.checker.check_model(quantized, full_check=True)
    check_structure(quantized)
    assert [o.name for o in quantized.graph.output] == [o.name for o in model.graph.output]
    check_fusion(result, quantized)
    levels = {"weights": 127, "activations": 254 if "activations" in options else 255}
    slow, fast = run(quantized, {"x": x}), run(quantized, {"x": x}, optimize=True)
    wrong = bounds(maker, values, result.plan, **levels)
    apart = bounds(maker, values, result.plan, one_code=True, **levels)
    for name, got in slow.items():
        assert got.shape == values[name].shape
        assert (np.abs(got - fast[name]) <= apart[name]).all(), f"{name}: the runs differ by more than codes explain"
        for other in (got, fast[name]):
            error = np.abs(other.astype(np.float64) - values[name])
            limit = wrong[name] + (apart[name] if other is fast[name] else 0)
            assert (error <= limit).all(), f"{name}: off by {error.max()} of {limit.flat[error.argmax()]}"
    return "quantized"


def _all_values(model: onnx.ModelProto, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every value of the float model."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    for node in whole.graph.node:
        whole.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name)
    return {"x": x, **run(whole, {"x": x})}


@pytest.mark.parametrize("naming", range(6))
@pytest.mark.parametrize("form", ["qlinear", "qdq"])
def test_names_that_clash_with_what_would_be_added(naming, form):
    """A chain, a shared weight, a fan-out and an output in the middle, whatever the nodes are called."""
    steps = [
        (0, 0, 1, 0, 1),
        (8, 0, 0, 0, 0),
        (0, 0, 1, 0, 0),
        (10, 1, 0, 0, 0),
        (0, 0, 1, 0, 0),
        (13, 1, 0, 0, 0),
        (0, 0, 0, 1, 1),
    ]
    maker = Maker(steps, naming=naming, symbolic=True, shape=(4, 5, 5))
    assert [n.proto.op_type for n in maker.nodes] == ["Conv", "Relu", "Conv", "Add", "Conv", "Concat", "Conv"]
    assert check(maker, [1, 3], opset=17, format=form) == "quantized"
