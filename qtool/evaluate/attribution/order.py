"""A quantized graph in an order that can be cut into segments.

Writers put the DequantizeLinear nodes of all weights first; cut into segments, the first one would hand every weight on
as floats, and nothing behind it would be fused. Here each DequantizeLinear stands before the node that reads it, one
for each reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtool.evaluate.attribution.graph import is_op, values_read

if TYPE_CHECKING:
    import onnx


def sink_dequantizers(proto: onnx.ModelProto) -> None:
    """Reorder the top graph in place; names of values that are read through a DequantizeLinear may change."""
    import onnx

    graph = proto.graph
    outputs = {value.name for value in graph.output}
    movable = {
        node.output[0]: node for node in graph.node if is_op(node, "DequantizeLinear") and node.output[0] not in outputs
    }
    in_bodies = {
        name for node in graph.node for name in values_read(node) if name in movable and name not in node.input
    }
    for name in in_bodies:
        del movable[name]
    ordered: list[onnx.NodeProto] = []
    copies: dict[str, int] = {}
    for node in graph.node:
        if node.output and node.output[0] in movable:
            continue
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        for name in dict.fromkeys(n for n in node.input if n in movable):
            copies[name] = copies.get(name, -1) + 1
            dequantize = onnx.NodeProto()
            dequantize.CopyFrom(movable[name])
            if copies[name]:
                dequantize.name = f"{dequantize.name}:{copies[name]}"
                dequantize.output[0] = f"{name}:{copies[name]}"
                for index, read in enumerate(kept.input):
                    if read == name:
                        kept.input[index] = dequantize.output[0]
            ordered.append(dequantize)
        ordered.append(kept)
    del graph.node[:]
    graph.node.extend(ordered)
