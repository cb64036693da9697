"""Embedding tables: Gather of an 8-bit table, and its rows back to float behind it."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qtool.dtypes import qdtype
from qtool.plan.analysis import MASK_MAGNITUDE, dims_of
from qtool.plan.dynamic.base import ACTIVATIONS, DynamicContext, DynamicHandler
from qtool.plan.ops.base import skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan
from qtool.plan.weights import weight_parameters

# elements below which a table (of positions, of rotations) is not what makes a file large
_MIN_ELEMENTS = 1 << 18


class GatherHandler(DynamicHandler):
    """One scale per row, whatever the type of other weights: words differ in magnitude by far."""

    op_types: ClassVar[tuple[str, ...]] = ("Gather",)

    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """See :meth:`DynamicHandler.plan`."""
        value = node.inputs[0]
        table = ctx.graph.constant(value)
        if table is None or table.dtype != ir.DataType.FLOAT:
            return skip(node, "it gathers activations or integers", expected=True)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if len(table.shape) != 2 or axis not in (0, -2) or math.prod(dims_of(table)) < _MIN_ELEMENTS:
            return skip(node, "it does not read rows of a large table", expected=True)
        assert value is not None
        if any(user.op_type != "Gather" for user, _ in value.uses()):
            return skip(node, "other operators read its table in float")
        array = ctx.graph.array(value)
        assert array is not None, "Bug: not a constant"
        if not np.isfinite(array).all() or np.abs(array).max() > MASK_MAGNITUDE:
            return skip(node, "its table is a mask (infinite or beyond 1e30), which no range can hold")
        planned = WeightPlan(value.name or "", 0, axis=0)
        params = weight_parameters(
            planned,
            value,
            ctx.graph,
            weights=qdtype("int8") if ctx.config.per_channel else ctx.weight_dtype,
            activations=qdtype(ACTIVATIONS),
            per_channel=ctx.config.per_channel,
            symmetric=False,
        )
        done = WeightPlan(planned.tensor, 0, 0, params=params)
        return Decision(node.name or "", node.op_type, Form.WEIGHT_ONLY, weights=(done,), note="a table of 8 bits")
