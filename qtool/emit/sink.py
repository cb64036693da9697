"""Move codes instead of floats where a DequantizeLinear is followed by an operator that only moves data.

onnxruntime does so itself, and (version 1.32, opset 21 and above, int8 activations) ends up with a model that it then
refuses: it inserts a QuantizeLinear whose output_dtype is INT8 and later turns its zero point into uint8. Where the
operator reads codes already, there is nothing for it to do. The values are the same to the last bit.
"""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from qtool.prepare.graph_edits import NameAllocator

# those that onnxruntime pushes a DequantizeLinear through
_MOVERS = frozenset(("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice"))


def sink_dequantizers(graph: ir.Graph, names: NameAllocator) -> None:
    """Put every DequantizeLinear of an activation behind the data movers of the top graph that read it."""
    waiting = deque(node for node in graph if node.op_type == "DequantizeLinear" and not _is_constant(node.inputs[0]))
    while waiting:
        dequantize = waiting.popleft()
        for reader, index in list(dequantize.outputs[0].uses()):
            if index == 0 and reader.graph is graph and reader.domain == "" and _moves_only(reader):
                waiting.append(_swap(dequantize, reader, graph, names))


def _swap(dequantize: ir.Node, mover: ir.Node, graph: ir.Graph, names: NameAllocator) -> ir.Node:
    """DequantizeLinear -> mover becomes mover -> DequantizeLinear; returns the new DequantizeLinear."""
    codes, (out,) = dequantize.inputs[0], mover.outputs[:1]
    assert codes is not None, "Bug: a DequantizeLinear of nothing"
    name = out.name
    moved = ir.Value(name=names.value(f"{name}_quantized"), type=codes.type, shape=out.shape)
    onto = ir.node(mover.op_type, [codes, *mover.inputs[1:]], outputs=[moved], name=mover.name)
    for attribute in mover.attributes.values():
        onto.attributes.add(attribute)
    onto.doc_string = mover.doc_string
    real = ir.Value(type=out.type, shape=out.shape, doc_string=out.doc_string)
    after = ir.node(
        "DequantizeLinear",
        [moved, *dequantize.inputs[1:]],
        outputs=[real],
        name=names.node(f"{name}_DequantizeLinear"),
    )
    graph.insert_after(mover, [onto, after])
    out.replace_all_uses_with(real, replace_graph_outputs=True)
    real.metadata_props.update(out.metadata_props)
    out.name = None
    graph.remove(mover, safe=True)
    real.name = name
    return after


def _moves_only(node: ir.Node) -> bool:
    """Whether a node moves data between floats, and nothing reads what else it computes (the indices of a MaxPool)."""
    if node.op_type not in _MOVERS or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    # in front of a QuantizeLinear it is quantized already, in the form that runtimes look for
    return not any(user.op_type == "QuantizeLinear" for user, _ in node.outputs[0].uses())


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or value.is_initializer()
