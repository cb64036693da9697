"""The quantized products of a graph: MatMul, Gemm and Conv whose operands are codes, in whatever form they are written.

Three forms: an operator on codes (QLinearMatMul, QLinearConv, MatMulInteger, ConvInteger); a float operator between
DequantizeLinear nodes (QDQ); and a float operator that only its weight comes to through DequantizeLinear (weight-only).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx

Form = Literal["codes", "qdq", "weight"]

OPERANDS = {
    "QLinearMatMul": (0, 2, 3, 5),
    "QLinearConv": (0, 2, 3, 5),
    "MatMulInteger": (0, 2, 1, 3),
    "ConvInteger": (0, 2, 1, 3),
}
"""Operators on codes: positions of a, its zero point, b, its zero point."""
FLOAT_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True)
class Product:
    """A quantized product.

    Attributes:
        node: The node.
        form: How it is written.
        a: Name of the left operand's codes: activations; of its values in the weight-only form.
        b: Name of the right operand's codes.
        a_dequantize: Its DequantizeLinear node; None in the other forms.
        b_dequantize: The same of the right operand.
        a_type: numpy's name of the element type of ``a``, None if nothing says it.
        b_type: The same of ``b``.
        constant: Whether ``b`` is a constant.
    """

    node: onnx.NodeProto
    form: Form
    a: str
    b: str
    a_dequantize: onnx.NodeProto | None
    b_dequantize: onnx.NodeProto | None
    a_type: str | None
    b_type: str | None
    constant: bool

    @property
    def name(self) -> str:
        """What a reader knows the node by: its name, else its first output."""
        return self.node.name or self.node.output[0]

    @property
    def can_saturate(self) -> bool:
        """Whether processors without VNNI compute it in pairs of 16 bits: uint8 by int8, and no other signs.

        A depthwise Conv, which has one channel in each group, is computed in 32 bits everywhere.
        """
        return self.a_type == "uint8" and self.b_type == "int8"


class GraphView:
    """Producers, consumers and constant types of one graph, without its subgraphs."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.producer = {name: node for node in graph.node for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.captured: set[str] = set()
        for node in graph.node:
            for name in node.input:
                self.consumers[name].append(node)
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                self.tensors[node.output[0]] = node.attribute[0].t
            self.captured.update(_captures(node))
        self.outputs = {value.name for value in graph.output}
        self._declared = {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.input, *graph.value_info, *graph.output)
            if value.type.HasField("tensor_type")
        }

    def type_of(self, *names: str) -> str | None:
        """The name that numpy has for the element type of the first name that says one."""
        from onnx.helper import tensor_dtype_to_np_dtype

        for name in names:
            number = self.tensors[name].data_type if name in self.tensors else self._declared.get(name, 0)
            if number:
                return str(tensor_dtype_to_np_dtype(number))
        return None

    def codes_of(self, value: str) -> onnx.NodeProto | None:
        """The DequantizeLinear node that gives a value."""
        node = self.producer.get(value)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def type_of_codes(self, dequantize: onnx.NodeProto) -> str | None:
        """Element type of what a DequantizeLinear node reads."""
        zero = dequantize.input[2] if len(dequantize.input) > 2 else ""
        found = self.type_of(*filter(None, (dequantize.input[0], zero)))
        if (
            found is None and not zero
        ):  # no zero point is 0 of the type that QuantizeLinear wrote: uint8, if it has none
            source = self.producer.get(dequantize.input[0])
            if source is not None and source.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
                return "uint8" if len(source.input) < 3 else self.type_of(source.input[2])
        return found

    def only_consumer(self, value: str) -> onnx.NodeProto | None:
        """The one node that reads a value, if nothing else does."""
        readers = self.consumers.get(value, [])
        if len(readers) != 1 or value in self.outputs or value in self.captured:
            return None
        return readers[0]

    def quantized_by(self, value: str) -> onnx.NodeProto | None:
        """The QuantizeLinear node that a value goes to and to nothing else, through clamps."""
        while (reader := self.only_consumer(value)) is not None:
            if reader.op_type == "QuantizeLinear":
                return reader
            if reader.op_type not in CLAMPS or reader.input[0] != value:
                return None
            value = reader.output[0]
        return None


def quantized_products(view: GraphView) -> Iterator[Product]:
    """The quantized products of a graph, in its order; those of subgraphs are not among them."""
    for node in view.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in OPERANDS:
            a, a_zero, b, b_zero = (node.input[i] if i < len(node.input) else "" for i in OPERANDS[node.op_type])
            a_type, b_type = view.type_of(*filter(None, (a_zero, a))), view.type_of(*filter(None, (b_zero, b)))
            if a_type is None:  # its zero point is computed, as that of DynamicQuantizeLinear, which is uint8
                source = view.producer.get(a)
                a_type = "uint8" if source is not None and source.op_type == "DynamicQuantizeLinear" else None
            yield Product(node, "codes", a, b, None, None, a_type, b_type, b in view.tensors)
        elif node.op_type in FLOAT_PRODUCTS:
            left, right = view.codes_of(node.input[0]), view.codes_of(node.input[1])
            if right is None:
                continue
            b = right.input[0]
            if left is None:
                if b in view.tensors:
                    b_type = view.type_of_codes(right)
                    yield Product(node, "weight", node.input[0], b, None, right, None, b_type, constant=True)
                continue
            types = view.type_of_codes(left), view.type_of_codes(right)
            yield Product(node, "qdq", left.input[0], b, left, right, *types, b in view.tensors)


