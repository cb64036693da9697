"""What holds for every result of dynamic mode, and its oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

import qtool
from qtool import reference
from qtool.api import QuantizeResult
from qtool.runtime import create_session
from qtool.signal import sqnr_db
from tests.models import Arrays, run


@dataclass(frozen=True)
class Dynamic:
    """A model after dynamic mode, and what the float and the quantized model made of the same feeds."""

    result: QuantizeResult
    model: onnx.ModelProto
    expected: dict[str, np.ndarray]
    got: dict[str, np.ndarray]
    fast: dict[str, np.ndarray]

    @property
    def ops(self) -> Counter[str]:
        return Counter(node.op_type for node in all_nodes(self.model.graph))

    def reason(self, node: str) -> str:
        return next(s.reason for s in self.result.skips if s.node == node)

    def quantized(self) -> list[str]:
        return [d.node for d in self.result.plan.decisions]

    def sqnr(self, name: str | None = None) -> float:
        name = name or next(iter(self.expected))
        return min(sqnr_db(self.expected[name], y[name]) for y in (self.got, self.fast))


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes of a graph and of its bodies."""
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*graph.node, *(node for body in bodies for node in all_nodes(body))]


def dynamic(
    model: onnx.ModelProto, feeds: Arrays, *, spec: bool = True, agreement_db: float = 100.0, **options: Any
) -> Dynamic:
    """Quantize and assert: checked, nothing unread, unique names, the interface, and three engines that agree.

    Both settings of onnxruntime, and the spec engine unless the model has operators of another domain, differ by the
    order of float32 arithmetic only. Where products follow one another that may move a code of a later one:
    ``agreement_db`` says by how much.
    """
    before = model.SerializeToString()
    result = qtool.quantize(model, dynamic=True, **options)
    assert model.SerializeToString() == before, "the caller's model was changed"
    quantized = result.model
    assert quantized is not None
    onnx.checker.check_model(quantized, full_check=True)
    names = [node.name for node in all_nodes(quantized.graph)]
    assert len(names) == len(set(names))
    read = {name for node in all_nodes(quantized.graph) for name in node.input}
    read |= {o.name for o in quantized.graph.output}
    assert {t.name for t in quantized.graph.initializer} <= read
    for old, new in ((model.graph.input, quantized.graph.input), (model.graph.output, quantized.graph.output)):
        wanted = [(v.name, v.type.tensor_type.elem_type) for v in old]
        assert [(v.name, v.type.tensor_type.elem_type) for v in new] == wanted
    expected = run(model, feeds)
    got, fast = run(quantized, feeds), run(quantized, feeds, optimize=True)
    others = [got, fast]
    if spec:
        others.append(create_session(quantized, engine="spec").run(dict(feeds)))
    for name, y in expected.items():
        for other in others:
            assert other[name].shape == y.shape
            assert other[name].dtype == y.dtype
            if y.size:
                assert sqnr_db(got[name], other[name]) > (60 if y.dtype == np.float16 else agreement_db)
    return Dynamic(result, quantized, expected, got, fast)


def product(x: np.ndarray, w: np.ndarray, *, weights: str = "int8", per_channel: bool = True) -> np.ndarray:
    """What MatMul(x, w) is to become, from the formulas, with the slow kernels of the reference."""
    zero = 128 if weights == "uint8" else 0
    largest = np.abs(w).max(axis=0 if per_channel and w.ndim == 2 else None)
    scale = np.where(largest == 0, 1, largest.astype(np.float64) / 127).astype(np.float32)
    codes = (np.clip(np.rint(w / scale), -127, 127) + zero).astype(weights)
    q, s, z = reference.dynamic_quantize_linear(x.astype(np.float32))
    total = reference.matmul_integer(q, codes, z, np.asarray(zero, weights))
    return np.asarray(total.astype(np.float32) * (s * scale))


def optimized(model: onnx.ModelProto, path: Any) -> Counter[str]:
    """Operators of the graph that onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in all_nodes(onnx.load(path).graph))
