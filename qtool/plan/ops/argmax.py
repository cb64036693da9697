"""ArgMax: codes are ordered like the numbers that they stand for, ties included, so it needs no numbers."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import Decision, Form, Skip


class ArgMaxHandler(Handler):
    """Reads codes where they exist anyway; runtimes take the DequantizeLinear in front of it away.

    Quantizing a float for it would make ties where there were none, and another index.
    """

    op_types: ClassVar[tuple[str, ...]] = ("ArgMax",)
    phase: ClassVar[Phase] = Phase.FOLLOW

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        data = node.inputs[0]
        if not ctx.activation(data):
            return skip(node, "it works on integers or constants", expected=True)
        if not ctx.is_native(data):
            return skip(node, "its input exists in float; quantizing it could make another index", expected=True)
        return Decision(node.name or "", node.op_type, Form.ELEMENTWISE, indexed([(0, data)]))
