"""Weight-only models under every check that holds for any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import qtool
from qtool.api import QuantizeResult
from qtool.plan.stored import Layout, StoredWeight
from qtool.runtime import create_session
from qtool.signal import sqnr_db
from qtool.weights import codes_of, restored
from tests.models import optimized_ops, run

IN_ORT = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "float8e4m3fn", "float8e5m2")


@dataclass(frozen=True)
class Stored:
    """A model whose weights are stored."""

    result: QuantizeResult
    model: onnx.ModelProto

    @property
    def ops(self) -> Counter[str]:
        return Counter(node.op_type for node in self.model.graph.node)

    @property
    def initializers(self) -> dict[str, np.ndarray]:
        return {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}

    def fused(self, path: Any) -> Counter[str]:
        """Operators of the graph that onnxruntime makes of it."""
        return optimized_ops(self.model, path)

    def weight(self) -> StoredWeight:
        """The only one."""
        ((weight,),) = (d.weights for d in self.result.plan.decisions)
        assert isinstance(weight, StoredWeight)
        return weight


def with_restored_weights(model: onnx.ModelProto, result: QuantizeResult) -> onnx.ModelProto:
    """The float model with each weight replaced by what its codes are worth."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for decision in result.plan.decisions:
        for weight in decision.weights:
            assert isinstance(weight, StoredWeight)
            assert weight.params is not None
            tensor = next(t for t in copy.graph.initializer if t.name == weight.tensor)
            array = numpy_helper.to_array(tensor)
            arranged = weight.arranged(array)
            value = restored(codes_of(arranged, weight.params), weight.params)
            if weight.layout in (Layout.TRANSPOSED, Layout.NBITS):
                value = value.T
            tensor.CopyFrom(
                numpy_helper.from_array(np.ascontiguousarray(value.reshape(array.shape), array.dtype), weight.tensor)
            )
    return copy


def store(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, exact: float = 80.0, **options: Any) -> Stored:
    """Quantize the weights of a model and compare it with the float model that has the restored weights.

    The file checks; the spec engine gives that model's numbers; so does onnxruntime without its optimizations where it
    has the types, and with them up to its int8 activations.

    Args:
        model: Float, its weights in initializers that preparation leaves as they are.
        feeds: What it is run on.
        exact: Least decibels between runs that compute the same.
        options: Of ``qtool.quantize``.
    """
    before = model.SerializeToString()
    result = qtool.quantize(model, weight_only=True, **options)
    assert model.SerializeToString() == before
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    expected = run(with_restored_weights(model, result), feeds)
    own = any(node.domain == "com.microsoft" for node in result.model.graph.node)
    if not own:
        spec = create_session(result.model, engine="spec").run(dict(feeds))
        for name, y in expected.items():
            assert spec[name].dtype == y.dtype
            assert sqnr_db(y, spec[name]) > exact
    if options.get("weights", "int8") in IN_ORT and options.get("scale_type") is None:
        plain, fast = run(result.model, feeds), run(result.model, feeds, optimize=True)
        for name, y in expected.items():
            # MatMulNBits rounds activations to int8 whatever the optimizations
            assert sqnr_db(y, plain[name]) > (30.0 if own else exact)
            assert sqnr_db(y, fast[name]) > 30.0
    return Stored(result, result.model)
