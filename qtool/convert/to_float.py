"""From QDQ form to float: weights become what their codes stand for, activations are no longer rounded.

A QuantizeLinear rounds and saturates. The rounding goes. The saturation stays where it may stand for an activation
function that a quantizer took away: behind an operator that computes (Conv, MatMul, Add, ..), where the zero point is
the lowest code, a Relu takes its place, and a Clip if the highest code stands for a whole number, as 6 in Relu6.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool import kernels
from qtool.convert.codes import Codes, is_mover
from qtool.convert.editor import Editor
from qtool.convert.encoding import Encoding, code_type, encoding_of, plain_name
from qtool.convert.tables import ScaledTable, scaled_table
from qtool.errors import ModelError
from qtool.plan.analysis import dims_of
from qtool.prepare.graph_edits import (
    all_graphs,
    constant_array,
    input_at,
    int_attribute,
    is_constant,
    is_onnx_op,
    take_over,
)

_CLAMPED = frozenset(
    ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Sub", "Mul", "BatchNormalization", "LeakyRelu")
)
_NEVER_NEGATIVE = frozenset(("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Softplus"))
_KEEP_SIGN = frozenset(
    ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Reshape", "Transpose", "Identity")
)
_SEARCH_LIMIT = 16


class FloatForm:
    """Rewrites a model in QDQ form, bodies included.

    Args:
        model: Changed; integer operators are left where they are.

    Attributes:
        weights: Constants that were dequantized.
        rounded: Pairs of QuantizeLinear and DequantizeLinear that were taken away.
        interface: Quantizers that stay, because the model's inputs or outputs are codes.
        left: (node, operator, reason) of quantized operators that stay for another reason.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.codes = Codes(model)
        self.editor = Editor(model)
        self.weights = self.rounded = self.interface = 0
        self.left: list[tuple[str, str, str]] = []
        self._dequantized: dict[tuple[ir.Value, ir.Value, ir.Value | None, int, int], ir.Value] = {}
        self._exact: dict[tuple[ir.Value, float, float], ir.Value] = {}

    def run(self) -> None:
        """Take every DequantizeLinear away, then look what still computes on codes."""
        for graph in all_graphs(self.model):
            for node in list(graph):
                table = scaled_table(node)
                if is_onnx_op(node, "DequantizeLinear"):
                    self._dequantizer(node)
                elif table is not None:
                    self._scaled_table(node, table)
        for graph in all_graphs(self.model):
            for node in reversed(graph):
                self._look(node)

    def _dequantizer(self, node: ir.Node) -> None:
        codes, encoding = node.inputs[0], encoding_of(node)
        assert codes is not None, "Bug: a DequantizeLinear of nothing"
        output = node.outputs[0]
        real = self._real_of(codes, encoding, node)
        if real is None:
            return
        if output.is_graph_output():
            if real.is_graph_output() or real.producer() is None or real.producer().graph is not output.graph:  # type: ignore[union-attr]
                real = self.editor.node(
                    "Identity", [real], place=node, name=f"{output.name}_Identity", output=f"{output.name}_float",
                    dtype=real.dtype, shape=output.shape,
                ).outputs[0]  # fmt: skip
            take_over(real, output)
        else:
            output.replace_all_uses_with(real)
        assert isinstance(node.graph, ir.Graph), "Bug: a node outside of a graph"
        node.graph.remove(node, safe=True)

    def _real_of(self, codes: ir.Value, encoding: Encoding, node: ir.Node) -> ir.Value | None:
        """What codes stand for, without a DequantizeLinear; None if that cannot be had."""
        if is_constant(codes):
            return self._weight(codes, encoding, node) if encoding.is_constant else None
        producer = codes.producer()
        if producer is None:
            return None  # an input of the model
        if is_onnx_op(producer, "QuantizeLinear"):
            self.rounded += 1
            return self._unrounded(producer, encoding, node)
        if is_onnx_op(producer, "DynamicQuantizeLinear"):
            self.rounded += 1
            return producer.inputs[0] if encoding.scale is producer.outputs[1] else None
        if is_mover(producer) and producer.inputs[0] is not None and is_constant(producer.inputs[0]):
            return self._table(producer, encoding, node)
        return None

    # ---------------------------------------------------------------------------------------------------------- weights

    def _weight(self, codes: ir.Value, encoding: Encoding, node: ir.Node) -> ir.Value:
        """The dequantized constant, made while the model is saved."""
        key = (codes, encoding.scale, encoding.zero_point, encoding.axis, encoding.block)
        if key in self._dequantized:
            return self._dequantized[key]
        tensor, scale, zero = codes.const_value, encoding.scales, constant_array(encoding.zero_point)
        assert tensor is not None, "Bug: not a constant"
        assert scale is not None, "Bug: a scale that is not constant"
        if tensor.dtype == ir.DataType.INT32 and zero is not None:
            if zero.any():
                raise ModelError(f"'{codes.name}' is of int32 and has a zero point, which ONNX has as 0 only.")
            zero = None
        out = node.outputs[0].dtype or encoding.scale.dtype or ir.DataType.FLOAT
        if "output_dtype" in node.attributes:
            out = ir.DataType(int_attribute(node, "output_dtype", int(out)))

        def make() -> ir.TensorProtocol:
            array = kernels.dequantize(
                tensor.numpy(), scale, zero, axis=encoding.axis, block_size=encoding.block, output_dtype=out.numpy()
            )
            return ir.Tensor(array, dtype=out)

        owner = codes.graph if isinstance(codes.graph, ir.Graph) else self.model.graph
        lazy = ir.LazyTensor(make, dtype=out, shape=ir.Shape(dims_of(tensor)), name="")
        value = self.editor.lazy(owner, plain_name(codes.name or ""), lazy)
        self._dequantized[key] = value
        self.weights += 1
        return value

    def _table(self, mover: ir.Node, encoding: Encoding, node: ir.Node) -> ir.Value | None:
        """Move what a constant stands for, instead of its codes (and, of a table, the scales of its rows)."""
        codes = mover.inputs[0]
        assert codes is not None, "Bug: a mover of nothing"
        whole: Encoding | None = None
        if encoding.is_constant and encoding.per_tensor:
            whole = encoding
        elif is_onnx_op(mover, "Gather") and int_attribute(mover, "axis", 0) == 0:
            whole = _rows(mover, encoding)
        if whole is None:
            return None
        table = self._weight(codes, whole, node)
        new = self.editor.node(
            mover.op_type,
            [table, *mover.inputs[1:]],
            place=mover,
            name=mover.name or mover.op_type,
            output=f"{plain_name(node.outputs[0].name or '')}_float",
            dtype=table.dtype,
            shape=mover.outputs[0].shape,
            attributes=list(mover.attributes.values()),
        )
        mover.name = self.editor.names.node(f"{mover.name}_codes")  # it goes when nothing reads it
        return new.outputs[0]

    def _scaled_table(self, cast: ir.Node, table: ScaledTable) -> None:
        """Gather rows of what the codes stand for, instead of codes and scales."""
        encoding = Encoding(self.editor.row(table.scale), axis=0)
        output = table.mul.outputs[0]
        new = self.editor.node(
            "Gather", [self._weight(table.codes, encoding, cast), table.gather.inputs[1]], place=table.gather,
            name=table.gather.name or "Gather", output=f"{output.name}_float", dtype=output.dtype, shape=output.shape,
        )  # fmt: skip
        table.gather.name = self.editor.names.node(f"{table.gather.name}_codes")  # it goes when nothing reads it
        take_over(new.outputs[0], output)
        assert isinstance(table.mul.graph, ir.Graph), "Bug: a node outside of a graph"
        table.mul.graph.remove(table.mul, safe=True)

    # ------------------------------------------------------------------------------------------------------ activations

    def _unrounded(self, quantize: ir.Node, encoding: Encoding, node: ir.Node) -> ir.Value | None:
        """What QuantizeLinear reads, clamped if it may have to be, and rescaled if it is read under another scale."""
        own, value = encoding_of(quantize), quantize.inputs[0]
        assert value is not None, "Bug: a QuantizeLinear of nothing"
        value = self._clamped(value, own, quantize)
        if own.equals(encoding):
            return value
        if not (own.is_constant and encoding.is_constant and own.per_tensor and encoding.per_tensor):
            return None
        s, t = (float(np.asarray(e.scales).reshape(())) for e in (own, encoding))
        z, w = (float(e.zero_points().reshape(-1)[0]) for e in (own, encoding))
        graph = quantize.graph
        assert isinstance(graph, ir.Graph), "Bug: a node outside of a graph"
        steps = [("Div", s / t)] if s >= t else [("Mul", t / s)]
        if z != w:
            steps.append(("Add", (z - w) * t))
        for op_type, number in steps:
            if (op_type, number) in (("Div", 1.0), ("Add", 0.0)):
                continue
            constant = self.editor.constant(
                graph, f"{value.name}_{op_type.lower()}", np.asarray(number, np.float32), ir.DataType.FLOAT
            )
            value = self.editor.node(
                op_type, [value, constant], place=node, name=f"{value.name}_{op_type}",
                output=f"{value.name}_{op_type.lower()}", dtype=value.dtype, shape=node.outputs[0].shape,
            ).outputs[0]  # fmt: skip
        return value

    def _clamped(self, value: ir.Value, encoding: Encoding, quantize: ir.Node) -> ir.Value:
        producer, dtype = value.producer(), code_type(quantize.outputs[0])
        if producer is None or producer.op_type not in _CLAMPED or dtype is None or not dtype.is_integer:
            return value
        if not (encoding.is_constant and encoding.per_tensor):
            return value
        if float(encoding.zero_points().reshape(-1)[0]) != dtype.qmin or _never_negative(value):
            return value
        high = (dtype.qmax - dtype.qmin) * float(np.asarray(encoding.scales).reshape(()))
        whole = round(high)
        bound = float(whole) if whole > 0 and abs(high - whole) <= 1e-6 * whole else np.inf
        key = (value, 0.0, bound)
        if key not in self._exact:
            self._exact[key] = self._clamp(value, bound, quantize)
        return self._exact[key]

    def _clamp(self, value: ir.Value, bound: float, place: ir.Node) -> ir.Value:
        op_type, inputs, attributes = "Relu", [value], list[ir.Attr]()
        if bound < np.inf:
            op_type = "Clip"
            if self.model.graph.opset_imports.get("", 0) < 11:
                attributes = [ir.AttrFloat32("min", 0.0), ir.AttrFloat32("max", bound)]
            else:
                assert isinstance(place.graph, ir.Graph), "Bug: a node outside of a graph"
                for label, number in (("min", 0.0), ("max", bound)):
                    array = np.asarray(number, np.float32)
                    inputs.append(self.editor.constant(place.graph, f"{value.name}_{label}", array, ir.DataType.FLOAT))
        node = self.editor.node(
            op_type, inputs, place=place, name=f"{value.name}_{op_type}", output=f"{value.name}_{op_type.lower()}",
            dtype=value.dtype, shape=value.shape, attributes=attributes,
        )  # fmt: skip
        return node.outputs[0]

    # --------------------------------------------------------------------------------------------------------- the rest

    def _look(self, node: ir.Node) -> None:
        """Tell the interface from what could not be taken away; what nothing reads goes."""
        if not any(o.uses() or o.is_graph_output() for o in node.outputs):
            assert isinstance(node.graph, ir.Graph), "Bug: a node outside of a graph"
            node.graph.remove(node, safe=True)
            return
        if is_onnx_op(node, "QuantizeLinear"):
            readers = [user for user, _ in node.outputs[0].uses()]
            if readers:
                reason = f"'{readers[0].name}' ({readers[0].op_type}) computes on its codes"
                self.left.append((node.name or "", node.op_type, reason))
            else:
                self.interface += 1
        elif is_onnx_op(node, "DequantizeLinear"):
            codes = node.inputs[0]
            assert codes is not None, "Bug: a DequantizeLinear of nothing"
            if codes.is_graph_input() and codes.producer() is None:
                self.interface += 1
            else:
                self.left.append((node.name or "", node.op_type, "its codes come from an operator without a scale"))


