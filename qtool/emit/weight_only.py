"""Weight-only form: a DequantizeLinear before each float operator with a stored weight, or an operator with its own.

Codes, scales and zero points, and the nodes that dequantize them, are in the graph that had the weight, one set for
each weight: onnxruntime (1.32) does not load a model in which a body dequantizes codes of the graph around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from qtool import kernels
from qtool.dtypes import qdtype
from qtool.emit.constants import Constants
from qtool.granularity import PerAxis, PerBlock
from qtool.plan import Plan
from qtool.plan.analysis import dims_of
from qtool.plan.scopes import constant_tensor, scoped_nodes
from qtool.plan.stored import Layout, StoredWeight
from qtool.prepare.graph_edits import (
    ORIGIN_KEY,
    NameAllocator,
    input_at,
    is_onnx_op,
    sole_consumer,
    take_over,
)
from qtool.weights import codes_of

_MICROSOFT = "com.microsoft"
# Activations in blocks of int8: what onnxruntime sets itself where it makes a MatMulNBits of a DequantizeLinear.
_ACCURACY_LEVEL = 4


def emit_weight_only(model: ir.Model, plan: Plan) -> ir.Model:
    """Write a plan of weight-only mode as nodes.

    Args:
        model: The prepared model that the plan was made for; it is not changed.
        plan: A plan with parameters.

    Returns:
        A new model. Its quantized weights are lazy: their bytes are produced while it is saved.
    """
    return _Rewriter(model.clone(), plan).run()


class _Rewriter:
    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self.names = NameAllocator(model)
        self._constants: dict[int, Constants] = {}
        self._dequantized: dict[tuple[Any, ...], ir.Value] = {}
        self._replaced: dict[ir.Value, None] = {}
        self._kept: list[ir.TensorProtocol] = []  # what a key names by its id must live as long as the key

    def run(self) -> ir.Model:
        nodes = dict(scoped_nodes(self.model.graph))
        for decision in self.plan.decisions:
            for weight in decision.weights:
                assert isinstance(weight, StoredWeight), "Bug: not a plan of weight-only mode"
                node = nodes[decision.node]
                self._replaced[_source(node, weight)] = None
                self._store(node, weight)
        self._drop_replaced()
        common_passes.RemoveUnusedNodesPass()(self.model)
        common_passes.TopologicalSortPass()(self.model)
        for node in self.model.graph.all_nodes():
            node.metadata_props.pop(ORIGIN_KEY, None)
        return self.model

    def _drop_replaced(self) -> None:
        """Remove weights that nobody reads any more; the pass for unused nodes only looks at the top graph's."""
        for value in self._replaced:
            home = value.graph
            unread = value.is_initializer() and not value.uses() and not value.is_graph_output()
            if unread and isinstance(home, ir.Graph):
                del home.initializers[value.name or ""]

    def _store(self, node: ir.Node, weight: StoredWeight) -> None:
        if weight.layout is Layout.NBITS:
            self._product(node, weight)
        elif weight.layout is Layout.NBITS_ROWS:
            self._block_gather(node, weight)
        elif weight.layout is Layout.ROWS:
            self._gather(node, weight)
        else:
            node.replace_input_with(weight.index, self._dequantize(node, weight))
            if node.op_type == "MatMul" and weight.index == 1 and len(weight.shape) == 2:
                self._flatten_bias(node, weight.shape[1])

    def _flatten_bias(self, node: ir.Node, columns: int) -> None:
        """Make a row of a bias of shape (1, .., N) that is added to a product.

        onnxruntime (1.32) makes a Gemm of the two, and a MatMulNBits of that only where the bias is a row.
        """
        add = sole_consumer(node.outputs[0])
        if not is_onnx_op(add, "Add"):
            return
        assert add is not None, "Bug: nothing is an Add"
        index = 1 if add.inputs[0] is node.outputs[0] else 0
        bias = constant_tensor(add.inputs[index])
        shape, output = None if bias is None else tuple(dims_of(bias)), node.outputs[0].shape
        if bias is None or shape is None or len(shape) < 2 or shape[-1] != columns or any(d != 1 for d in shape[:-1]):
            return
        if output is None or len(output) < len(shape):  # the Add raises the rank: a row would not
            return
        self._kept.append(bias)
        source = add.inputs[index]
        assert source is not None, "Bug: it has a tensor"
        row = self._home(source).add(
            ("row", id(bias)), f"{source.name}_row", lambda: bias.numpy().reshape(columns), bias.dtype, shape=(columns,)
        )
        add.replace_input_with(index, row)

    # ---------------------------------------------------------------------------------------------- ai.onnx operators

    def _dequantize(self, node: ir.Node, weight: StoredWeight) -> ir.Value:
        """The float form of a weight, computed once, in the graph that had it."""
        source = _source(node, weight)
        constants, home = self._home(source), _home_of(source)
        key = self._key(node, weight)
        if key in self._dequantized:
            return self._dequantized[key]
        base, dtype = weight.tensor, _tensor(source).dtype
        inputs = [self._codes(node, weight), *self._parameters(node, weight)]
        attributes = _attributes(weight)
        if weight.scale_type is not None:  # otherwise the result has the type of the scale
            attributes["output_dtype"] = int(dtype)
        place = node if node.graph is home else next(iter(home))
        real = self._node(place, "DequantizeLinear", inputs, f"{base}_DequantizeLinear", dtype, attributes)
        if weight.layout is Layout.FLAT:
            shape = constants.add(
                ("shape", weight.shape),
                f"{base}_shape",
                lambda: np.asarray(weight.shape, np.int64),
                ir.DataType.INT64,
            )
            real = self._node(place, "Reshape", [real, shape], f"{base}_Reshape", dtype)
        elif weight.layout is Layout.TRANSPOSED:
            real = self._node(place, "Transpose", [real], f"{base}_Transpose", dtype, {"perm": [1, 0]})
        real.shape = ir.Shape(weight.shape)
        self._dequantized[key] = real
        return real

    def _gather(self, node: ir.Node, weight: StoredWeight) -> None:
        """Rows of codes, and of their scales, then DequantizeLinear: a runtime never dequantizes the whole table."""
        indices = node.inputs[1]
        dtype = _tensor(_source(node, weight)).dtype
        parameters = self._parameters(node, weight)
        codes = self._codes(node, weight)
        base, name, axis = node.name or node.op_type, node.name, {"axis": 0}
        node.name = None
        rows = self._node(node, "Gather", [codes, indices], base, codes.dtype, axis, name=name)
        rows.shape = node.outputs[0].shape
        taken, attributes = list(parameters), {}
        if isinstance(weight.granularity, PerBlock):
            taken = [self._node(node, "Gather", [p, indices], f"{base}_{p.name}", p.dtype, axis) for p in parameters]
            # a vector with one scale is no block but a tensor, which takes no block size
            if not (weight.has_one_scale_per_row and indices is not None and indices.shape == ir.Shape([])):
                attributes = {"axis": -1, "block_size": weight.granularity.size}
        real = self._node(node, "DequantizeLinear", [rows, *taken], f"{base}_DequantizeLinear", dtype, attributes)
        self._replace(node, real)

    # -------------------------------------------------------------------------------------- operators of onnxruntime

    def _product(self, node: ir.Node, weight: StoredWeight) -> None:
        block, bits = _block_and_bits(weight)
        packed, scale, *zeros = self._packed(node, weight)
        bias = input_at(node, 2) if node.op_type == "Gemm" else None
        inputs = [node.inputs[0], packed, scale, *zeros]
        if bias is not None:
            inputs += [*[None] * (5 - len(inputs)), bias]
        k, n = weight.shape
        attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": _ACCURACY_LEVEL}
        self._own_operator(node, "MatMulNBits", inputs, attributes)

    def _block_gather(self, node: ir.Node, weight: StoredWeight) -> None:
        block, bits = _block_and_bits(weight)
        packed, *parameters = self._packed(node, weight)
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": bits}
        self._own_operator(node, "GatherBlockQuantized", [packed, node.inputs[1], *parameters], attributes)

    def _own_operator(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, int]
    ) -> None:
        """Replace a node by an operator of onnxruntime that has its name."""
        self.model.graph.opset_imports.setdefault(_MICROSOFT, 1)
        old, name = node.outputs[0], node.name
        node.name = None
        value = self._node(node, op_type, inputs, name or op_type, old.dtype, attributes, name=name, domain=_MICROSOFT)
        value.shape = old.shape
        self._replace(node, value)

    def _packed(self, node: ir.Node, weight: StoredWeight) -> list[ir.Value]:
        """Codes, scales and zero points as both operators want them: unsigned, several to a byte, a row at a time."""
        params, array = weight.params, _tensor(_source(node, weight))
        assert params is not None, "Bug: a stored weight without parameters"
        block, bits = _block_and_bits(weight)
        unsigned = qdtype(f"uint{bits}")
        rows, length = weight.shape if weight.layout is Layout.NBITS_ROWS else weight.shape[::-1]
        count = -(-length // block)
        key, product = self._key(node, weight), weight.layout is Layout.NBITS

        def codes() -> npt.NDArray[np.uint8]:
            offset = 0 if params.dtype.kind == "uint" else 1 << (bits - 1)
            raw = codes_of(weight.arranged(array.numpy()), params).astype(np.int16) + offset
            if product:  # blocks are whole there; what is past the end is multiplied by 0
                raw = np.pad(raw, ((0, 0), (0, count * block - length)))
            packed = kernels.pack(raw.astype(np.uint8).astype(unsigned.numpy), unsigned)
            return packed.reshape((rows, count, -1) if product else (rows, -1))

        def zeros() -> npt.NDArray[np.uint8]:
            per_byte = 8 // bits
            raw = np.pad(params.zero_point.astype(np.uint8), ((0, 0), (0, -count % per_byte)))
            return kernels.pack(raw.astype(unsigned.numpy), unsigned).reshape(rows, -1)

        shape = (rows, count, block * bits // 8) if product else (rows, length * bits // 8)
        base, constants = weight.tensor, self._home(_source(node, weight))
        values = [
            constants.add((*key, "codes"), f"{base}_quantized", codes, ir.DataType.UINT8, shape=shape),
            constants.add((*key, "scale"), f"{base}_scale", lambda: params.scale, array.dtype),
        ]
        if weight.has_zero_points:
            values.append(constants.add((*key, "zeros"), f"{base}_zero_point", zeros, ir.DataType.UINT8))
        return values

    # ------------------------------------------------------------------------------------------------------ small parts

    def _home(self, source: ir.Value) -> Constants:
        """Where the constants go that stand for another one: into its graph."""
        graph = _home_of(source)
        return self._constants.setdefault(id(graph), Constants(graph, self.names))

    def _key(self, node: ir.Node, weight: StoredWeight) -> tuple[Any, ...]:
        """What tells a stored weight from all others; its name would not, bodies may repeat names."""
        tensor = _tensor(_source(node, weight))
        self._kept.append(tensor)
        return (id(tensor), weight.layout, weight.granularity, weight.params)

    def _codes(self, node: ir.Node, weight: StoredWeight) -> ir.Value:
        params, tensor = weight.params, _tensor(_source(node, weight))
        assert params is not None, "Bug: a stored weight without parameters"
        shape = weight.shape
        if weight.layout is Layout.FLAT:
            shape = (shape[0], int(np.prod(shape[1:])))
        elif weight.layout is Layout.TRANSPOSED:
            shape = shape[::-1]
        return self._home(_source(node, weight)).add(
            (*self._key(node, weight), "codes"),
            f"{weight.tensor}_quantized",
            lambda: codes_of(weight.arranged(tensor.numpy()), params),
            ir.DataType(params.dtype.onnx),
            shape=shape,
        )

    def _parameters(self, node: ir.Node, weight: StoredWeight) -> list[ir.Value]:
        """Scale and, where it is stored, zero point."""
        params, base, key = weight.params, weight.tensor, self._key(node, weight)
        assert params is not None, "Bug: a stored weight without parameters"
        dtype = _tensor(_source(node, weight)).dtype
        if weight.scale_type is not None:
            dtype = ir.DataType(weight.scale_type.onnx)
        constants = self._home(_source(node, weight))
        values = [constants.add((*key, "scale"), f"{base}_scale", lambda: params.scale, dtype)]
        if weight.has_zero_points:
            zero_type = ir.DataType(params.dtype.onnx)
            values.append(constants.add((*key, "zero"), f"{base}_zero_point", lambda: params.zero_point, zero_type))
        return values

    def _node(
        self,
        reader: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        base: str,
        dtype: ir.DataType | None,
        attributes: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        domain: str = "",
    ) -> ir.Value:
        """A new node before ``reader``, in its graph; returns its output."""
        kind = None if dtype is None else ir.TensorType(dtype)
        output = ir.Value(name=self.names.value(f"{base}_output"), type=kind)
        node = ir.node(
            op_type, inputs, attributes or {}, domain=domain, outputs=[output], name=name or self.names.node(base)
        )
        _graph_of(reader).insert_before(reader, node)
        return output

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Let a value stand where the node's output stood, under its name."""
        maker = value.producer()
        assert maker is not None, "Bug: a value without a node"
        maker.doc_string = node.doc_string
        take_over(value, node.outputs[0])
        _graph_of(node).remove(node, safe=True)


def _attributes(weight: StoredWeight) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if isinstance(weight.granularity, PerAxis):
        attributes["axis"] = weight.granularity.axis
    elif isinstance(weight.granularity, PerBlock):
        attributes |= {"axis": weight.granularity.axis, "block_size": weight.granularity.size}
    return attributes


def _block_and_bits(weight: StoredWeight) -> tuple[int, int]:
    assert isinstance(weight.granularity, PerBlock), "Bug: no blocks"
    assert weight.dtype is not None, "Bug: a stored weight without a type"
    return weight.granularity.size, weight.dtype.bits


def _source(node: ir.Node, weight: StoredWeight) -> ir.Value:
    value = node.inputs[weight.index]
    assert value is not None, "Bug: a planned weight is missing"
    return value


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    tensor = constant_tensor(value)
    assert tensor is not None, "Bug: a planned weight is not constant"
    return tensor


def _home_of(source: ir.Value) -> ir.Graph:
    """The graph of an initializer or of a Constant node."""
    maker = source.producer()
    graph = source.graph if maker is None else maker.graph
    assert isinstance(graph, ir.Graph), "Bug: a constant outside of any graph"
    return graph


def _graph_of(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph), "Bug: a node outside of any graph"
    return node.graph
