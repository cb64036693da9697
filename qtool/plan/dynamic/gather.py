"""Embedding tables in dynamic mode: as in static mode, with their parameters at once."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from qtool.dtypes import qdtype
from qtool.plan.dynamic.base import ACTIVATIONS, DynamicContext, DynamicHandler
from qtool.plan.plan import Decision, Skip
from qtool.plan.tables import table_decision
from qtool.plan.weights import weight_parameters


class GatherHandler(DynamicHandler):
    """One scale per row, whatever the type of other weights: words differ in magnitude by far."""

    op_types: ClassVar[tuple[str, ...]] = ("Gather",)

    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """See :meth:`DynamicHandler.plan`."""
        answer = table_decision(node, ctx.graph)
        if isinstance(answer, Skip):
            return answer
        value = node.inputs[0]
        assert value is not None, "Bug: a decision about no table"
        (weight,) = answer.weights
        params = weight_parameters(
            weight,
            value,
            ctx.graph,
            weights=qdtype("int8") if ctx.config.per_channel else ctx.weight_dtype,
            activations=qdtype(ACTIVATIONS),
            per_channel=ctx.config.per_channel,
            symmetric=False,
        )
        return replace(answer, weights=(replace(weight, params=params),))
