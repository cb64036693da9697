"""Relu and Clip that no producer absorbs."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import Decision, Form, Skip


class ClampHandler(Handler):
    """Between two quantized tensors of its own; saturation of the second one does the clamping where z == qmin."""

    op_types: ClassVar[tuple[str, ...]] = ("Relu", "Clip")
    phase: ClassVar[Phase] = Phase.FOLLOW

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        if not ctx.activation(node.inputs[0]):
            return skip(node, "it works on integers or constants", expected=True)
        if ctx.graph.clamp(node) is None:
            return skip(node, "its bounds are not constant")
        output = node.outputs[0]
        if not ctx.is_wanted(output):
            return skip(node, "no quantized operator wants its output", expected=True)
        if not self.passes_native(node, ctx):
            return skip(node, "its input exists in float; the QuantizeLinear behind it saturates", expected=True)
        return Decision(
            node.name or "",
            node.op_type,
            Form.ELEMENTWISE,
            indexed([(0, node.inputs[0])]),
            outputs=(output.name or "",),
        )

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """See :meth:`Handler.passes_native`."""
        return ctx.is_native(node.inputs[0])
