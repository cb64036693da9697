"""Operators on codes become float operators between DequantizeLinear and QuantizeLinear.

Scales, zero points and codes stay the values that they are. What is in QDQ form already is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qtool.convert.codes import ORDERS, Codes, is_mover, moved_inputs, moved_outputs
from qtool.convert.editor import Editor
from qtool.convert.encoding import Encoding, plain_name
from qtool.convert.integers import IntegerProduct, integer_product
from qtool.convert.operators import CodeOperator, code_operator
from qtool.errors import ModelError
from qtool.prepare.graph_edits import (
    all_graphs,
    constant_array,
    input_at,
    is_constant,
    is_onnx_op,
    string_attribute,
    take_over,
)


class QdqForm:
    """Rewrites a model, bodies included.

    Args:
        model: Changed.

    Attributes:
        converted: Operator -> how many of its nodes were rewritten.
        left: (node, operator, reason) of quantized operators that stay what they are.
        per_axis: Whether a DequantizeLinear with an axis was written.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.codes = Codes(model)
        self.editor = Editor(model)
        self.converted: dict[str, int] = {}
        self.left: list[tuple[str, str, str]] = []
        self.per_axis = False
        self._zeros: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def run(self) -> None:
        """Rewrite every node."""
        for graph in all_graphs(self.model):
            for node in list(graph):
                if node.graph is None:
                    continue  # went with an integer product
                operator = code_operator(node)
                if operator is not None:
                    self._operator(node, operator)
                elif is_onnx_op(node, "MatMulInteger", "ConvInteger"):
                    product = integer_product(node, self.codes)
                    if isinstance(product, str):
                        self.left.append((node.name or "", node.op_type, product))
                    else:
                        self._integers(node, product)
                elif is_mover(node):
                    self._mover(node)
                elif is_onnx_op(node, *ORDERS):
                    self._order(node)

    # -------------------------------------------------------------------------------------------------------- operators

    def _operator(self, node: ir.Node, operator: CodeOperator) -> None:
        inputs = [
            o.value if o.encoding is None or o.value is None else self._real(o.value, o.encoding, node)
            for o in operator.operands
        ]
        if operator.bias is not None:
            inputs.append(self._bias(node, operator))
        output = node.outputs[0]
        base = plain_name(output.name or "")
        dtype = operator.operands[0].encoding.scale.dtype if operator.operands[0].encoding is not None else None
        new = self.editor.node(
            operator.op_type,
            inputs,
            place=node,
            name=node.name or operator.op_type,
            output=base if operator.output is not None else f"{base}_real",
            dtype=dtype,
            shape=output.shape,
            attributes=operator.attributes,
        )
        real = new.outputs[0]
        if operator.output is None:
            take_over(real, output)
        else:
            self._quantize(real, operator.output, output, node)
        self._remove(node)

    def _bias(self, node: ir.Node, operator: CodeOperator) -> ir.Value:
        """The int32 bias, dequantized under f32(sx)*f32(sw[c])."""
        assert operator.bias is not None, "Bug: no bias"
        left, right = operator.operands[0].encoding, operator.operands[1].encoding
        assert left is not None, "Bug: an operator on codes without a scale"
        assert right is not None, "Bug: an operator on codes without a scale"
        sx, sw = left.scales, right.scales
        if sx is None or sw is None:
            raise ModelError(
                f"The bias of '{node.name}' ({node.op_type}) has a scale that the running model computes; expected "
                "constant scales.",
            )
        scale = np.float32(operator.bias.alpha) * sx.astype(np.float32).reshape(()) * sw.astype(np.float32)
        scale = np.asarray(scale, np.float32).reshape(()) if sw.size == 1 else np.asarray(scale, np.float32)
        value = operator.bias.value
        owner = value.graph if isinstance(value.graph, ir.Graph) else self.model.graph
        base = plain_name(value.name or "")
        constant = self.editor.constant(owner, f"{base}_scale", scale, ir.DataType.FLOAT)
        last = (len(value.shape) if value.shape is not None else 1) - 1
        return self._real(value, Encoding(constant, axis=last), node)

    def _integers(self, node: ir.Node, product: IntegerProduct) -> None:
        """MatMulInteger -> Cast -> Mul by the scales becomes the product of dequantized operands."""
        inputs = []
        for value, scale, zero, axis in product.operands:
            inputs.append(self._real(value, Encoding(self.editor.row(scale), zero, axis=axis), node))
        last = product.last.outputs[0]
        new = self.editor.node(
            "MatMul" if node.op_type == "MatMulInteger" else "Conv",
            inputs,
            place=node,
            name=node.name or node.op_type,
            output=f"{plain_name(last.name or '')}_real",
            dtype=ir.DataType.FLOAT,
            shape=last.shape,
            attributes=list(node.attributes.values()),
        )
        take_over(new.outputs[0], last)
        for old in reversed(product.chain):
            self._remove(old, counted=old is node)

    # ----------------------------------------------------------------------------------------------------------- movers

    def _mover(self, node: ir.Node) -> None:
        """A mover of an activation's codes moves floats, between the same parameters."""
        data, outputs = moved_inputs(node), moved_outputs(node)
        encodings = [self.codes.of(v) for v in data]
        encoding = encodings[0] if encodings else None
        if encoding is None or any(e is None or not e.equals(encoding) for e in encodings):
            return
        if not encoding.per_tensor or any(is_constant(v) for v in data):
            return  # a table stays codes up to its DequantizeLinear
        places = [i for i, v in enumerate(node.inputs) if any(v is d for d in data)]
        reals = {i: self._real(v, encoding, node) for i, v in enumerate(node.inputs) if i in places and v is not None}
        for index, real in reals.items():
            node.replace_input_with(index, real)
        if is_onnx_op(node, "Pad") and string_attribute(node, "mode", "constant") == "constant":
            self._pad_with_a_float(node, encoding)
        for output in outputs:
            real = ir.Value(
                name=self.editor.names.value(plain_name(output.name or "")),
                type=ir.TensorType(encoding.scale.dtype) if encoding.scale.dtype is not None else None,
                shape=None if output.shape is None else output.shape.copy(),
            )
            self._requantize(node, output, real, encoding)
        self.converted[node.op_type] = self.converted.get(node.op_type, 0) + 1

    def _pad_with_a_float(self, node: ir.Node, encoding: Encoding) -> None:
        """What was padded with a code is padded with what it stands for; no value is code 0."""
        padding = input_at(node, 2)
        code, scales = constant_array(padding), encoding.scales
        if encoding.is_constant and scales is not None and (padding is None or code is not None):
            zero = encoding.zero_points().astype(np.float32).reshape(())
            number = (np.float32(0 if code is None else code.reshape(())) - zero) * scales.reshape(())
            assert isinstance(node.graph, ir.Graph), "Bug: a node outside of a graph"
            array = np.asarray(number, scales.dtype)
            real = self.editor.constant(
                node.graph, f"{node.name}_padding", array, encoding.scale.dtype or ir.DataType.FLOAT
            )
        elif padding is not None:
            real = self._real(padding, encoding, node)
        else:
            raise ModelError(
                f"'{node.name}' (Pad) pads with code 0 under a scale that the running model computes.",
            )
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, real)

    def _requantize(self, node: ir.Node, output: ir.Value, real: ir.Value, encoding: Encoding) -> None:
        """Let an output be a float, and a QuantizeLinear behind the node write the codes under the old name."""
        codes = self._quantizer(output, encoding, node, output)
        new = codes.outputs[0]
        readers = [(user, index) for user, index in output.uses() if user is not codes]
        for user, index in readers:
            user.replace_input_with(index, new)
        if output.is_graph_output():
            assert output.graph is not None, "Bug: an output without a graph"
            for position, value in enumerate(output.graph.outputs):
                if value is output:
                    output.graph.outputs[position] = new
        new.name, output.name = output.name, real.name
        output.type, output.shape = real.type, real.shape
        self.codes.set(new, encoding)

    def _quantizer(self, real: ir.Value, encoding: Encoding, place: ir.Node, codes: ir.Value) -> ir.Node:
        base = plain_name(codes.name or "")
        inputs = [real, encoding.scale, *([encoding.zero_point] if encoding.zero_point is not None else [])]
        node = self.editor.node(
            "QuantizeLinear",
            inputs,
            place=place,
            name=f"{base}_QuantizeLinear",
            output=f"{base}_quantized",
            dtype=codes.dtype,
            shape=codes.shape,
        )
        assert isinstance(place.graph, ir.Graph), "Bug: a node outside of a graph"
        place.graph.remove(node)
        place.graph.insert_after(place, node)
        return node

    def _order(self, node: ir.Node) -> None:
        """The order of codes is that of what they stand for."""
        value = node.inputs[0]
        encoding = self.codes.of(value)
        if value is None or encoding is None or not encoding.per_tensor:
            return
        node.replace_input_with(0, self._real(value, encoding, node))

    # ------------------------------------------------------------------------------------------------------ small parts

    def _real(self, codes: ir.Value, encoding: Encoding, reader: ir.Node) -> ir.Value:
        shape = encoding.scale.shape
        if shape is not None and len(shape) > 1 and not encoding.block:
            raise ModelError(
                f"'{reader.name}' ({reader.op_type}) has scales of rank {len(shape)}, which DequantizeLinear has no "
                "form for; expected one scale, or a row of them.",
            )
        self.per_axis = self.per_axis or not encoding.per_tensor
        encoding = self._with_zeros(encoding)
        return self.editor.real(codes, encoding, reader)

    def _with_zeros(self, encoding: Encoding) -> Encoding:
        """One zero point for all channels, which integer operators take, is one for each in a DequantizeLinear."""
        scales, zeros = encoding.scales, constant_array(encoding.zero_point)
        zero = encoding.zero_point
        if scales is None or zeros is None or zero is None or zeros.size != 1 or scales.size == 1:
            return encoding
        key = (zero, scales.shape)
        if key not in self._zeros:
            owner = zero.graph if isinstance(zero.graph, ir.Graph) else self.model.graph
            assert zero.dtype is not None, "Bug: a constant without a type"
            array = np.broadcast_to(zeros.reshape(()), scales.shape)
            self._zeros[key] = self.editor.constant(owner, zero.name or "zero_point", array, zero.dtype)
        return replace(encoding, zero_point=self._zeros[key])

    def _quantize(self, real: ir.Value, encoding: Encoding, codes: ir.Value, place: ir.Node) -> None:
        """A QuantizeLinear of ``real`` takes the place of ``codes``."""
        new = self._quantizer(real, encoding, place, codes).outputs[0]
        take_over(new, codes)
        self.codes.set(new, encoding)

    def _remove(self, node: ir.Node, *, counted: bool = True) -> None:
        if counted:
            self.converted[node.op_type] = self.converted.get(node.op_type, 0) + 1
        assert isinstance(node.graph, ir.Graph), "Bug: a node outside of a graph"
        node.graph.remove(node, safe=True)


def unmoved(left: Sequence[tuple[str, str, str]]) -> str:
    """The first nodes that stay, for a message."""
    name, op_type, reason = left[0]
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    return f"node '{name}' ({op_type}): {reason}{more}"
