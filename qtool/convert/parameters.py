"""The quantization parameters of a file: every tensor that it holds as codes, and the nodes that compute on codes.

Tensors are known by all names that they have: that of their codes, of what was quantized, and of what was dequantized,
without what quantizers append to them. So the two forms of one model name the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.convert.codes import Codes, is_mover, moved_inputs, moved_outputs
from qtool.convert.editor import Editor
from qtool.convert.encoding import Encoding, code_type, plain_name
from qtool.convert.integers import integer_product
from qtool.convert.operators import code_operator
from qtool.convert.tables import scaled_table
from qtool.prepare.graph_edits import all_graphs, constant_array, is_constant, is_onnx_op
from qtool.prepare.hide_initializer_inputs import HideInitializerInputsPass
from qtool.prepare.infer_shapes import InferShapesPass
from qtool.prepare.lift_constants import LiftConstantsPass
from qtool.prepare.name_nodes import NameNodesPass

# integer operators, and those of com.microsoft that compute with stored weights: the float operator they stand for
_STANDS_FOR = {
    "MatMulInteger": "MatMul",
    "ConvInteger": "Conv",
    "MatMulNBits": "MatMul",
    "DynamicQuantizeLSTM": "LSTM",
    "DynamicQuantizeMatMul": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "GatherBlockQuantized": "Gather",
    "QAttention": "Attention",
}
_PRODUCTS = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Einsum"))


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor that a model holds as codes.

    Attributes:
        name: What it is called in a table.
        names: All its names.
        kind: ``weight`` for a constant, ``bias`` for one of int32, ``activation`` for what the model computes.
        dtype: Element type of the codes; empty if unknown.
        scale: Its scales; None if the running model computes them.
        zero_point: Its zero points, all of them 0 where there are none; None as for the scale.
        axis: Axis of scales per channel or of blocks, from the front where the rank is known; None per tensor.
        block: Elements per scale along the axis; 0 if not blocked.
        codes: Of a constant: reads them.
    """

    name: str
    names: frozenset[str]
    kind: str
    dtype: str
    scale: npt.NDArray[Any] | None
    zero_point: npt.NDArray[Any] | None
    axis: int | None = None
    block: int = 0
    codes: ir.TensorProtocol | None = field(default=None, compare=False)

    @property
    def granularity(self) -> str:
        """``per tensor``, ``axis 0``, ``axis 0, blocks of 32``."""
        if self.axis is None:
            return "per tensor"
        return f"axis {self.axis}, blocks of {self.block}" if self.block else f"axis {self.axis}"


@dataclass(frozen=True)
class Parameters:
    """What a file quantizes.

    Attributes:
        tensors: In graph order.
        nodes: Name -> operator (the float one) of every node that computes or moves codes.
    """

    tensors: tuple[QuantizedTensor, ...]
    nodes: dict[str, str]


def parameters_of(model: ir.Model) -> Parameters:
    """Read the parameters of a model, bodies included; the model is not changed."""
    copy = model.clone()
    for step in (
        NameNodesPass(bodies=True),
        HideInitializerInputsPass(),
        LiftConstantsPass(bodies=True),
        InferShapesPass(),
    ):
        step(copy)
    codes, editor = Codes(copy), Editor(copy)
    tensors: list[QuantizedTensor] = []
    nodes: dict[str, str] = {}
    seen: set[ir.Value] = set()
    for graph in all_graphs(copy):
        for node in graph:
            operator = _quantized_operator(node, codes)
            if operator is not None:
                nodes[node.name or ""] = operator
            for value in (*node.inputs, *node.outputs):
                encoding = codes.of(value)
                if value is None or encoding is None or value in seen:
                    continue
                seen.add(value)
                tensors.append(_tensor(value, encoding))
            tensors += _biases(node)
            tensors += _integer_weights(node, codes, editor)
            table = scaled_table(node)
            if table is not None and table.codes not in seen:
                seen.add(table.codes)
                tensors.append(_tensor(table.codes, Encoding(editor.row(table.scale), axis=0)))
    return Parameters(tuple(tensors), nodes)


