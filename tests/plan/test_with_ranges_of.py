"""with_ranges_of: other ranges for a plan, equal to a plan that is built with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.config import QuantConfig
from qtool.plan import Selection, build, build_plan, in_place_of_auto, leaves_to_auto, with_ranges_of
from qtool.prepare.load import load_model
from qtool.prepare.prepare import prepare
from tests.models import Arrays, normal, run
from tests.models import build as model_of

METHODS = ("minmax", "mse", "percentile:99", "percentile:60")
X = {"x": np.concatenate([normal(40, 16, seed=5), normal(1, 16, seed=6, scale=300.0)])}

PLAIN = model_of(
    "m (float[N,16] x) => (float[N,4] y) { [a] h = Gemm(x, w1, b1) [r] g = Relu(h) [b] y = MatMul(g, w2) }",
    {"w1": normal(16, 32), "b1": normal(32), "w2": normal(32, 4)},
)
# under some of the ranges the bias needs another weight scale
TINY_WEIGHTS = model_of(
    "m (float[N,16] x) => (float[N,4] y) { [a] h = Gemm(x, w1, b1) [r] g = Relu(h) [b] y = MatMul(g, w2) }",
    {"w1": normal(16, 32, scale=3e-8), "b1": normal(32, scale=1e3), "w2": normal(32, 4)},
)
# a Clip in front of a Concat: whether the inputs can share a range depends on it
JOINED = model_of(
    """m (float[N,16] x) => (float[N,4] y) {
        [a] h = MatMul(x, w1)
        [c] g = Clip(h, low, high)
        [b] k = MatMul(x, w2)
        [j] i = Concat<axis=1>(g, k)
        [d] y = MatMul(i, w3)
    }""",
    {
        "w1": normal(16, 8, seed=1),
        "w2": normal(16, 8, seed=2),
        "w3": normal(16, 4, seed=3),
        "low": np.float32(0),
        "high": np.float32(6),
    },
)


def prepared_with_statistics(model: onnx.ModelProto, samples: Arrays) -> tuple[ir.Model, Selection, Statistics]:
    config = QuantConfig()
    prepared = prepare(load_model(model), min_opset=13, min_ir=7, bodies=True, captures=True)
    selection = Selection(config, [(n.name, n.op_type) for n in prepared.source_nodes])
    names = list(build_plan(prepared.model, config, selection).tensors)
    proto = ir.to_proto(prepared.model)
    del proto.graph.output[:]
    for name in names:
        if name not in samples:
            proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    found = {**samples, **run(proto, samples)}
    return (
        prepared.model,
        selection,
        Statistics({name: TensorStatistics.of(found[name], histogram=True) for name in names}, 1),
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [PLAIN, TINY_WEIGHTS, JOINED], ids=["plain", "tiny", "joined"])
def test_it_is_the_plan_that_is_built(model, method):
    prepared, selection, statistics = prepared_with_statistics(model, X)
    config = QuantConfig()
    other = in_place_of_auto(config, method)
    for first in (config, in_place_of_auto(config, "percentile:60")):
        start = build_plan(prepared, first, selection, statistics)
        found = with_ranges_of(prepared, start, other, selection, statistics)
        expected = build_plan(prepared, other, selection, statistics)
        assert found.decisions == expected.decisions
        assert dict(found.tensors) == dict(expected.tensors)
        assert found.skips == expected.skips


def test_the_weights_are_looked_at_once(monkeypatch):
    prepared, selection, statistics = prepared_with_statistics(PLAIN, X)
    plan = build_plan(prepared, QuantConfig(), selection, statistics)
    monkeypatch.setattr(build, "weight_parameters", None)
    found = with_ranges_of(prepared, plan, QuantConfig(method="percentile:60"), selection, statistics)
    assert found.tensors["x"] != plan.tensors["x"]


def test_which_settings_leave_something_to_auto():
    assert leaves_to_auto(QuantConfig())
    assert not leaves_to_auto(QuantConfig(method="mse"))
    assert leaves_to_auto(QuantConfig(method="mse", tensor_methods=(("h*", "auto"),)))
    some = QuantConfig(
        method="mse",
        tensor_methods=(("a", "auto"), ("b", "entropy")),
        overrides=({"nodes": ["n"], "method": "auto"}, {"nodes": ["k"], "weights": "uint8"}),  # type: ignore[arg-type]
    )
    assert leaves_to_auto(some)
    changed = in_place_of_auto(some, "minmax")
    assert changed.method == "mse"
    assert changed.tensor_methods == (("a", "minmax"), ("b", "entropy"))
    assert [override.method for override in changed.overrides] == ["minmax", None]
    assert not leaves_to_auto(changed)
