"""MatMul: weight times activation, and activation times activation outside of attention."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.analysis import Graph, dims_of
from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import BiasPlan, Decision, Form, Skip, WeightPlan

# what lies between the product of queries and keys and its Softmax: scaling, masks, layout
_SCORE_OPS = frozenset(
    ("Add", "Sub", "Mul", "Div", "Where", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "Tanh", "Clip", "Max")
)
# what lies between a Softmax and the product with the values, and where its data come in: layout, dropped heads
# and rows (opset 23's Attention sets rows that are masked as a whole to 0), sinks that are cut off
_PROBABILITY_INPUTS = {
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "CastLike", "Dropout", "Identity", "Expand", "Slice"),
        (0,),
    ),
    "Mul": (0, 1),
    "Where": (1, 2),
}
_SEARCH_LIMIT = 64
SCORES = "attention scores stay float"


class MatMulHandler(Handler):
    """QLinearMatMul where the result is wanted quantized, an integer product with float result elsewhere."""

    op_types: ClassVar[tuple[str, ...]] = ("MatMul",)
    phase: ClassVar[Phase] = Phase.COMPUTE
    absorbs_clamps: ClassVar[bool] = True

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        a, b = node.inputs[0], node.inputs[1]
        if ctx.graph.is_known_other_type(a) or ctx.graph.is_known_other_type(b):
            return skip(node, "its operands are not float32")
        a_constant, b_constant = ctx.graph.constant(a), ctx.graph.constant(b)
        if a_constant is not None and b_constant is not None:
            return skip(node, "both operands are constant")
        for constant in (a_constant, b_constant):
            if constant is not None and 0 in constant.shape:
                return skip(node, "its weight has no elements")
        if a_constant is None and b_constant is None:
            scores = _feeds_softmax(node.outputs[0]) or any(_comes_from_softmax(v) for v in (a, b))
            if scores and not ctx.quantize_scores:
                return skip(node, SCORES, expected=True)
            return Decision(node.name or "", node.op_type, Form.OPERATOR, indexed([(0, a), (1, b)]))
        if a_constant is not None:
            assert a is not None
            inputs, weights = indexed([(1, b)]), (WeightPlan(a.name or "", 0, as_activation=True),)
            return Decision(node.name or "", node.op_type, Form.OPERATOR, inputs, weights=weights)
        assert b is not None
        assert b_constant is not None
        axis = 1 if len(b_constant.shape) == 2 else None  # other ranks: per tensor, which every runtime takes
        inputs, weights = indexed([(0, a)]), (WeightPlan(b.name or "", 1, axis=axis),)
        bias, absorbed = _bias(node, b, ctx)
        return Decision(
            node.name or "", node.op_type, Form.OPERATOR, inputs, weights=weights, bias=bias, absorbed=absorbed
        )


def _bias(node: ir.Node, weight: ir.Value, ctx: PlanContext) -> tuple[BiasPlan | None, tuple[str, ...]]:
    """The Add of a constant row behind the product, if it is the only thing that sees the product."""
    add = ctx.graph.sole_consumer(node.outputs[0])
    weight_tensor = ctx.graph.constant(weight)
    assert weight_tensor is not None, "Bug: not a constant"
    shape = dims_of(weight_tensor)
    if add is None or add.op_type != "Add" or not ctx.graph.is_default_domain(add) or len(shape) != 2:
        return None, ()
    if ctx.selection.reason_to_skip(add) is not None:
        return None, ()
    index = 1 if add.inputs[0] is node.outputs[0] else 0
    constant = ctx.graph.constant(add.inputs[index])
    if constant is None or constant.dtype != ir.DataType.FLOAT:
        return None, ()
    dims = dims_of(constant)
    if not dims or dims[-1] != shape[1] or any(d != 1 for d in dims[:-1]):
        return None, ()
    rank = ctx.graph.rank(node.outputs[0])
    if len(dims) > 1 and (rank is None or rank < len(dims)):
        return None, ()  # the Add raises the rank: a row could not stand for it
    bias = add.inputs[index]
    assert bias is not None
    return BiasPlan(bias.name or "", add.name or "", index), (add.name or "",)


def becomes_a_gemm(node: ir.Node, graph: Graph) -> bool:
    """Whether onnxruntime makes a Gemm of a MatMul and the Add behind it: only where it can reshape to a matrix."""
    dims = graph.static_dims(node.inputs[0])
    return dims is not None and (len(dims) == 2 or all(d is not None for d in dims))


def _feeds_softmax(value: ir.Value) -> bool:
    """Whether a Softmax reads the value through scaling, masking and layout only."""
    frontier, seen = [value], 0
    while frontier and seen < _SEARCH_LIMIT:
        current = frontier.pop()
        for node, index in current.uses():
            seen += 1
            if node.op_type == "Softmax":
                return True
            if node.op_type in _SCORE_OPS and (node.op_type != "Reshape" or index == 0):
                frontier.extend(node.outputs)
    return False


def _comes_from_softmax(value: ir.Value | None) -> bool:
    """Whether a value is the result of a Softmax, behind layout and masking only."""
    frontier, seen = [value], 0
    while frontier and seen < _SEARCH_LIMIT:
        current = frontier.pop()
        node = current.producer() if current is not None else None
        if node is None:
            continue
        seen += 1
        if node.op_type == "Softmax":
            return True
        frontier.extend(node.inputs[i] for i in _PROBABILITY_INPUTS.get(node.op_type, ()))
    return False
