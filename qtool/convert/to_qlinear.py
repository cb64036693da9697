"""From QDQ form to operators on codes: QLinearMatMul, QLinearConv, and movers of codes, where all parameters fit.

A node is rewritten if its operator can hold the parameters that are there; none is changed. The others stay in QDQ
form, which is valid beside it, and each has its reason.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.config import QLINEAR_PAIRS
from qtool.convert.codes import MOVERS, moved_inputs, moved_outputs
from qtool.convert.editor import Editor
from qtool.convert.encoding import Encoding, code_type, encoding_of
from qtool.prepare.graph_edits import (
    all_graphs,
    constant_array,
    float_attribute,
    input_at,
    int_attribute,
    is_constant,
    is_onnx_op,
    sole_consumer,
    string_attribute,
    take_over,
)


class QLinearForm:
    """Rewrites a model, bodies included.

    Args:
        model: Changed.

    Attributes:
        converted: Operator -> how many of its nodes were rewritten.
        left: (node, operator, reason) of quantized products and Convs that stay in QDQ form.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.editor = Editor(model)
        self.converted: dict[str, int] = {}
        self.left: list[tuple[str, str, str]] = []
        self._zeros: dict[tuple[int, int, tuple[int, ...]], ir.Value] = {}

    def run(self) -> None:
        """Rewrite every node that can be, then take away what nothing reads."""
        for graph in all_graphs(self.model):
            for node in list(graph):
                if node.graph is None:
                    continue
                if is_onnx_op(node, "MatMul", "Gemm"):
                    self._try(node, self._product(node))
                elif is_onnx_op(node, "Conv"):
                    self._try(node, self._conv(node))
                elif is_onnx_op(node, *MOVERS):
                    self._mover(node)

    def _try(self, node: ir.Node, reason: str | None) -> None:
        if reason is None:
            self.converted[node.op_type] = self.converted.get(node.op_type, 0) + 1
        elif reason:
            self.left.append((node.name or "", node.op_type, reason))

    # --------------------------------------------------------------------------------------------------------- products

    def _product(self, node: ir.Node) -> str | None:
        """Rewrite; or why not ("" for a node that is not quantized)."""
        a, b = _dequantizer(node, 0), _dequantizer(node, 1)
        if a is None and b is None:
            return ""
        if a is None or b is None:
            return "" if not _is_weight(a or b) else "its activation is not quantized"
        if node.op_type == "Gemm":
            odd = _odd_gemm(node)
            if odd is not None:
                return odd
        reason, quantize, dropped = self._end(node)
        if quantize is None:
            return reason
        ea, eb, ey = encoding_of(a), encoding_of(b), encoding_of(quantize)
        pair = self._pair(a, b, quantize)
        if pair is not None:
            return pair
        if not (ea.per_tensor and ey.per_tensor):
            return "its activations have more than one scale"
        if not eb.per_tensor:
            shape = b.inputs[0].shape if b.inputs[0] is not None else None
            rank = None if shape is None else len(shape)
            if rank != 2 or eb.block or eb.axis % 2 != 1:
                return "its weight has scales along another axis than its columns"
        inputs = [*self._operand(a, ea), *self._operand(b, eb), *self._parameters(quantize, ey)]
        self._write(node, "QLinearMatMul", inputs, quantize, dropped, attributes=[])
        return None

    def _conv(self, node: ir.Node) -> str | None:
        x, w = _dequantizer(node, 0), _dequantizer(node, 1)
        if x is None and w is None:
            return ""
        if x is None or w is None:
            return "its activation is not quantized" if x is None else "its weight is not quantized"
        reason, quantize, dropped = self._end(node)
        if quantize is None:
            return reason
        ex, ew, ey = encoding_of(x), encoding_of(w), encoding_of(quantize)
        pair = self._pair(x, w, quantize)
        if pair is not None:
            return pair
        if not (ex.per_tensor and ey.per_tensor):
            return "its activations have more than one scale"
        rank = len(w.inputs[0].shape) if w.inputs[0] is not None and w.inputs[0].shape is not None else 0
        if not ew.per_tensor and (ew.block or not rank or ew.axis % rank != 0):
            return "its weight has scales along another axis than its output channels"
        inputs = [*self._operand(x, ex), *self._operand(w, ew), *self._parameters(quantize, ey)]
        if input_at(node, 2) is not None:
            bias = self._bias(node, ex, ew)
            if isinstance(bias, str):
                return bias
            inputs.append(bias)
        self._write(node, "QLinearConv", inputs, quantize, dropped, attributes=list(node.attributes.values()))
        return None

    def _bias(self, node: ir.Node, ex: Encoding, ew: Encoding) -> ir.Value | str:
        """The int32 codes of a bias, if they mean what QLinearConv takes them for."""
        dequantize = _dequantizer(node, 2)
        codes = None if dequantize is None else dequantize.inputs[0]
        if dequantize is None or codes is None or codes.dtype != ir.DataType.INT32:
            return "its bias is not stored as int32"
        encoding = encoding_of(dequantize)
        sx, sw, sb = ex.scales, ew.scales, encoding.scales
        if sx is None or sw is None or sb is None:
            return "the scale of its bias is not constant"
        product = sx.astype(np.float32).reshape(()) * sw.astype(np.float32).reshape(-1)
        if not np.array_equal(np.broadcast_to(sb.reshape(-1), product.shape) if sb.size == 1 else sb, product):
            return "the scale of its bias is not the product of those of its operands"
        zeros = constant_array(encoding.zero_point)
        if encoding.zero_point is not None and (zeros is None or zeros.any()):
            return "its bias has a zero point"
        return codes

    def _end(self, node: ir.Node) -> tuple[str, ir.Node | None, list[ir.Node]]:
        """(why there is none, QuantizeLinear behind a node, the Relu or Clip between that saturation stands for)."""
        follower = sole_consumer(node.outputs[0])
        if follower is None:
            return "its result is needed as floats", None, []
        if is_onnx_op(follower, "QuantizeLinear") and follower.inputs[0] is node.outputs[0]:
            return "", follower, []
        if is_onnx_op(follower, "Relu", "Clip"):
            quantize = sole_consumer(follower.outputs[0])
            if quantize is not None and is_onnx_op(quantize, "QuantizeLinear"):
                if self._saturates(follower, quantize):
                    return "", quantize, [follower]
                return "the codes of its result reach beyond the bounds of its activation function", None, []
        return "its result is needed as floats", None, []

    def _saturates(self, clamp: ir.Node, quantize: ir.Node) -> bool:
        """Whether no code stands for a number outside of a Relu's or Clip's bounds."""
        encoding, dtype = encoding_of(quantize), code_type(quantize.outputs[0])
        if dtype is None or not encoding.is_constant or not encoding.per_tensor:
            return False
        low, high = 0.0, np.inf
        if clamp.op_type == "Clip":
            bounds = []
            for index, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
                value = input_at(clamp, index)
                array = constant_array(value)
                if value is not None and array is None:
                    return False
                bounds.append(float_attribute(clamp, name, default) if array is None else float(array.reshape(-1)[0]))
            low, high = bounds
        scale, zero = np.float32(np.asarray(encoding.scales).reshape(())), float(encoding.zero_points().reshape(-1)[0])
        least = np.float32(dtype.qmin - zero) * scale
        most = np.float32(dtype.qmax - zero) * scale
        return bool(least >= np.float32(low) and most <= np.float32(high))

    def _pair(self, a: ir.Node, b: ir.Node, quantize: ir.Node) -> str | None:
        """Whether there is no operator for the three types."""
        types = [code_type(v) for v in (a.inputs[0], b.inputs[0], quantize.outputs[0])]
        names = [t.name if t is not None else "unknown" for t in types]
        if names[0] == names[2] and (names[0], names[1]) in QLINEAR_PAIRS:
            return None
        return f"there is no operator for {names[0]} x {names[1]} -> {names[2]}"

    # ----------------------------------------------------------------------------------------------------------- movers

    def _mover(self, node: ir.Node) -> None:
        """DequantizeLinear -> mover -> QuantizeLinear under the same parameters moves codes."""
        data = moved_inputs(node)
        sources = [_producer(v, "DequantizeLinear") for v in data]
        if not data or any(s is None or is_constant(s.inputs[0]) for s in sources):
            return
        first = sources[0]
        assert first is not None, "Bug: a mover of nothing"
        encoding = encoding_of(first)
        ends = [sole_consumer(o) for o in moved_outputs(node)]
        quantizers = [e for e in ends if e is not None and is_onnx_op(e, "QuantizeLinear")]
        if len(quantizers) != len(ends) or not encoding.per_tensor or not _all_equal(encoding, [*sources, *quantizers]):
            return
        codes = [s.inputs[0] for s in sources if s is not None]
        if len({str(v.dtype) for v in [*codes, *(q.outputs[0] for q in quantizers)] if v is not None}) != 1:
            return
        if not self._takes_codes(node, first.inputs[0]) or not self._mover_is_exact(node, first, encoding):
            return
        for index, value in enumerate(node.inputs):
            for old, new in zip(data, codes, strict=True):
                if value is old:
                    node.replace_input_with(index, new)
        for quantize in quantizers:
            real, written = quantize.inputs[0], quantize.outputs[0]
            assert real is not None, "Bug: a QuantizeLinear of nothing"
            real.type, real.shape = written.type, written.shape
            take_over_codes(real, quantize)
        self.converted[node.op_type] = self.converted.get(node.op_type, 0) + 1

    def _mover_is_exact(self, node: ir.Node, first: ir.Node, encoding: Encoding) -> bool:
        """Whether the mover makes no number of its own that is no code; sets the code that a Pad pads with."""
        if node.op_type == "Resize":
            if string_attribute(node, "mode", "nearest") != "nearest":
                return False
            return string_attribute(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
        if node.op_type == "MaxPool":
            return not any(o.uses() or o.is_graph_output() for o in node.outputs[1:])
        if node.op_type != "Pad" or string_attribute(node, "mode", "constant") != "constant":
            return True
        value = input_at(node, 2)
        number = constant_array(value)
        if value is not None and (number is None or float(number.reshape(-1)[0]) != 0.0):
            return False
        _, zero = self._parameters(first, encoding)
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, zero)
        return True

    def _takes_codes(self, node: ir.Node, codes: ir.Value | None) -> bool:
        import onnx

        dtype = code_type(codes)
        try:
            schema = onnx.defs.get_schema(node.op_type, self.model.graph.opset_imports.get("", 1), "")
        except onnx.defs.SchemaError:
            return False
        return dtype is not None and f"tensor({dtype.name})" in schema.inputs[0].types

    # ------------------------------------------------------------------------------------------------------ small parts

    def _operand(self, dequantize: ir.Node, encoding: Encoding) -> list[ir.Value | None]:
        return [dequantize.inputs[0], *self._parameters(dequantize, encoding)]

    def _parameters(self, quantizer: ir.Node, encoding: Encoding) -> list[ir.Value]:
        """Scale and zero point; operators on codes ask for one even where it is 0."""
        if encoding.zero_point is not None:
            return [encoding.scale, encoding.zero_point]
        codes = quantizer.outputs[0] if quantizer.op_type == "QuantizeLinear" else quantizer.inputs[0]
        graph = quantizer.graph
        assert isinstance(graph, ir.Graph), "Bug: a node outside of a graph"
        assert codes is not None, "Bug: a quantizer of nothing"
        assert codes.dtype is not None, "Bug: codes without a type"
        shape = tuple(int(d) for d in encoding.scale.shape.dims) if encoding.scale.shape is not None else ()  # type: ignore[arg-type]
        key = (id(graph), int(codes.dtype), shape)
        if key not in self._zeros:
            name = f"{codes.name}_zero_point"
            self._zeros[key] = self.editor.constant(graph, name, np.zeros(shape, codes.dtype.numpy()), codes.dtype)
        return [encoding.scale, self._zeros[key]]

    def _write(
        self,
        node: ir.Node,
        op_type: str,
        inputs: list[ir.Value | None],
        quantize: ir.Node,
        dropped: list[ir.Node],
        attributes: list[ir.Attr],
    ) -> None:
        """Put an operator on codes in place of a node, of the Relu or Clip behind it, and of its QuantizeLinear."""
        codes = quantize.outputs[0]
        new = self.editor.node(
            op_type,
            inputs,
            place=node,
            name=node.name or op_type,
            output=f"{codes.name}_codes",
            dtype=codes.dtype,
            shape=codes.shape,
            attributes=attributes,
        )
        take_over(new.outputs[0], codes)
        for old in (quantize, *dropped, node):
            assert isinstance(old.graph, ir.Graph), "Bug: a node outside of a graph"
            old.graph.remove(old, safe=True)


def take_over_codes(real: ir.Value, quantize: ir.Node) -> None:
    """Let the value that a QuantizeLinear read be the codes, which it is now."""
    take_over(real, quantize.outputs[0])
    assert isinstance(quantize.graph, ir.Graph), "Bug: a node outside of a graph"
    quantize.graph.remove(quantize, safe=True)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if is_onnx_op(node, op_type) else None


def _dequantizer(node: ir.Node, index: int) -> ir.Node | None:
    return _producer(input_at(node, index), "DequantizeLinear")


def _is_weight(dequantize: ir.Node | None) -> bool:
    return dequantize is not None and is_constant(dequantize.inputs[0])


def _odd_gemm(node: ir.Node) -> str | None:
    if input_at(node, 2) is not None:
        return "QLinearMatMul has no bias"
    if int_attribute(node, "transA", 0) or int_attribute(node, "transB", 0) or float_attribute(node, "alpha", 1) != 1:
        return "QLinearMatMul neither transposes nor scales"
    return None


def _all_equal(encoding: Encoding, quantizers: list[ir.Node | None]) -> bool:
    return all(q is not None and encoding_of(q).equals(encoding) for q in quantizers)
