"""ConvTranspose: no runtime fuses it, so only its weights are stored quantized."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan


class ConvTransposeHandler(Handler):
    """8-bit weights behind a DequantizeLinear, per output channel (axis 1) or per tensor when grouped."""

    op_types: ClassVar[tuple[str, ...]] = ("ConvTranspose",)
    phase: ClassVar[Phase] = Phase.COMPUTE

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        w = node.inputs[1]
        weight = ctx.graph.constant(w)
        if weight is None:
            return skip(node, "its weight is not constant")
        if weight.dtype != ir.DataType.FLOAT:
            return skip(node, "its operands are not float32")
        if 0 in weight.shape:
            return skip(node, "its weight has no elements")
        assert w is not None
        group = node.attributes["group"].as_int() if "group" in node.attributes else 1
        return Decision(
            node.name or "",
            node.op_type,
            Form.WEIGHT_ONLY,
            # with groups, axis 1 counts the channels of one group only: a scale per index of it is not one per channel
            weights=(WeightPlan(w.name or "", 1, axis=1 if group == 1 else None),),
            note="weights only: no runtime computes it on integers",
        )