def is_depthwise(product: Product, view: GraphView) -> bool:
    """Whether a Conv has one channel in and one channel out per group."""
    if product.node.op_type not in ("Conv", "QLinearConv", "ConvInteger") or product.b not in view.tensors:
        return False
    dims = view.tensors[product.b].dims
    group = next((attribute.i for attribute in product.node.attribute if attribute.name == "group"), 1)
    return bool(group > 1 and dims[1] == 1 and dims[0] == group)


def attribute_of(node: onnx.NodeProto, name: str, default: float) -> float:
    """A numeric attribute."""
    for attribute in node.attribute:
        if attribute.name == name:
            return float(attribute.f if attribute.type == attribute.FLOAT else attribute.i)
    return default


def _captures(node: onnx.NodeProto) -> Iterator[str]:
    """Names that subgraphs of a node read or return, more than they take from outside."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from _captures(inner)


def float_reason(product: Product, view: GraphView) -> str | None:
    """Why onnxruntime computes a product in float, by the rules that its optimiser is known to have.

    Returns:
        None if a kernel on codes takes it.
    """
    node = product.node
    if product.form == "codes":
        return None
    if node.op_type == "ConvTranspose":
        return "onnxruntime has no ConvTranspose on codes"
    if node.op_type in ("Conv", "Gemm") and product.form == "weight":
        return "its input is float: only MatMul has a kernel with quantized weights and float activations"
    if product.form == "weight":
        return None
    if node.op_type == "Conv":
        return _reason_of_conv(node, view)
    if node.op_type == "Gemm":
        if attribute_of(node, "alpha", 1.0) != 1 or attribute_of(node, "beta", 1.0) != 1:
            return "alpha and beta are not both 1"
        if attribute_of(node, "transA", 0):
            return "transA is 1"
        if _float_bias(node, view) and view.quantized_by(node.output[0]) is None:
            return "its bias is float; expected int32 through DequantizeLinear"
    return None


def _float_bias(node: onnx.NodeProto, view: GraphView) -> bool:
    """Whether a bias is neither int32 nor, where a QuantizeLinear follows, a constant that onnxruntime quantizes."""
    return len(node.input) > 2 and bool(node.input[2]) and view.codes_of(node.input[2]) is None


def _reason_of_conv(node: onnx.NodeProto, view: GraphView) -> str | None:
    if _float_bias(node, view) and node.input[2] not in view.tensors:
        return "its bias is computed; expected int32 through DequantizeLinear"
    quantize = view.quantized_by(node.output[0])
    if quantize is None:
        return "no QuantizeLinear takes its output alone"
    reader = view.only_consumer(node.output[0])
    while reader is not None and reader is not quantize:
        if not _absorbs(reader, quantize, view):
            return f"{reader.op_type} behind it cuts values that its output range still has"
        reader = view.only_consumer(reader.output[0])
    return None


def _absorbs(clamp: onnx.NodeProto, quantize: onnx.NodeProto, view: GraphView) -> bool:
    """Whether the range of a QuantizeLinear does all that the Relu or Clip before it does."""
    import numpy as np
    from onnx import numpy_helper

    tensors = [view.tensors[n] for n in quantize.input[1:] if n in view.tensors]
    if len(tensors) < len(quantize.input) - 1 or math.prod(tensors[0].dims) != 1:
        return False  # elements of larger ones may not be at hand
    values = [numpy_helper.to_array(tensor) for tensor in tensors]
    scale = float(values[0].reshape(()))
    zero = int(values[1].reshape(())) if len(values) > 1 else 0
    bounds = np.iinfo(values[1].dtype if len(values) > 1 else np.uint8)
    low, high = (bounds.min - zero) * scale, (bounds.max - zero) * scale
    limits = [0.0, np.inf]
    if clamp.op_type == "Clip":
        limits = [-np.inf, np.inf]
        for at, name in enumerate(clamp.input[1:3]):
            if name and name not in view.tensors:
                return False
            if name:
                limits[at] = float(numpy_helper.to_array(view.tensors[name]).reshape(()))
        if len(clamp.input) == 1:  # attributes, up to opset 10
            limits = [attribute_of(clamp, "min", -np.inf), attribute_of(clamp, "max", np.inf)]
    return low >= limits[0] and high <= limits[1] * (1 + 1e-6)
