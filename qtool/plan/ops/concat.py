"""Concat: codes are moved where one scale fits all inputs, and requantized where their ranges differ."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import Decision, Form, Skip

# ratio of the inputs' magnitudes above which one scale would starve the smaller one of codes, and above which even the
# output's single scale would (pixel boxes beside probabilities)
SHARED_RATIO = 4.0
FLOAT_RATIO = 64.0


class ConcatHandler(Handler):
    """See the module."""

    op_types: ClassVar[tuple[str, ...]] = ("Concat",)
    phase: ClassVar[Phase] = Phase.FOLLOW

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        if not all(ctx.activation(v) for v in node.inputs):
            return skip(node, "it joins integers or constants", expected=True)
        output = node.outputs[0]
        if not ctx.is_wanted(output):
            return skip(node, "no quantized operator wants its output", expected=True)
        if not self.passes_native(node, ctx) and not ctx.all_readers_quantized(output):
            return skip(node, "its inputs exist in float; quantizing them would only lose accuracy", expected=True)
        ratio = _ratio(node, ctx)
        if ratio > FLOAT_RATIO:
            return skip(node, f"the ranges of its inputs differ by a factor of {ratio:.3g}; one scale cannot hold them")
        shared = ratio <= SHARED_RATIO and node.name not in ctx.separate_joins
        form = Form.MOVER if shared else Form.ELEMENTWISE
        return Decision(
            node.name or "",
            node.op_type,
            form,
            indexed(list(enumerate(node.inputs))),
            outputs=(output.name or "",),
        )

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """See :meth:`Handler.passes_native`."""
        return all(ctx.is_native(v) for v in node.inputs)


def _ratio(node: ir.Node, ctx: PlanContext) -> float:
    """Largest over smallest magnitude of the inputs that are not all zero; 1 without statistics."""
    if ctx.statistics is None:
        return 1.0
    sizes = []
    for value in node.inputs:
        seen = ctx.statistics.get(value.name or "") if value is not None else None
        if seen is not None and seen.finite:
            sizes.append(max(abs(seen.minimum), abs(seen.maximum)))
    sizes = [s for s in sizes if s > 0.0]
    return max(sizes) / min(sizes) if sizes else 1.0
