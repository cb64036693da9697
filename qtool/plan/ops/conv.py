"""Conv of one to three spatial dimensions, grouped and depthwise, with an absorbed Relu or Clip."""

from __future__ import annotations

import math
from typing import ClassVar

import onnx_ir as ir

from qtool.plan.analysis import dims_of
from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import BiasPlan, Decision, Form, Skip, WeightPlan

# Multiplications per output element below which an integer Conv whose result nobody wants quantized is not worth the
# Q and DQ around it (a depthwise 5x5 has 25; a pointwise Conv of 32 channels has 32).
_MIN_PRODUCTS = 32
_MIN_SHARE = 0.01  # of the multiplications of all Convs and MatMuls whose shapes are known


class ConvHandler(Handler):
    """QLinearConv; runtimes have no integer Conv with a float result, so the output is always quantized."""

    op_types: ClassVar[tuple[str, ...]] = ("Conv",)
    phase: ClassVar[Phase] = Phase.COMPUTE
    output_always_quantized: ClassVar[bool] = True
    absorbs_clamps: ClassVar[bool] = True

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        x, w = node.inputs[0], node.inputs[1]
        b = node.inputs[2] if len(node.inputs) > 2 else None
        if ctx.graph.is_known_other_type(x) or ctx.graph.is_known_other_type(w):
            return skip(node, "its operands are not float32")
        if ctx.graph.constant(x) is not None:
            return skip(node, "its input is constant")
        weight = ctx.graph.constant(w)
        if weight is None:
            return _of_two_activations(node, ctx)
        if not 3 <= len(weight.shape) <= 5:
            return skip(node, f"it has {len(weight.shape) - 2} spatial dimensions; integer Convs have 1 to 3")
        if 0 in weight.shape:
            return skip(node, "its weight has no elements")
        if ctx.graph.odd_resize is not None:
            return skip(node, f"beside an integer Conv the runtime resizes wrong axes in '{ctx.graph.odd_resize.name}'")
        bias = None
        if b is not None:
            if ctx.graph.constant(b) is None:
                return skip(node, "its bias is not constant")
            bias = BiasPlan(b.name or "", node.name or "", 2)
        assert w is not None
        return Decision(
            node.name or "",
            node.op_type,
            Form.OPERATOR,
            indexed([(0, x)]),
            weights=(WeightPlan(w.name or "", 1, axis=0),),
            bias=bias,
        )


def _of_two_activations(node: ir.Node, ctx: PlanContext) -> Decision | Skip:
    """A Conv whose weight is computed, or given by the caller: one scale for all of it."""
    x, w = node.inputs[0], node.inputs[1]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        # int32 codes of a bias need the scale of a weight that is known, and whose scale can be raised for it
        return skip(node, "its weight is not constant, and it has a bias")
    rank = ctx.graph.rank(w)
    if rank is None or not 3 <= rank <= 5:
        return skip(node, "its weight is not constant, and its rank is not known to be 3 to 5")
    if ctx.graph.odd_resize is not None:
        return skip(node, f"beside an integer Conv the runtime resizes wrong axes in '{ctx.graph.odd_resize.name}'")
    return Decision(node.name or "", node.op_type, Form.OPERATOR, indexed([(0, x), (1, w)]))


def reason_not_to_pay(node: ir.Node, ctx: PlanContext, total: int | None) -> str | None:
    """Why a Conv whose output no quantized node wants would cost more than it gains, or None if it pays.

    Args:
        node: The Conv.
        ctx: The context.
        total: Multiplications of the whole model, if its shapes are known.
    """
    if ctx.is_native(node.inputs[0]):
        return None  # its input exists as codes only: a float Conv would have to dequantize it first
    if products_per_output(node, ctx) < _MIN_PRODUCTS:
        return f"only float operators read its output, and less than {_MIN_PRODUCTS} products per element do not pay"
    dims = ctx.graph.static_dims(node.outputs[0])
    if dims is not None and len(dims) > 2 and all(d == 1 for d in dims[2:]):
        return "only float operators read its output, which is a single pixel"
    own = multiplications(node, ctx)
    if own is not None and total and own < _MIN_SHARE * total:
        return f"only float operators read its output, and it is under {_MIN_SHARE:.0%} of the model's arithmetic"
    return None


def products_per_output(node: ir.Node, ctx: PlanContext) -> int:
    """Multiplications for one output element: C/group * kernel, or K of a MatMul."""
    weight = ctx.graph.constant(node.inputs[1])
    if weight is None:
        return 0
    dims = dims_of(weight)
    return math.prod(dims[1:]) if node.op_type == "Conv" else dims[-2] if len(dims) > 1 else dims[0]


def multiplications(node: ir.Node, ctx: PlanContext) -> int | None:
    """Multiplications of a Conv, MatMul or Gemm, if its output shape is known but for a leading batch (taken as 1)."""
    dims = ctx.graph.static_dims(node.outputs[0])
    if not dims or any(d is None for d in dims[1:]):
        return None
    return math.prod(d or 1 for d in [dims[0] or 1, *dims[1:]]) * products_per_output(node, ctx)
