"""Operators that the runtime computes on codes with different scales on both sides (QLinearAdd and its kin)."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan


class ElementwiseHandler(Handler):
    """Quantized only inside a region that exists quantized anyway (behind a Conv), never in a residual stream."""

    op_types: ClassVar[tuple[str, ...]] = (
        "Add", "Mul", "AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu", "Where",
    )  # fmt: skip
    phase: ClassVar[Phase] = Phase.FOLLOW
    absorbs_clamps: ClassVar[bool] = True

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        if any(ctx.graph.is_known_other_type(v) for _, v in _data(node)):
            return skip(node, "its operands are not float32", expected=True)
        output = node.outputs[0]
        if not ctx.is_wanted(output):
            return skip(node, "no quantized operator wants its output", expected=True)
        if ctx.graph.breaks_on_codes(node):
            return skip(node, "the runtime's integer form of it has no dilations")
        if not self.passes_native(node, ctx):
            return skip(node, "its inputs exist in float; quantizing them would only lose accuracy", expected=True)
        inputs: list[tuple[int, ir.Value | None]] = []
        weights: list[WeightPlan] = []
        for index, value in _data(node):
            if ctx.graph.constant(value) is None:
                inputs.append((index, value))
                continue
            operand = ctx.constant_operand(node, index)
            if isinstance(operand, str):
                return skip(node, operand)
            weights.append(operand)
        return Decision(
            node.name or "",
            node.op_type,
            Form.ELEMENTWISE,
            indexed(inputs),
            outputs=(output.name or "",),
            weights=tuple(weights),
        )

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """See :meth:`Handler.passes_native`: at least one activation exists quantized, and the others cost little.

        Little costs what a product reads anyway (the skip connection around a Conv), and a gate of one value a channel.
        """
        activations = [v for _, v in _data(node) if v is not None and ctx.graph.constant(v) is None]
        return any(ctx.is_native(v) for v in activations) and all(
            ctx.is_native(v) or v.name in ctx.read_by_products or _is_gate(v, ctx) for v in activations
        )


def _data(node: ir.Node) -> list[tuple[int, ir.Value | None]]:
    """The operands that hold numbers, with their positions: not the condition of a Where."""
    return [(i, v) for i, v in enumerate(node.inputs) if node.op_type != "Where" or i > 0]


def _is_gate(value: ir.Value | None, ctx: PlanContext) -> bool:
    """Whether a value has one element per channel (squeeze-and-excite): quantizing it costs next to nothing."""
    dims = ctx.graph.static_dims(value)
    return dims is not None and len(dims) > 2 and all(d == 1 for d in dims[2:])
