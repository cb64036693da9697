"""Tiny models as ONNX text with seeded weights, and quantizing them under every check that holds for any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import qtool
from qtool.api import QuantizeResult
from qtool.qparams import QParams
from qtool.signal import sqnr_db

Arrays = Mapping[str, np.ndarray]
FORMATS = ("qlinear", "qdq")

_QDQ = ("QuantizeLinear", "DequantizeLinear")
# operators that a runtime computes on codes when they stand between DequantizeLinear and QuantizeLinear
_FUSED = frozenset(
    (
        "Conv", "MatMul", "Gemm", "Add", "Mul", "Relu", "Clip", "Sigmoid", "LeakyRelu", "AveragePool",
        "GlobalAveragePool", "Concat", "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice",
        "Split", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax", "Pad", "Identity",
        "ReduceMin", "GatherElements", "GatherND", "ReverseSequence", "Compress", "Where", "ArgMax",
    )
)  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Seeded float32 values from a normal distribution."""
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> np.ndarray:
    """Seeded float32 values from a uniform distribution, both ends included."""
    values = rng(seed).uniform(low, high, shape).astype(np.float32)
    values.flat[0], values.flat[-1] = low, high
    return values


def build(text: str, arrays: Arrays | None = None, *, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """Parse a model from text and give it arrays as initializers."""
    head = "" if text.lstrip().startswith("<") else f'<ir_version: {ir_version}, opset_import: ["": {opset}]>\n'
    model = onnx.parser.parse_model(head + text)
    for name, array in (arrays or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, feeds: Arrays, *, optimize: bool = False) -> dict[str, np.ndarray]:
    """Outputs by name from onnxruntime."""
    session = _session(model, optimize=optimize)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def _session(
    model: onnx.ModelProto, *, optimize: bool, change: Callable[[Any], None] | None = None
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if change is not None:
        change(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def optimized_ops(model: onnx.ModelProto, path: Any) -> Counter[str]:
    """Operators of the graph that onnxruntime makes of a model, layout changes aside; ``path`` is a file to write."""

    def change(options: onnxruntime.SessionOptions) -> None:
        options.optimized_model_filepath = str(path)
        # the level above this one moves Convs to NHWC, between Transposes
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED

    _session(model, optimize=True, change=change)
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@dataclass(frozen=True)
class Checked:
    """A quantized model that passed :func:`quantize_and_check`.

    Attributes:
        result: What ``qtool.quantize`` returned.
        model: The quantized model.
        expected: Outputs of the float model on the feeds.
        got: Outputs of the quantized model, optimizations off.
        fast: The same with optimizations on.
    """

    result: QuantizeResult
    model: onnx.ModelProto
    expected: dict[str, np.ndarray]
    got: dict[str, np.ndarray]
    fast: dict[str, np.ndarray]

    @property
    def ops(self) -> Counter[str]:
        return Counter(node.op_type for node in self.model.graph.node)

    @property
    def initializers(self) -> dict[str, np.ndarray]:
        return {t.name: onnx.numpy_helper.to_array(t) for t in self.model.graph.initializer}

    def params(self, tensor: str) -> QParams:
        params = self.result.plan.tensors[tensor]
        assert params is not None
        return params

    def scale(self, tensor: str) -> float:
        return float(self.params(tensor).scale)

    def zero_point(self, tensor: str) -> int:
        return int(self.params(tensor).zero_point)

    def weight(self, node: str, index: int = 0) -> QParams:
        """Parameters of a constant operand of a decision."""
        decision = next(d for d in self.result.plan.decisions if d.node == node)
        params = decision.weights[index].params
        assert params is not None
        return params

    def reason(self, node: str) -> str:
        """Why a node stays float."""
        return next(s.reason for s in self.result.skips if s.node == node)

    def quantized(self) -> list[str]:
        """Names of quantized nodes, absorbed ones included."""
        return [name for d in self.result.plan.decisions for name in (d.node, *d.absorbed)]

    def error(self, output: str | None = None) -> np.ndarray:
        """|quantized - float| of an output (the first one), optimizations off."""
        name = output or next(iter(self.expected))
        return np.abs(self.got[name].astype(np.float64) - self.expected[name])

    def sqnr(self, output: str | None = None) -> float:
        name = output or next(iter(self.expected))
        return min(sqnr_db(self.expected[name], y[name]) for y in (self.got, self.fast))


def quantize_and_check(
    model: onnx.ModelProto,
    samples: Arrays | list[Arrays],
    *,
    feeds: Arrays | None = None,
    reference: onnx.ModelProto | None = None,
    agreement_db: float = 30.0,
    one_code: bool = True,
    **options: Any,
) -> Checked:
    """Quantize in memory and assert what holds for every model.

    The result passes the full checker and :func:`check_structure`; onnxruntime loads and runs it with optimizations off
    and on; names, order and dtypes of inputs and outputs are kept; both runs agree within one code where an output is
    quantized, and within ``agreement_db`` where float operators follow.

    Args:
        model: The float model.
        samples: Calibration data.
        feeds: What both are run on; the calibration data if not given.
        reference: What gives the expected outputs, if onnxruntime refuses ``model``.
        agreement_db: See above.
        one_code: Whether a quantized output must agree within one code; otherwise ``agreement_db`` holds for it, too.
        options: Of ``qtool.quantize``; one thread unless it is told another number.
    """
    options.setdefault("num_threads", 1)
    before = model.SerializeToString()
    result = qtool.quantize(model, samples, **options)
    assert model.SerializeToString() == before, "the caller's model was changed"
    quantized = result.model
    assert quantized is not None
    onnx.checker.check_model(quantized, full_check=True)
    check_structure(quantized)
    for old, new in ((model.graph.input, quantized.graph.input), (model.graph.output, quantized.graph.output)):
        wanted = [(v.name, v.type.tensor_type.elem_type) for v in old]
        assert [(v.name, v.type.tensor_type.elem_type) for v in new] == wanted
    if feeds is None:
        assert not isinstance(samples, list)
        feeds = samples
    expected = run(reference or model, feeds)
    got, fast = run(quantized, feeds), run(quantized, feeds, optimize=True)
    for name, y in expected.items():
        for other in (got[name], fast[name]):
            assert other.dtype == y.dtype
            assert other.shape == y.shape
            if y.dtype.kind != "f":
                assert np.array_equal(other, y)
        if y.dtype.kind == "f" and y.size:
            params = result.plan.tensors.get(name)
            # onnxruntime requantizes 16-bit activations to 8 bits where it fuses their product (MatMulNBits)
            if params is not None and params.dtype.bits == 8 and one_code:
                assert np.abs(got[name] - fast[name]).max() <= float(params.scale) * (1 + 1e-4)
            else:
                assert sqnr_db(got[name], fast[name]) >= agreement_db
    return Checked(result, quantized, expected, got, fast)


def check_structure(model: onnx.ModelProto) -> None:
    """Assert the facts about nodes and constants that hold for every quantized model."""
    graph = model.graph
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx"}
    constants = {t.name: t for t in graph.initializer}
    read = {name for node in _all_nodes(graph) for name in node.input} | {o.name for o in graph.output}
    assert constants.keys() <= read, f"unreferenced: {sorted(constants.keys() - read)}"
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))
    assert all(names)
    producer = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {o.name for o in graph.output}
    for node in graph.node:
        if node.op_type in _QDQ:
            _check_parameters(node, constants)
            assert all(readers.get(o) or o in outputs for o in node.output), f"{node.name} is read by nothing"
        elif node.op_type not in _FUSED and node.op_type not in ("QLinearConv", "QLinearMatMul", "ConvTranspose"):
            for name in node.input:
                assert not _rounded_for_nothing(name, producer), f"{node.name} reads '{name}', rounded for nothing"


def _rounded_for_nothing(name: str, producer: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a value is quantized and dequantized although the operator that made it works on floats."""
    for op_type in ("DequantizeLinear", "QuantizeLinear"):
        node = producer.get(name)
        if node is None or node.op_type != op_type:
            return False
        name = node.input[0]
    return name not in producer or producer[name].op_type not in _FUSED


def _check_parameters(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    scale = onnx.numpy_helper.to_array(constants[node.input[1]])
    assert np.isfinite(scale).all()
    assert (scale >= np.finfo(np.float32).tiny).all()
    axis = {a.name: a.i for a in node.attribute}.get("axis")
    source = constants.get(node.input[0])
    if source is not None and source.data_type == onnx.TensorProto.INT32:
        assert len(node.input) == 2
    else:
        zero = constants[node.input[2]]
        assert list(zero.dims) == list(scale.shape)
    if scale.ndim == 1:
        assert axis is not None
        assert source is not None
        assert scale.shape == (source.dims[axis],)
    else:
        assert scale.shape == ()
    assert {a.name for a in node.attribute} <= {"axis"}
    if source is not None:
        assert source.HasField("raw_data")


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _all_nodes(attribute.g)
    return found


def product_bound(
    linear: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    w: np.ndarray,
    x_scale: float,
    w_scale: np.ndarray,
    y_scale: float = 0.0,
    *,
    bias: bool = False,
) -> np.ndarray:
    """The largest error of a product whose operands are quantized without clipping (the generic oracle of the cases).

        |dy| <= sy/2 + sum_k( |x_k|*sw/2 + |w_k|*sx/2 + sx*sw/4 ) [+ sx*sw/2 for the bias]

    Args:
        linear: The product in float64, e.g. ``np.matmul``.
        x: Activation.
        w: Weight.
        x_scale: Scale of the activation.
        w_scale: Scale of the weight, broadcast against w.
        y_scale: Scale of the result; 0 where it stays float.
        bias: Whether an int32 bias is added.

    Returns:
        float64, shape of the product, with a part in 10^5 for float32 arithmetic.
    """
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    steps = np.broadcast_to(np.asarray(w_scale, np.float64), w.shape)
    ones = np.ones_like(x)
    total = y_scale / 2 + linear(np.abs(x), steps / 2) + linear(ones, np.abs(w) * x_scale / 2 + x_scale * steps / 4)
    if bias:
        total = total + x_scale * float(steps.max()) / 2
    return total * (1 + 1e-5) + 1e-6 * linear(np.abs(x), np.abs(w))


def conv_bound(model: onnx.ModelProto, checked: Checked, node: str, x: np.ndarray) -> np.ndarray:
    """:func:`product_bound` of a Conv of a float model with one sample ``x`` of shape (N, C, ...)."""
    conv = next(n for n in model.graph.node if n.name == node)
    w = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == conv.input[1])

    def linear(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Conv", ["x", "w"], ["y"])],
            "linear",
            [
                onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, a.shape),
                onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, b.shape),
            ],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        )
        graph.node[0].attribute.extend(conv.attribute)
        proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        return run(proto, {"x": a.astype(np.float32), "w": b.astype(np.float32)})["y"].astype(np.float64)

    decision = next(d for d in checked.result.plan.decisions if d.node == node)
    scale = checked.weight(node).scale
    shaped = scale if scale.ndim == 0 else scale.reshape(-1, *[1] * (w.ndim - 1))
    return product_bound(
        linear,
        x,
        w,
        checked.scale(decision.inputs[0][1]),
        shaped,
        checked.scale(decision.outputs[0]),
        bias=decision.bias is not None,
    )
