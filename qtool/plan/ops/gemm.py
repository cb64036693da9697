"""Gemm in its normal form (alpha = beta = 1, nothing transposed, constant row as bias): what prepare leaves."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import BiasPlan, Decision, Form, Skip, WeightPlan


class GemmHandler(Handler):
    """An integer product with an int32 bias; its output is quantized only where that is wanted."""

    op_types: ClassVar[tuple[str, ...]] = ("Gemm",)
    phase: ClassVar[Phase] = Phase.COMPUTE
    absorbs_clamps: ClassVar[bool] = True

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        a, b = node.inputs[0], node.inputs[1]
        c = node.inputs[2] if len(node.inputs) > 2 else None
        if ctx.graph.is_known_other_type(a) or ctx.graph.is_known_other_type(b):
            return skip(node, "its operands are not float32")
        if ctx.graph.constant(a) is not None:
            return skip(node, "both operands are constant" if ctx.graph.constant(b) is not None else "A is constant")
        weight = ctx.graph.constant(b)
        if weight is None:
            return skip(node, "its weight is not constant")
        if 0 in weight.shape:
            return skip(node, "its weight has no elements")
        odd = [
            name
            for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
            if name in node.attributes and node.attributes[name].value != default
        ]
        if odd:
            return skip(node, f"{', '.join(odd)} could not be normalized away")
        bias = None
        if c is not None:
            row = ctx.graph.constant(c)
            if row is None:
                return skip(node, "its bias is not constant")
            if len(row.shape) != 1 or row.shape[0] != weight.shape[1]:
                return skip(node, "its bias is not a row")
            bias = BiasPlan(c.name or "", node.name or "", 2)
        assert b is not None
        return Decision(
            node.name or "",
            node.op_type,
            Form.OPERATOR,
            indexed([(0, a)]),
            weights=(WeightPlan(b.name or "", 1, axis=1),),
            bias=bias,
        )
