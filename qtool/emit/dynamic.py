"""Dynamic mode as nodes: activations are quantized by the running model, weights are stored in 8 bits.

    MatMul(x, W)  ->  q, s, z = DynamicQuantizeLinear(x)
                      y = Cast(MatMulInteger(q, Wq, z, zw)) * (s * sw)

onnxruntime (1.32) fuses that, with a row of biases that is added behind it, into one DynamicQuantizeMatMul, or into
MatMulIntegerToFloat where several products read the same q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool import kernels
from qtool.emit.constants import Constants
from qtool.plan import Decision, Plan, WeightPlan
from qtool.plan.analysis import dims_of
from qtool.prepare.graph_edits import ORIGIN_KEY, NameAllocator, all_graphs, input_at, take_over
from qtool.prepare.remove_dead_nodes import RemoveDeadNodesPass
from qtool.qparams import QParams

_MICROSOFT = "com.microsoft"


class DynamicRewriter:
    """Rewrites the top graph and the bodies of If, Loop and Scan.

    Args:
        model: A model that may be changed: a clone of the prepared one.
        plan: A plan of dynamic mode.
    """

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self.names = NameAllocator(model)
        self._nodes = {node.name or "": node for graph in all_graphs(model) for node in graph}
        self._constants: dict[int, Constants] = {}
        # (graph, tensor) -> codes, scale, zero point: one DynamicQuantizeLinear for all that read a tensor there
        self._quantized: dict[tuple[int, int], tuple[ir.Value, ir.Value, ir.Value]] = {}

    def run(self) -> ir.Model:
        """Rewrite every decision, then clean up. Returns the model that was given."""
        write: dict[str, Callable[[ir.Node, Decision], None]] = {
            "MatMul": self._product,
            "Gemm": self._product,
            "Conv": self._conv,
            "LSTM": self._lstm,
            "Gather": self._gather,
        }
        for decision in self.plan.decisions:
            write[decision.op_type](self._nodes[decision.node], decision)
        RemoveDeadNodesPass(bodies=True)(self.model)
        for graph in all_graphs(self.model):
            for node in graph:
                node.metadata_props.pop(ORIGIN_KEY, None)
        return self.model

    # -------------------------------------------------------------------------------------------------------- operators

    def _product(self, node: ir.Node, decision: Decision) -> None:
        (weight,) = decision.weights
        params = _params(weight)
        x = node.inputs[1 - weight.index]
        assert x is not None, "Bug: a product with a missing operand"
        codes, scale, zero = self._quantize(x, node)
        stored, weight_scale, weight_zero = self._weight(node, weight, params.scale)
        inputs: list[ir.Value | None] = [codes, stored, zero, weight_zero]
        if weight.index == 0:
            inputs = [stored, codes, weight_zero, zero]
        output = node.outputs[0]
        half = x.dtype == ir.DataType.FLOAT16 or _stored_dtype(node, weight) == ir.DataType.FLOAT16
        value = self._to_float(node, "MatMulInteger", inputs, scale, weight_scale)
        if half:
            value = self._cast(node, value, ir.DataType.FLOAT16, f"{output.name}_float16")
        bias = input_at(node, 2)
        if bias is not None:
            value = self._node(node, "Add", [value, bias], f"{node.name}_Add", value.dtype, f"{output.name}_biased")
        self._replace(node, value)

    def _conv(self, node: ir.Node, decision: Decision) -> None:
        (weight,) = decision.weights
        params = _params(weight)
        x, source = node.inputs[0], node.inputs[1]
        assert x is not None, "Bug: a Conv without an input"
        assert source is not None, "Bug: a Conv without a weight"
        assert source.const_value is not None, "Bug: a planned weight is not constant"
        channels, *kernel = dims_of(source.const_value)
        column = (channels, *[1] * (len(kernel) - 1))  # a scale or bias beside (N, M, spatial..)
        codes, scale, zero = self._quantize(x, node)
        scales = params.scale.reshape(column) if params.scale.ndim else params.scale
        stored, weight_scale, weight_zero = self._weight(node, weight, scales)
        attributes = list(node.attributes.values())
        value = self._to_float(node, "ConvInteger", [codes, stored, zero, weight_zero], scale, weight_scale, attributes)
        bias = input_at(node, 2)
        if bias is not None:
            tensor = bias.const_value
            assert tensor is not None, "Bug: a planned bias is not constant"
            row = self._constants_of(bias).derived(
                bias, f"{bias.name}_channels", lambda: tensor.numpy().reshape(column), ir.DataType.FLOAT, column
            )
            name = node.outputs[0].name
            value = self._node(node, "Add", [value, row], f"{node.name}_Add", ir.DataType.FLOAT, f"{name}_biased")
        self._replace(node, value)

    def _lstm(self, node: ir.Node, decision: Decision) -> None:
        inputs = [input_at(node, index) for index in range(8)]
        tail: list[ir.Value | None] = []
        for weight in decision.weights:
            source, params = node.inputs[weight.index], _params(weight)
            assert source is not None, "Bug: an LSTM without a weight"
            assert source.const_value is not None, "Bug: a planned weight is not constant"
            directions, gates, width = dims_of(source.const_value)
            per_gate = params.scale.size == directions * gates
            shape = (directions, gates) if per_gate else (directions,)
            constants = self._constants_of(source)
            inputs[weight.index] = constants.derived(
                source,
                f"{source.name}_quantized",
                _lstm_codes(source.const_value, params, (directions, gates, width)),
                ir.DataType(params.dtype.onnx),
                (directions, width, gates),
                params,
            )
            for label, array in (("scale", params.scale), ("zero_point", params.zero_point)):
                tail.append(constants.array(f"{source.name}_{label}", array.reshape(shape)))
        new = ir.Node(
            _MICROSOFT,
            "DynamicQuantizeLSTM",
            [*inputs, *tail],
            [a for a in node.attributes.values() if a.name != "layout"],
            num_outputs=len(node.outputs),
            name=node.name,
            doc_string=node.doc_string,
        )
        for index, (old, value) in enumerate(zip(node.outputs, new.outputs, strict=True)):
            value.name = self.names.value(f"{old.name}_lstm") if old.name else ""
            # onnx has no inference for the operator: without a remark what reads it would have no type
            value.type = ir.TensorType(ir.DataType.FLOAT)
            value.shape = ir.Shape([None] * (3 if index else 4))
        assert node.graph is not None
        node.graph.insert_before(node, new)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            if old.name:
                take_over(value, old)
        node.graph.remove(node, safe=True)
        self.model.opset_imports.setdefault(_MICROSOFT, 1)

    def _gather(self, node: ir.Node, decision: Decision) -> None:
        """Rows of codes; they become floats by one scale, or by scales that are gathered like them."""
        (weight,) = decision.weights
        source, indices, params = node.inputs[0], node.inputs[1], _params(weight)
        assert source is not None, "Bug: a Gather without a table"
        output, real = node.outputs[0], ir.DataType.FLOAT
        constants = self._constants_of(source)
        attributes = list(node.attributes.values())
        stored = constants.codes(source, params)
        rows = self._node(
            node, "Gather", [stored, indices], node.name or "", stored.dtype, f"{output.name}_codes", attributes
        )
        if not params.scale.ndim:
            scale, zero = constants.parameters(source.name or "", params)
            inputs: list[ir.Value | None] = [rows, scale, zero]
            name = f"{node.name}_DequantizeLinear"
            return self._replace(node, self._node(node, "DequantizeLinear", inputs, name, real, f"{output.name}_real"))
        column = constants.array(f"{source.name}_scale", params.scale.reshape(-1, 1))
        scales = self._node(
            node, "Gather", [column, indices], f"{node.name}_scales", real, f"{output.name}_scales", attributes
        )
        scales.shape = None
        unscaled = self._cast(node, rows, real, f"{output.name}_unscaled")
        value = self._node(node, "Mul", [unscaled, scales], f"{node.name}_Mul", real, f"{output.name}_scaled")
        return self._replace(node, value)

    # ------------------------------------------------------------------------------------------------------------ parts

    def _quantize(self, x: ir.Value, reader: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Codes, scale and zero point of an activation, made in front of the first node that reads them."""
        key = (id(reader.graph), id(x))
        if key not in self._quantized:
            data = x
            if x.dtype == ir.DataType.FLOAT16:
                data = self._cast(reader, x, ir.DataType.FLOAT, f"{x.name}_float")
            node = ir.Node(
                "",
                "DynamicQuantizeLinear",
                [data],
                num_outputs=3,
                name=self.names.node(f"{x.name}_DynamicQuantizeLinear"),
            )
            for value, label, dtype in zip(
                node.outputs,
                ("quantized", "scale", "zero_point"),
                (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8),
                strict=True,
            ):
                value.name = self.names.value(f"{x.name}_{label}")
                value.type = ir.TensorType(dtype)
                value.shape = ir.Shape([]) if label != "quantized" else x.shape.copy() if x.shape is not None else None
            assert reader.graph is not None
            reader.graph.insert_before(reader, node)
            codes, scale, zero = node.outputs
            self._quantized[key] = (codes, scale, zero)
        return self._quantized[key]

    def _weight(
        self, node: ir.Node, weight: WeightPlan, scale: npt.NDArray[Any]
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Codes of a weight, its scale as given, and one zero point for all of it."""
        source, params = node.inputs[weight.index], _params(weight)
        assert source is not None, "Bug: a planned weight is missing"
        constants = self._constants_of(source)
        stored = constants.codes(source, params)
        zero = params.zero_point.reshape(-1)[0]
        assert (params.zero_point == zero).all(), "Bug: a weight with several zero points"
        return (
            stored,
            constants.array(f"{source.name}_scale", scale),
            constants.array(f"{source.name}_zero_point", np.asarray(zero)),
        )

    def _to_float(
        self,
        node: ir.Node,
        op_type: str,
        inputs: list[ir.Value | None],
        scale: ir.Value,
        weight_scale: ir.Value,
        attributes: list[ir.Attr] | None = None,
    ) -> ir.Value:
        """The integer operator, which has the node's name, and its result as float32."""
        name, output = node.name or "", node.outputs[0]
        total = self._node(node, op_type, inputs, name, ir.DataType.INT32, f"{output.name}_int32", attributes)
        real = self._cast(node, total, ir.DataType.FLOAT, f"{output.name}_unscaled")
        scales = self._node(
            node, "Mul", [scale, weight_scale], f"{name}_scales", ir.DataType.FLOAT, f"{output.name}_scales"
        )
        scales.shape = weight_scale.shape.copy() if weight_scale.shape is not None else None
        return self._node(node, "Mul", [real, scales], f"{name}_Mul", ir.DataType.FLOAT, f"{output.name}_scaled")

    def _cast(self, node: ir.Node, value: ir.Value, dtype: ir.DataType, output: str) -> ir.Value:
        to = [ir.AttrInt64("to", int(dtype))]
        return self._node(node, "Cast", [value], f"{output}_Cast", dtype, output, to)

    def _node(
        self,
        place: ir.Node,
        op_type: str,
        inputs: list[ir.Value | None],
        name: str,
        dtype: ir.DataType | None,
        output: str,
        attributes: list[ir.Attr] | None = None,
    ) -> ir.Value:
        """A node of ai.onnx in front of ``place``; its output."""
        taken_over = name == place.name
        node = ir.Node(
            "", op_type, inputs, attributes or [], num_outputs=1, name=name if taken_over else self.names.node(name)
        )
        if taken_over:
            node.doc_string = place.doc_string
            node.metadata_props.update(place.metadata_props)
        value = node.outputs[0]
        value.name = self.names.value(output)
        value.type = ir.TensorType(dtype) if dtype is not None else None
        shape = place.outputs[0].shape
        if shape is not None and not (op_type == "Cast" and inputs[0] in place.inputs):
            value.shape = shape.copy()
        assert place.graph is not None
        place.graph.insert_before(place, node)
        return value

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Remove a node whose result is now computed as ``value``."""
        take_over(value, node.outputs[0])
        assert node.graph is not None
        node.graph.remove(node, safe=True)

    def _constants_of(self, source: ir.Value) -> Constants:
        """New constants go where the old one was, so that what several bodies read is stored once."""
        graph = source.graph
        assert isinstance(graph, ir.Graph), "Bug: a constant without a graph"
        if id(graph) not in self._constants:
            self._constants[id(graph)] = Constants(graph, self.names)
        return self._constants[id(graph)]


def _params(weight: WeightPlan) -> QParams:
    assert weight.params is not None, "Bug: a planned weight without parameters"
    return weight.params


def _stored_dtype(node: ir.Node, weight: WeightPlan) -> ir.DataType | None:
    source = node.inputs[weight.index]
    return None if source is None or source.const_value is None else source.const_value.dtype


def _lstm_codes(
    tensor: ir.TensorProtocol, params: QParams, shape: tuple[int, int, int]
) -> Callable[[], npt.NDArray[Any]]:
    """Codes of W or R in the operator's own layout: (D, I, 4H) instead of (D, 4H, I)."""

    def codes() -> npt.NDArray[Any]:
        rows = tensor.numpy().reshape(params.scale.size, -1)
        flat = kernels.quantize(rows, params.scale, params.zero_point, axis=0)
        return np.ascontiguousarray(flat.reshape(shape).transpose(0, 2, 1))

    return codes
