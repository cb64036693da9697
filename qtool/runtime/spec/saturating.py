"""The spec engine as a processor without VNNI: products of uint8 and int8 in pairs that saturate to int16.

What MLAS, the library under onnxruntime, does on AVX2 and on AVX-512 without VNNI. Codes are multiplied as they are,
zero points are taken off by sums of rows and columns afterwards; so activations of 200 saturate, whatever they stand
for. A matrix product pairs neighbours along K: (0, 1), (2, 3), ... A Conv is one matrix product per group whose K
runs over the taps of the kernel and, within a tap, over the input channels (the layout is NHWC), so neighbouring
channels are pairs; padding has the zero point's code. A depthwise Conv is exact there, and so are other signs.

Products in QDQ form are computed on codes where onnxruntime would (``runtime/products.py``), and in float where not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool import kernels
from qtool.reference import conv_geometry, per_column, per_row, requantize, wrap_int32
from qtool.runtime.products import GraphView, Product, attribute_of, float_reason, quantized_products
from qtool.runtime.spec import quantized
from qtool.runtime.spec.quantized import Array, Call

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun

DOMAIN = "qtool.saturating"
"""Of the operator that stands for MatMul and Gemm in QDQ form; nothing outside this engine sees it."""


@dataclass
class LayerCount:
    """Pairs of one product over all runs.

    Attributes:
        pairs: Pairs that were added.
        saturated: Those that left int16.
        columns: Saturated pairs of each output channel.
        rows: Rows of the left operand.
    """

    pairs: int = 0
    saturated: int = 0
    columns: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: int = 0


class Record(dict[str, LayerCount]):
    """Counts by the name of the node, or of its first output if it has none."""

    def add(self, name: str, rows: int, depth: int, counts: Array) -> None:
        """Add one product of ``rows`` x ``depth`` by ``depth`` x ``len(counts)``."""
        layer = self.setdefault(name, LayerCount())
        if layer.columns.shape != counts.shape:
            layer.columns = np.zeros(counts.shape, np.int64)
        layer.columns += counts
        layer.saturated += int(counts.sum())
        layer.pairs += rows * ((depth + 1) // 2) * len(counts)
        layer.rows += rows


class Saturating:
    """The operators, with the record that they count into."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = Record() if record is None else record

    def operators(self) -> dict[str, Callable[[Call], tuple[Array, ...]]]:
        """Rows that replace those of ``operators.py``."""
        return {
            "MatMulInteger": self._matmul_integer,
            "QLinearMatMul": self._qlinear_matmul,
            "ConvInteger": self._conv_integer,
            "QLinearConv": self._qlinear_conv,
        }

    def classes(self, num_threads: int | None) -> list[type[OpRun]]:
        """Classes of the operators in :data:`DOMAIN`."""
        return [_class("MatMul", self._float_matmul, num_threads)]

    def _matmul_integer(self, call: Call) -> tuple[Array, ...]:
        a, b, za, zb = call.arrays(4)
        if not _saturates(a, b):
            return quantized.matmul_integer(call)
        return (self._product(call, a, b, za, zb),)

    def _qlinear_matmul(self, call: Call) -> tuple[Array, ...]:
        a, sa, za, b, sb, zb, sy, zy = call.arrays(8)
        if not _saturates(a, b):
            return quantized.qlinear_matmul(call)
        acc = self._product(call, a, b, za, zb)
        left, right = per_row(sa), per_column(sb)
        if b.ndim == 1 and left.ndim:
            left = left[..., 0]
        if a.ndim == 1 and right.ndim > 1:
            right = right[..., 0, :]
        return (requantize(acc, left, right, np.asarray(sy).reshape(()), zy, "multiplier"),)

    def _conv_integer(self, call: Call) -> tuple[Array, ...]:
        x, w, zx, zw = call.arrays(4)
        if not _saturates(x, w) or _depthwise(w, call.attributes):
            return quantized.conv_integer(call)
        return (self._conv(call, x, w, zx, zw),)

    def _qlinear_conv(self, call: Call) -> tuple[Array, ...]:
        x, sx, zx, w, sw, zw, sy, zy, bias = call.arrays(9)
        if not _saturates(x, w) or _depthwise(w, call.attributes):
            return quantized.qlinear_conv(call)
        acc = self._conv(call, x, w, zx, zw)
        channels = (-1,) + (1,) * (x.ndim - 2)
        if bias is not None:
            acc = wrap_int32(acc.astype(np.int64) + bias.reshape(channels))
        scale = np.asarray(sw).reshape(channels)
        sx, sy = np.asarray(sx).reshape(()), np.asarray(sy).reshape(())
        return (requantize(acc, sx, scale, sy, zy, "multiplier"),)

    def _float_matmul(self, call: Call) -> tuple[Array, ...]:
        """a, its scale and zero point, b, its scale (one, or one per column) and zero point, float bias or None."""
        a, sa, za, b, sb, zb, bias = call.arrays(7)
        if call.attributes["transpose_b"]:
            b = b.swapaxes(-1, -2)
        y = self._product(call, a, b, za, zb).astype(np.float32) * (np.asarray(sa).reshape(()) * per_column(sb))
        return (y if bias is None else y + bias,)

    def _product(self, call: Call, a: Array, b: Array, za: Array | None, zb: Array | None) -> Array:
        """MatMulInteger: ``numpy.matmul`` of stacks of matrices, then the zero points."""
        left, right = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        (m, k), n = left.shape[-2:], right.shape[-1]
        counts = np.zeros(n, np.int64)
        if right.ndim == 2:  # all rows at once
            acc = self._rows(left.reshape(-1, k), right, counts, call).reshape(*batch, m, n)
        else:
            acc = np.empty((*batch, m, n), np.int32)
            lefts, rights = np.broadcast_to(left, (*batch, m, k)), np.broadcast_to(right, (*batch, k, n))
            for at in np.ndindex(*batch):
                acc[at] = self._rows(lefts[at], rights[at], counts, call)
        self.record.add(call.name, math.prod(batch) * m, k, counts)
        wide_a = np.zeros((), np.int64) if za is None else per_row(za).astype(np.int64)
        wide_b = np.zeros((), np.int64) if zb is None else per_column(zb).astype(np.int64)
        total = acc - wide_a * right.sum(axis=-2, keepdims=True, dtype=np.int64)
        if wide_b.any():
            total = total - wide_b * left.sum(axis=-1, keepdims=True, dtype=np.int64) + k * wide_a * wide_b
        shape = (*batch, *(() if a.ndim == 1 else (m,)), *(() if b.ndim == 1 else (n,)))
        return wrap_int32(total).reshape(shape)

    def _conv(self, call: Call, x: Array, w: Array, zx: Array | None, zw: Array | None) -> Array:
        """ConvInteger: one product per item and group, K over taps and then channels."""
        g = conv_geometry(x.shape, w.shape, **call.attributes)
        group = call.attributes["group"]
        x_zero = 0 if zx is None else int(np.asarray(zx).reshape(()))
        pads = [(0, 0), (0, 0), *zip(g.pads_begin, g.pads_end, strict=True)]
        padded = np.pad(x, pads, constant_values=x_zero)
        per_in, per_out = w.shape[1], w.shape[0] // group
        taps, places = math.prod(w.shape[2:]), math.prod(g.output)
        depth = taps * per_in
        weights = np.moveaxis(w.reshape(group, per_out, per_in, taps), (3, 2), (1, 2)).reshape(group, depth, per_out)
        acc = np.empty((x.shape[0], w.shape[0], places), np.int32)
        counts = np.zeros(w.shape[0], np.int64)
        w_zero = np.zeros(w.shape[0], np.int64) if zw is None else np.broadcast_to(np.asarray(zw), w.shape[0])
        columns = np.empty((places, taps, per_in), np.uint8)
        for item, index in np.ndindex(x.shape[0], group):
            channels = slice(index * per_in, (index + 1) * per_in)
            rows = slice(index * per_out, (index + 1) * per_out)
            for tap, at in enumerate(np.ndindex(*w.shape[2:])):
                slices = [
                    slice(t * d, t * d + (size - 1) * s + 1, s)
                    for t, s, d, size in zip(at, g.strides, g.dilations, g.output, strict=True)
                ]
                window = padded[(item, channels, *slices)]
                columns[:, tap] = window.reshape(per_in, places).T
            a, b = columns.reshape(places, depth), weights[index]
            product = self._rows(a, b, counts[rows], call)
            product -= wrap_int32(x_zero * b.sum(axis=0, dtype=np.int64))  # modulo 2^32, like all that follows
            zeros = w_zero[rows].astype(np.int64)
            if zeros.any():
                product = product - zeros * a.sum(axis=1, keepdims=True, dtype=np.int64) + depth * x_zero * zeros
                product = wrap_int32(product)
            acc[item, rows] = product.T
        self.record.add(call.name, x.shape[0] * places, depth, counts)
        return acc.reshape(x.shape[0], w.shape[0], *g.output)

    @staticmethod
    def _rows(a: Array, b: Array, counts: Array, call: Call) -> Array:
        return kernels.matmul_saturating(a, b, counts=counts, num_threads=call.num_threads)


