"""Helpers of the prepare tests: models as onnx text, and onnxruntime as the judge of before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

Arrays = Mapping[str, np.ndarray]


def _run(model: onnx.ModelProto | ir.Model, feeds: Arrays) -> list[np.ndarray]:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


@pytest.fixture
def run() -> Callable[[onnx.ModelProto | ir.Model, Arrays], list[np.ndarray]]:
    """Run a model with onnxruntime, optimisations off."""
    return _run


@pytest.fixture
def build() -> Callable[..., onnx.ModelProto]:
    """Parse a model from text and give it arrays as initializers, in the order given."""

    def _build(text: str, arrays: Arrays | None = None, *, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
        head = f'<ir_version: {ir_version}, opset_import: ["": {opset}]>\n' if not text.lstrip().startswith("<") else ""
        model = onnx.parser.parse_model(head + text)
        for name, array in (arrays or {}).items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return model

    return _build


@pytest.fixture
def same() -> Callable[..., None]:
    """Assert that two models give the same outputs, to ``rtol`` of the largest magnitude."""

    def _same(before: onnx.ModelProto, after: ir.Model, feeds: Arrays, *, rtol: float = 0.0) -> None:
        proto = ir.to_proto(after)
        onnx.checker.check_model(proto, full_check=True)
        assert [v.name for v in after.graph.outputs] == [v.name for v in before.graph.output]
        weights = {t.name for t in before.graph.initializer}
        assert [v.name for v in after.graph.inputs] == [v.name for v in before.graph.input if v.name not in weights]
        for old, new in zip(_run(before, feeds), _run(proto, feeds), strict=True):
            assert old.shape == new.shape
            assert old.dtype == new.dtype
            assert np.abs(old.astype(np.float64) - new).max(initial=0.0) <= rtol * np.abs(old).max(initial=0.0)

    return _same


@pytest.fixture
def apply() -> Callable[..., tuple[ir.Model, bool]]:
    """Apply one pass to a fresh ``ir.Model``; returns it and the ``modified`` flag, and checks a second run."""

    def _apply(model: onnx.ModelProto, step: ir.passes.InPlacePass) -> tuple[ir.Model, bool]:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        result = step(ir.from_proto(copy))
        if not result.modified:
            assert ir.to_proto(result.model).graph == ir.to_proto(ir.from_proto(copy)).graph
        return result.model, result.modified

    return _apply


@pytest.fixture
def ops() -> Callable[[ir.Model], list[str]]:
    """The operators of the top graph, in order."""
    return lambda model: [node.op_type for node in model.graph]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