def _rows(gather: ir.Node, encoding: Encoding) -> Encoding | None:
    """The encoding of a table of which codes, scales and zero points are gathered by the same indices."""
    found: list[ir.Value | None] = []
    for value in (encoding.scale, encoding.zero_point):
        if value is None:
            found.append(None)
            continue
        node = value.producer()
        if node is None or not is_onnx_op(node, "Gather") or int_attribute(node, "axis", 0) != 0:
            return None
        if node.inputs[1] is not gather.inputs[1] or not is_constant(node.inputs[0]):
            return None
        found.append(node.inputs[0])
    scale, codes = found[0], gather.inputs[0]
    if scale is None or scale.shape is None or codes is None or codes.shape is None:
        return None
    if encoding.block and len(scale.shape) == len(codes.shape):
        # the axis counts from the front behind the gathered dimensions, from the back on the table
        indices = input_at(gather, 1)
        if indices is None or indices.shape is None:
            return None
        axis = encoding.axis
        axis = axis - (len(indices.shape) - 1) if axis >= 0 else axis
        return Encoding(scale, found[1], axis=axis, block=encoding.block)
    return None


def _never_negative(value: ir.Value, depth: int = 0) -> bool:
    node = value.producer()
    if node is None or depth > _SEARCH_LIMIT or node.domain != "":
        return False
    if node.op_type in _NEVER_NEGATIVE:
        return True
    if node.op_type == "Clip":
        low = constant_array(input_at(node, 1)) if len(node.inputs) > 1 else None
        return low is not None and float(low.reshape(-1)[0]) >= 0.0
    if node.op_type in _KEEP_SIGN:
        return node.inputs[0] is not None and _never_negative(node.inputs[0], depth + 1)
    if node.op_type in ("Add", "Mul"):
        return all(v is not None and _never_negative(v, depth + 1) for v in node.inputs)
    return False