def _tensor(value: ir.Value, encoding: Encoding) -> QuantizedTensor:
    names, shown = _names(value)
    dtype = code_type(value)
    zero = encoding.zero_point
    name = dtype.name if dtype is not None else ""
    if not name:
        known = code_type(zero)
        name = known.name if known is not None else str(value.dtype or "").lower()
    kind = "activation"
    if is_constant(value) or _is_moved_constant(value):
        kind = "bias" if value.dtype == ir.DataType.INT32 else "weight"
    axis = None
    if not encoding.per_tensor:
        rank = len(value.shape) if value.shape is not None else None
        axis = encoding.axis + rank if rank is not None and encoding.axis < 0 else encoding.axis
    constant = encoding.is_constant
    scale = encoding.scales if constant else None
    zeros = np.broadcast_to(encoding.zero_points(), scale.shape) if scale is not None and _fits(encoding) else None
    return QuantizedTensor(
        shown, names, kind, name, scale, zeros, axis, encoding.block, value.const_value if is_constant(value) else None
    )


def _fits(encoding: Encoding) -> bool:
    scales, zeros = encoding.scales, encoding.zero_points()
    return scales is not None and (zeros.size == 1 or zeros.size == scales.size)


def _is_moved_constant(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and is_mover(node) and bool(moved_inputs(node)) and is_constant(moved_inputs(node)[0])


def _names(value: ir.Value) -> tuple[frozenset[str], str]:
    """All names of a tensor of codes, and the one to show: that of the float tensor."""
    shown = plain_name(value.name or "")
    found = [shown]
    node = value.producer()
    if node is not None and is_onnx_op(node, "QuantizeLinear", "DynamicQuantizeLinear"):
        source = node.inputs[0]
        assert source is not None, "Bug: a quantizer of nothing"
        found.append(plain_name(source.name or ""))
    if not is_constant(value):
        found += [
            plain_name(user.outputs[0].name or "")
            for user, index in value.uses()
            if index == 0 and is_onnx_op(user, "DequantizeLinear")
        ]
    return frozenset(found), shown


def _biases(node: ir.Node) -> Iterator[QuantizedTensor]:
    """The bias of an operator on codes, whose scale is not written down."""
    operator = code_operator(node)
    if operator is None or operator.bias is None:
        return
    left, right = operator.operands[0].encoding, operator.operands[1].encoding
    value = operator.bias.value
    if left is None or right is None:
        return
    sx, sw = left.scales, right.scales
    if sx is None or sw is None:
        return
    scale = np.float32(operator.bias.alpha) * sx.astype(np.float32).reshape(()) * sw.astype(np.float32)
    scale = np.asarray(scale.reshape(()) if sw.size == 1 else scale, np.float32)
    names, shown = _names(value)
    axis = None if scale.ndim == 0 else (len(value.shape) - 1 if value.shape is not None else 0)
    zeros = np.zeros(scale.shape, np.int32)
    yield QuantizedTensor(shown, names, "bias", "int32", scale, zeros, axis, 0, value.const_value)


def _integer_weights(node: ir.Node, codes: Codes, editor: Editor) -> Iterator[QuantizedTensor]:
    """The weight of an integer product, whose scale is applied behind it."""
    product = integer_product(node, codes) if is_onnx_op(node, "MatMulInteger", "ConvInteger") else ""
    if isinstance(product, str):
        return
    for value, scale, zero, axis in product.operands:
        if is_constant(value) and codes.of(value) is None:
            yield _tensor(value, Encoding(editor.row(scale), zero, axis=axis))


def _quantized_operator(node: ir.Node, codes: Codes) -> str | None:
    """The float operator that a node on codes, or between quantizers, stands for; None for any other node."""
    operator = code_operator(node)
    if operator is not None:
        return operator.op_type
    if node.op_type in _STANDS_FOR:
        return _STANDS_FOR[node.op_type]
    if node.op_type.startswith("QLinear"):
        return node.op_type.removeprefix("QLinear")
    if is_mover(node) and all(codes.of(v) is not None for v in moved_inputs(node)) and moved_inputs(node):
        return node.op_type
    if node.domain != "" or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return None
    dequantized = [v is not None and is_onnx_op(v.producer(), "DequantizeLinear") for v in node.inputs]
    if not any(dequantized):
        return None
    if node.op_type in _PRODUCTS:
        weights = [i for i, v in enumerate(node.inputs) if dequantized[i] and v is not None and _is_dequantized(v)]
        return node.op_type if weights or all(dequantized[:2]) else None
    outputs = moved_outputs(node) if is_mover(node) else [o for o in node.outputs[:1] if o.name]
    written = any(is_onnx_op(user, "QuantizeLinear") for o in outputs for user, _ in o.uses())
    data = [d for d, v in zip(dequantized, node.inputs, strict=True) if v is not None and _is_float(v)]
    return node.op_type if data and all(data) and written else None


def _is_dequantized(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and (is_constant(node.inputs[0]) or constant_array(node.inputs[1]) is not None)


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16) and not is_constant(value)
