"""The skip connection around a Conv, for runtimes that add it inside of the Conv if it is quantized (TensorRT).

The Conv's own result must stay float: a QuantizeLinear between it and the Add would keep the two apart.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.plan.ops.base import PlanContext, indexed
from qtool.plan.plan import Decision, Form


def residual_branch(node: ir.Node, ctx: PlanContext) -> Decision | None:
    """An Add that reads its skip connection quantized and a quantized Conv's result in float, or None.

    Args:
        node: Any node.
        ctx: The context, in which the products are decided.
    """
    if node.op_type != "Add" or len(node.inputs) != 2:
        return None
    if not all(ctx.activation(v) for v in node.inputs) or node.inputs[0] is node.inputs[1]:
        return None
    from_conv = [i for i, v in enumerate(node.inputs) if v is not None and _is_a_convs(v, node, ctx)]
    if not from_conv or _shape(node.inputs[0]) != _shape(node.inputs[1]):
        return None
    # where both sides are Convs (a projected skip connection), the later one is what the Add becomes part of
    skip = 1 - (from_conv[0] if len(from_conv) == 1 else _later(node, ctx))
    return Decision(node.name or "", node.op_type, Form.ELEMENTWISE, indexed([(skip, node.inputs[skip])]))


def _is_a_convs(value: ir.Value, reader: ir.Node, ctx: PlanContext) -> bool:
    producer = value.producer()
    if producer is None or producer.op_type != "Conv" or id(producer) not in ctx.decided:
        return False
    return ctx.graph.sole_consumer(value) is reader


def _later(node: ir.Node, ctx: PlanContext) -> int:
    order = {id(n): place for place, n in enumerate(ctx.graph.nodes)}
    places = [order[id(v.producer())] for v in node.inputs if v is not None]
    return places.index(max(places))


def _shape(value: ir.Value | None) -> tuple[str, ...] | None:
    """Dimensions as text; a sum inside of a Conv does not broadcast."""
    return None if value is None or value.shape is None else tuple(str(d) for d in value.shape)
