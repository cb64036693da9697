"""Serialize a model without its weights, for the C++ functions of onnx that want a whole ModelProto.

Shape inference and version conversion look at small constants (shapes, axes, scales) and never at weights; copying
those twice through protobuf would cost their size in memory and fails above 2 GB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx

SMALL_BYTES = 1024


def light_proto(model: ir.Model) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """The model as protobuf, with each large initializer of the top graph declared as a graph input instead.

    Args:
        model: Unchanged when this returns or raises.

    Returns:
        The protobuf, and the initializers that it does not hold, in order.
    """
    graph = model.graph
    everything = list(graph.initializers.values())
    heavy = [v for v in everything if v.const_value is not None and v.const_value.nbytes > SMALL_BYTES]
    heavy = [v for v in heavy if not v.is_graph_input() and not v.is_graph_output()]
    for value in heavy:
        assert value.name is not None
        del graph.initializers[value.name]
    try:
        proto = ir.to_proto(model)
    finally:
        graph.initializers.clear()
        for value in everything:
            graph.initializers.add(value)  # register_initializer would refuse one without data
    for value in heavy:
        assert value.const_value is not None
        info = proto.graph.input.add()
        info.name = value.name or ""
        tensor_type = info.type.tensor_type
        tensor_type.elem_type = int(value.const_value.dtype)
        tensor_type.shape.SetInParent()
        for size in value.const_value.shape.numpy():
            tensor_type.shape.dim.add().dim_value = size
    return proto, heavy
