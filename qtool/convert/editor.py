"""New nodes between old ones: what every conversion does to a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.convert.encoding import Encoding, plain_name
from qtool.plan.analysis import dims_of
from qtool.prepare.graph_edits import NameAllocator, constant_array


class Editor:
    """Adds nodes and constants to a model's graphs; each dequantized value is made once for each graph.

    Args:
        model: Changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self.names = NameAllocator(model)
        self._reals: dict[tuple[int, ir.Value, ir.Value, ir.Value | None, int, int], ir.Value] = {}

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        place: ir.Node,
        name: str,
        output: str,
        dtype: ir.DataType | None,
        shape: ir.Shape | None = None,
        attributes: Sequence[ir.Attr] = (),
        outputs: int = 1,
    ) -> ir.Node:
        """A node of ai.onnx in front of ``place``. ``name`` is taken as it is if it is that of ``place``."""
        own = name if name == place.name else self.names.node(name)
        node = ir.Node("", op_type, inputs, attributes, num_outputs=outputs, name=own)
        if name == place.name:
            node.doc_string = place.doc_string
            node.metadata_props.update(place.metadata_props)
        value = node.outputs[0]
        value.name = self.names.value(output)
        value.type = None if dtype is None else ir.TensorType(dtype)
        value.shape = None if shape is None else shape.copy()
        assert place.graph is not None, "Bug: a node outside of a graph"
        place.graph.insert_before(place, node)
        return node

    def real(self, codes: ir.Value, encoding: Encoding, reader: ir.Node) -> ir.Value:
        """Codes as floats, for a reader."""
        key = (id(reader.graph), codes, encoding.scale, encoding.zero_point, encoding.axis, encoding.block)
        if key not in self._reals:
            self._reals[key] = self._dequantize(codes, encoding, reader)
        return self._reals[key]

    def _dequantize(self, codes: ir.Value, encoding: Encoding, reader: ir.Node) -> ir.Value:
        base = plain_name(codes.name or "")
        attributes = []
        if not encoding.per_tensor:
            attributes.append(ir.AttrInt64("axis", encoding.axis))
        if encoding.block:
            attributes.append(ir.AttrInt64("block_size", encoding.block))
        inputs = [codes, encoding.scale, *([encoding.zero_point] if encoding.zero_point is not None else [])]
        assert isinstance(reader.graph, ir.Graph), "Bug: a node outside of a graph"
        producer = codes.producer()
        first = next(iter(reader.graph))
        place = first
        if producer is not None and producer.graph is reader.graph:
            place = producer  # the sort at the end puts it behind its inputs
        node = self.node(
            "DequantizeLinear",
            inputs,
            place=place,
            name=f"{base}_DequantizeLinear",
            output=f"{base}_dequantized",
            dtype=encoding.scale.dtype,
            shape=codes.shape,
            attributes=attributes,
        )
        if place is producer:
            reader.graph.remove(node)
            reader.graph.insert_after(producer, node)
        return node.outputs[0]

    def constant(self, graph: ir.Graph, base: str, array: npt.NDArray[Any], dtype: ir.DataType) -> ir.Value:
        """A new initializer."""
        name = self.names.value(base)
        tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
        graph.register_initializer(value)
        return value

    def row(self, scale: ir.Value) -> ir.Value:
        """A scale as DequantizeLinear takes it: a column of channels becomes a row of the same bits."""
        array = constant_array(scale)
        if array is None or array.ndim <= 1:
            return scale
        assert isinstance(scale.graph, ir.Graph), "Bug: a constant outside of a graph"
        flat = array.reshape(()) if array.size == 1 else array.reshape(-1)
        return self.constant(scale.graph, scale.name or "scale", flat, ir.DataType.FLOAT)

    def lazy(self, graph: ir.Graph, base: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A new initializer whose elements are made on saving."""
        name = self.names.value(base)
        tensor.name = name
        value = ir.Value(
            name=name, shape=ir.Shape(dims_of(tensor)), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        graph.register_initializer(value)
        return value
