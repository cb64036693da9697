"""Division by a positive constant: on codes it is no work at all, only another scale.

If y = x / c, the codes of y under scale s are the codes of x under scale s*c. The node disappears: its producer writes
codes under s*c, and whoever reads them takes s. That is what makes x * clip(x + 3, 0, 6) / 6 (HardSwish, as exporters
write it out) computable without a single float operator.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, skip
from qtool.plan.plan import Decision, Skip

# operators whose output scale is free, so that they can write under another one
_PRODUCERS = frozenset(("Mul", "Add"))


class RescaleHandler(Handler):
    """Div by a constant; it is quantized as a part of its producer or not at all."""

    op_types: ClassVar[tuple[str, ...]] = ("Div",)
    phase: ClassVar[Phase] = Phase.FOLLOW

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`: what reaches this point is not part of another node."""
        del ctx
        return skip(node, "the runtime has no integer form of it", expected=True)

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """See :meth:`Handler.passes_native`."""
        return absorbing_producer(node, ctx) is not None


def rescale_factor(node: ir.Node, ctx: PlanContext) -> float | None:
    """C of y = x / c, if the node is a division of an activation by one positive constant."""
    if node.op_type != "Div" or not ctx.activation(node.inputs[0]):
        return None
    divisor = ctx.graph.scalar(node.inputs[1])
    if divisor is None or not math.isfinite(divisor) or divisor <= 0.0:
        return None
    # a scale times c must stay an ordinary float32
    return divisor if 2.0**-20 <= divisor <= 2.0**20 and np.float32(divisor) == divisor else None


def absorbing_producer(node: ir.Node, ctx: PlanContext) -> ir.Node | None:
    """The elementwise operator that a division can become part of: it is native, and only the division reads it."""
    if rescale_factor(node, ctx) is None:
        return None
    divided = node.inputs[0]
    producer = divided.producer() if divided is not None else None
    if divided is None or producer is None or producer.op_type not in _PRODUCERS or not ctx.is_native(divided):
        return None
    rank, divisor = ctx.graph.rank(divided), ctx.graph.constant(node.inputs[1])
    if divisor is not None and len(divisor.shape) > (rank or 0):
        return None  # the division would raise the rank
    return producer if ctx.graph.sole_consumer(divided) is node else None
