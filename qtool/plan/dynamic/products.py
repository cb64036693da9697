"""MatMul and Gemm with a constant operand: DynamicQuantizeLinear, MatMulInteger, and one Mul back to float."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.dtypes import qdtype
from qtool.plan.analysis import dims_of
from qtool.plan.dynamic.base import ACTIVATIONS, DynamicContext, DynamicHandler, float_type
from qtool.plan.ops.base import indexed, skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan
from qtool.plan.weights import weight_parameters

# float16 goes through a Cast to float32 and back: DynamicQuantizeLinear takes nothing else
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


class ProductHandler(DynamicHandler):
    """Scales per output column where the weight is on the right, one scale where it is on the left."""

    op_types: ClassVar[tuple[str, ...]] = ("MatMul", "Gemm")

    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """See :meth:`DynamicHandler.plan`."""
        a, b = node.inputs[0], node.inputs[1]
        weights = [ctx.graph.constant(v) for v in (a, b)]
        if weights[0] is not None and weights[1] is not None:
            return skip(node, "both operands are constant")
        if weights[0] is None and weights[1] is None:
            return skip(node, "both operands are activations", expected=True)
        index = 0 if weights[0] is not None else 1
        weight, value, other = weights[index], node.inputs[index], node.inputs[1 - index]
        assert weight is not None, "Bug: not a constant"
        assert value is not None, "Bug: not a constant"
        if float_type(ctx, value) not in _FLOATS or float_type(ctx, other) not in (*_FLOATS, None):
            return skip(node, "its operands are neither float32 nor float16")
        if 0 in weight.shape:
            return skip(node, "its weight has no elements")
        if node.op_type == "Gemm" and (index == 0 or _is_unusual(node)):
            return skip(node, "A is constant" if index == 0 else "it could not be brought to the form A x B + C")
        why_not = _misread_add(node, ctx, index)
        if why_not is not None:
            return skip(node, why_not)
        # int8 on the left: onnxruntime (1.32) fuses it into an operator that has no kernel for that
        dtype = ctx.weight_dtype if index == 1 else qdtype("uint8")
        rank = len(weight.shape)
        # batched weights have one scale: with one for each column onnxruntime's fused operators read beyond its end
        planned = WeightPlan(
            value.name or "", index, axis=1 if index == 1 and rank == 2 else None, as_activation=index == 0
        )
        params = weight_parameters(
            planned,
            value,
            ctx.graph,
            weights=dtype,
            activations=qdtype(ACTIVATIONS),
            per_channel=ctx.config.per_channel,
            symmetric=False,
        )
        done = WeightPlan(planned.tensor, index, planned.axis, planned.as_activation, params)
        return Decision(
            node.name or "", node.op_type, Form.DYNAMIC, indexed([(1 - index, node.inputs[1 - index])]), weights=(done,)
        )


def _is_unusual(node: ir.Node) -> bool:
    """Whether a Gemm is not in the form that preparation gives it."""
    defaults = (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
    return any(name in node.attributes and node.attributes[name].value != value for name, value in defaults)


def _misread_add(node: ir.Node, ctx: DynamicContext, weight_index: int) -> str | None:
    """Why the runtime would compute something else with the Add behind a product, or None.

    onnxruntime (1.32) takes whatever has the shape (1, .., 1, n > 1) and is added to the product for a row of n biases,
    and compares neither n with the columns of the product nor its rank with that of the product.
    """
    product = node.outputs[0]
    add = ctx.graph.sole_consumer(product)
    if node.op_type != "MatMul" or add is None or add.op_type != "Add" or not ctx.graph.is_default_domain(add):
        return None
    other = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
    constant = ctx.graph.constant(other)
    dims: list[int | None] | None = list(dims_of(constant)) if constant is not None else ctx.graph.static_dims(other)
    columns, rank = _columns_and_rank(node, ctx, weight_index)
    why = "the runtime would take what is added behind it for a row of biases, which it is not"
    if dims is None:
        return why if columns in (None, 1) else None
    if not dims or any(d != 1 for d in dims[:-1]) or dims[-1] in (None, 1):
        return None
    return None if dims[-1] == columns and (rank is not None and len(dims) <= rank) else why


def _columns_and_rank(node: ir.Node, ctx: DynamicContext, weight_index: int) -> tuple[int | None, int | None]:
    """Columns of a product, None if it has none or they are not known, and the smallest rank that it can have."""
    known = ctx.graph.rank(node.outputs[0])
    if weight_index == 1:
        weight = ctx.graph.constant(node.inputs[1])
        assert weight is not None, "Bug: not a constant"
        dims = dims_of(weight)
        if len(dims) == 1:
            return None, known
        return dims[-1], known if known is not None else len(dims) - 1
    shape = ctx.graph.static_dims(node.outputs[0])
    activation = ctx.graph.rank(node.inputs[1])
    return (shape[-1] if shape and activation is not None and activation > 1 else None), known
