"""What a run of a model would take, from its shapes alone: known before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from qtool.calibrate.segments import ITEM_BYTES, SourceGraph, nodes_in_use


def live_bytes(source: SourceGraph, tensors: list[str], feeds: Mapping[str, npt.NDArray[Any]]) -> int | None:
    """Most bytes of activations that are needed at one time to compute some tensors, each dropped after its last use.

    It is a lower bound: what operators take inside, and copies, come on top.

    Args:
        source: The model.
        tensors: What is computed.
        feeds: Inputs of the shapes that are asked about.

    Returns:
        None if some shape cannot be inferred.
    """
    nodes = nodes_in_use(source.proto, set(tensors))
    sizes = _sizes(source, feeds)
    last_use = {name: index for index, (_, used) in enumerate(nodes) for name in used}
    live = {name: array.nbytes for name, array in feeds.items()}
    most = sum(live.values())
    for index, (node, _) in enumerate(nodes):
        for name in node.output:
            if name:
                if name not in sizes:
                    return None
                live[name] = sizes[name]
        most = max(most, sum(live.values()))
        live = {name: size for name, size in live.items() if last_use.get(name, -1) > index}
    return most


def _sizes(source: SourceGraph, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, int]:
    """Bytes of the values whose shapes follow from those of the feeds."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    graph = proto.graph
    del graph.value_info[:]  # remarks for other shapes
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for value in graph.input:
        if value.name in feeds:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in feeds[value.name].shape:
                shape.dim.add().dim_value = size
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # a model that it cannot take: not a fault, only nothing is known beforehand
        return {}
    sizes = {}
    for value in [*graph.value_info, *graph.output]:
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        if tensor.elem_type in ITEM_BYTES and tensor.HasField("shape") and min(dims, default=0) >= 0:
            size = ITEM_BYTES[tensor.elem_type]
            for dim in dims:
                size *= dim
            sizes[value.name] = size
    return sizes
