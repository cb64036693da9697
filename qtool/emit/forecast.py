"""How large a model will be, before its weights are made: every tensor knows its size, and the rest is written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from qtool.prepare.graph_edits import all_graphs

_STEPS = 8  # nodes between a quantizer and the operator that it belongs to
_TAG = 1  # bytes of a field's number and wire type, for fields below 16


@dataclass(frozen=True)
class Forecast:
    """Sizes of a model that is not written yet.

    Attributes:
        file_bytes: Of the file, its external data included.
        initializer_bytes: Of the data of all initializers, which is most of it.
        by_node: Node -> bytes of the initializers that belong to it, each counted once, at its first reader.
    """

    file_bytes: int
    initializer_bytes: int
    by_node: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, int]:
        """JSON-ready."""
        return {"file_bytes": self.file_bytes, "initializer_bytes": self.initializer_bytes}


def constant_bytes(model: ir.Model, known: Mapping[ir.Node, str]) -> dict[str, int]:
    """Node -> bytes of the initializers that it reads first; a node that is not known counts for one that is.

    Args:
        model: Read, not changed.
        known: Nodes and what they are called.
    """
    found: dict[str, int] = {}
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            uses = list(value.uses())
            if value.const_value is None or not uses:
                continue
            owner = next((name for user, _ in uses if (name := _owner(user, known)) is not None), "")
            found[owner] = found.get(owner, 0) + value.const_value.nbytes
    return found


def _owner(node: ir.Node, known: Mapping[ir.Node, str]) -> str | None:
    """The node that a quantizer belongs to: what reads a DequantizeLinear, what a QuantizeLinear is behind.

    Other nodes that were added are named after the one that they belong to.
    """
    if node in known:
        return known[node]
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        names, name = frozenset(known.values()), node.name or ""
        while "_" in name:
            name = name.rpartition("_")[0]
            if name in names:
                return name
    frontier = [node]
    for _ in range(_STEPS):
        for one in frontier:
            if one in known:
                return known[one]
        frontier = [user for one in frontier for o in one.outputs for user, _ in o.uses()]
    producers = [v.producer() for v in node.inputs if v is not None]
    return next((known[p] for p in producers if p is not None and p in known), None)


def forecast(model: ir.Model, known: Mapping[ir.Node, str], metadata: Mapping[str, str]) -> Forecast:
    """Sizes of an emitted model, whose weights are not made for it.

    Args:
        model: What an emitter returned; it is spent afterwards.
        known: Nodes that initializers are counted for, and what they are called.
        metadata: What will be added to the model's metadata.
    """
    import onnx

    by_node = constant_bytes(model, known)
    data = tensors = 0
    for graph in all_graphs(model):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None:
                continue
            dims = [d for d in tensor.shape if isinstance(d, int)]
            empty = onnx.TensorProto(name=value.name, dims=dims, data_type=int(tensor.dtype)).ByteSize()
            size = empty + _TAG + _varint(tensor.nbytes) + tensor.nbytes
            data += tensor.nbytes
            tensors += _TAG + _varint(size) + size
            if not value.is_graph_output() and not value.is_graph_input():
                remark = ir.serde.serialize_value(value).ByteSize()  # on its type, as on any other value's
                tensors += _TAG + _varint(remark) + remark
            del graph.initializers[value.name or ""]
    for key, text in metadata.items():
        model.metadata_props[key] = text
    skeleton = ir.to_proto(model)
    graph_bytes = skeleton.graph.ByteSize()
    longer = _varint(graph_bytes + tensors) - _varint(graph_bytes)
    return Forecast(skeleton.ByteSize() + tensors + longer, data, by_node)


def _varint(number: int) -> int:
    """Bytes of a number in protobuf's variable-length coding."""
    return max(1, -(-number.bit_length() // 7))
