"""Conv as ConvInteger, where that pays.

onnxruntime (1.32) computes ConvInteger as im2col and an integer product, with a Cast, a Mul and an Add of their own
behind it, and nothing fuses; its float Conv is blocked and takes bias and Relu along. Measured float / ConvInteger on
one and two threads: 0.2 depthwise, 0.5 to 0.9 in 2-D and 3-D, 0.6 to 1.1 in 1-D, 1.4 in 1-D with thousands of products
per output. With int8 weights ConvInteger is four times slower than with uint8 ones.
"""

from __future__ import annotations

import math
from typing import ClassVar

import onnx_ir as ir

from qtool.dtypes import qdtype
from qtool.plan.analysis import dims_of
from qtool.plan.dynamic.base import ACTIVATIONS, DynamicContext, DynamicHandler, float_type
from qtool.plan.ops.base import indexed, skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan
from qtool.plan.weights import weight_parameters

_MIN_PRODUCTS = 4096
_WEIGHTS = "uint8"


class ConvHandler(DynamicHandler):
    """uint8 weights around 128, which hold the same values as int8 ones; a Conv that --include names need not pay."""

    op_types: ClassVar[tuple[str, ...]] = ("Conv",)

    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """See :meth:`DynamicHandler.plan`."""
        x, w = node.inputs[0], node.inputs[1]
        weight = ctx.graph.constant(w)
        if weight is None:
            return skip(node, "its weight is not constant")
        if ctx.graph.constant(x) is not None:
            return skip(node, "its input is constant")
        if weight.dtype != ir.DataType.FLOAT or float_type(ctx, x) not in (ir.DataType.FLOAT, None):
            return skip(node, "its operands are not float32")
        if 0 in weight.shape:
            return skip(node, "its weight has no elements")
        if not 3 <= len(weight.shape) <= 5:
            return skip(node, f"it has {len(weight.shape) - 2} spatial dimensions; integer Convs have 1 to 3")
        pays = len(weight.shape) == 3 and math.prod(dims_of(weight)[1:]) >= _MIN_PRODUCTS
        if not pays and not ctx.selection.names(node):
            return skip(
                node, "the runtime's ConvInteger is slower than its float Conv; --include quantizes it all the same"
            )
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and ctx.graph.constant(bias) is None:
            return skip(node, "its bias is not constant")
        assert w is not None
        planned = WeightPlan(w.name or "", 1, axis=0)
        params = weight_parameters(
            planned,
            w,
            ctx.graph,
            weights=qdtype(_WEIGHTS),
            activations=qdtype(ACTIVATIONS),
            per_channel=ctx.config.per_channel,
            symmetric=False,
        )
        note = None if ctx.config.weights == _WEIGHTS else "weights as uint8, for which the runtime's kernel is faster"
        done = WeightPlan(planned.tensor, 1, 0, params=params)
        return Decision(node.name or "", node.op_type, Form.DYNAMIC, indexed([(0, x)]), weights=(done,), note=note)
