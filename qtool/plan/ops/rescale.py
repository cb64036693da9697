"""Division or multiplication by a positive constant: on codes it is no work at all, only another scale.

If y = x / c, the codes of y under scale s are the codes of x under scale s*c. The node disappears: its producer writes
codes under s*c, and whoever reads them takes s. That is what makes x * clip(x + 3, 0, 6) / 6 (HardSwish, as exporters
write it out) computable without a single float operator. A multiplication is the same with 1/c, and saves a
rounding: two grids with as many codes over the same values agree nowhere.
"""

from __future__ import annotations

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
    """C of y = x / c, if the node divides or multiplies an activation by one positive constant."""
    constant = {"Div": (1,), "Mul": (0, 1)}.get(node.op_type, ())
    for index in constant:
        number = ctx.graph.scalar(node.inputs[index])
        if number is None or not ctx.activation(node.inputs[1 - index]):
            continue
        # a scale times c must stay an ordinary float32
        if not 2.0**-20 <= number <= 2.0**20 or np.float32(number) != number:
            return None
        return number if node.op_type == "Div" else 1.0 / number
    return None


def absorbing_producer(node: ir.Node, ctx: PlanContext) -> tuple[ir.Node, list[ir.Node]] | None:
    """The elementwise operator that a rescaling node can become part of, and all that becomes part of it, in order.

    The operator is native, and only the rescaling reads it; a chain of such nodes is taken as far up as possible.
    """
    found: tuple[ir.Node, list[ir.Node]] | None = None
    chain: list[ir.Node] = []
    at: ir.Node | None = node
    while at is not None and rescale_factor(at, ctx) is not None:
        data = _data(at, ctx)
        constant = ctx.graph.constant(next(v for v in at.inputs if v is not data))
        if constant is not None and len(constant.shape) > (ctx.graph.rank(data) or 0):
            break  # it would raise the rank
        if data is None or not ctx.is_native(data) or ctx.graph.sole_consumer(data) is not at:
            break
        chain.insert(0, at)
        at = data.producer()
        if at is not None and at.op_type in _PRODUCERS and ctx.graph.is_default_domain(at):
            found = at, list(chain)
    return found


def _data(node: ir.Node, ctx: PlanContext) -> ir.Value | None:
    """The activation that a rescaling node reads."""
    return next((v for v in node.inputs if ctx.activation(v)), None)