def _saturates(a: Array, b: Array) -> bool:
    return bool(a.dtype == np.uint8 and b.dtype == np.int8)


def _depthwise(w: Array, attributes: dict[str, Any]) -> bool:
    """One channel in and out of each group: widened to 32 bits by every runtime."""
    return bool(w.shape[1] == 1 and attributes["group"] == w.shape[0] > 1)


def on_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose products in QDQ form of uint8 and int8 are operators on codes, where runtimes fuse them.

    A Conv takes the clamps and the QuantizeLinear behind it with it, as the fused kernel does, which rounds once. Only
    the outermost graph; bodies of If, Loop and Scan keep their float operators.
    """
    view = GraphView(model.graph)
    replaced: dict[str, onnx.NodeProto | None] = {}
    for product in quantized_products(view):
        if product.form == "qdq" and product.can_saturate and float_reason(product, view) is None:
            node = _replacement(product, view)
            if node is not None:
                replaced |= dict.fromkeys(_until(product, node.output[0], view))
                replaced[product.node.output[0]] = node
    if not replaced:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = [n for node in copy.graph.node if (n := replaced.get(next(iter(node.output), ""), node)) is not None]
    used = {name for node in nodes for name in node.input} | {value.name for value in copy.graph.output} | view.captured
    # weights that nothing reads any more are not dequantized
    left = [n for n in nodes if n.op_type != "DequantizeLinear" or n.output[0] in used]
    for node in left:
        bias = view.tensors.get(node.input[8]) if node.op_type == "QLinearConv" and len(node.input) > 8 else None
        if bias is not None and bias.data_type == onnx.TensorProto.FLOAT:
            node.input[8] = f"{node.output[0]}__bias"
            copy.graph.initializer.append(_bias_codes(bias, node, view))
    del copy.graph.node[:]
    copy.graph.node.extend(left)
    copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return copy


def _replacement(product: Product, view: GraphView) -> onnx.NodeProto | None:
    """The operator on codes, or None where scales do not let a sum of codes be taken."""
    node, left, right = product.node, product.a_dequantize, product.b_dequantize
    assert left is not None, "Bug: QDQ form without DequantizeLinear"
    assert right is not None, "Bug: QDQ form without DequantizeLinear"
    transpose = int(node.op_type == "Gemm" and bool(attribute_of(node, "transB", 0)))
    scales = [view.tensors.get(d.input[1]) for d in (left, right)]
    weight = view.tensors.get(product.b)
    if scales[0] is None or scales[1] is None or weight is None or math.prod(scales[0].dims) != 1:
        return None
    if math.prod(scales[1].dims) != 1:
        rank = len(weight.dims)
        axis = int(attribute_of(right, "axis", 1)) % rank
        if axis != (0 if node.op_type == "Conv" or transpose else rank - 1) or len(scales[1].dims) != 1:
            return None
    if numpy_helper.to_array(scales[0]).dtype != np.float32:
        return None
    operands = [name for d in (left, right) for name in (*d.input[:2], d.input[2] if len(d.input) > 2 else "")]
    bias = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "Conv":
        quantize = view.quantized_by(node.output[0])
        if (
            quantize is None
            or not all(operands)
            or len(quantize.input) < 3
            or not view.tensors.keys() >= {*quantize.input[1:]}
        ):
            return None
        codes = view.codes_of(bias)
        operands += [*quantize.input[1:3], bias if codes is None else codes.input[0]]
        new = helper.make_node("QLinearConv", operands, list(quantize.output), name=node.name)
        new.attribute.extend(node.attribute)
        return new
    new = helper.make_node("MatMul", [*operands, bias], list(node.output), name=node.name, domain=DOMAIN)
    new.attribute.append(helper.make_attribute("transpose_b", transpose))
    return new


def _bias_codes(bias: onnx.TensorProto, node: onnx.NodeProto, view: GraphView) -> onnx.TensorProto:
    """A float bias in units of the accumulator, as onnxruntime quantizes it for the fused kernel."""
    sx, sw = (numpy_helper.to_array(view.tensors[node.input[at]]) for at in (1, 4))
    values = numpy_helper.to_array(bias) / (sx.reshape(()) * sw)
    codes = np.clip(np.rint(values.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32)
    return numpy_helper.from_array(codes, node.input[8])


def _until(product: Product, value: str, view: GraphView) -> list[str]:
    """Outputs of the nodes behind a product, up to the one that gives ``value``: what its kernel does as well."""
    found, last = [], product.node.output[0]
    while last != value:
        reader = view.only_consumer(last)
        assert reader is not None, "Bug: a product that is not quantized was taken for one that is"
        last = reader.output[0]
        found.append(last)
    return found


def _class(kind: str, function: Callable[[Call], tuple[Array, ...]], num_threads: int | None) -> type[OpRun]:
    from onnx.reference.op_run import OpRun  # takes a while, and products alone do without

    class Operator(OpRun):
        """An operator of the engine's own domain."""

        op_domain = DOMAIN

        def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
            name = self.onnx_node.name or self.onnx_node.output[0]
            return function(Call(inputs, attributes, num_threads, name=name))

    Operator.__name__ = Operator.__qualname__ = kind
    return Operator
