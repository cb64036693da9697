"""One round of deciding: every node of a graph, given what earlier rounds took back.

1. COMPUTE nodes in graph order: what quantization is for. They want their inputs quantized.
2. What exists quantized anyway ("native"), forward from Convs.
3. FOLLOW nodes in reverse order: quantized only if a quantized node wants their output.
4. Products whose readers all read codes write codes; the others keep their float result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from qtool.plan.analysis import Graph
from qtool.plan.ops import handlers
from qtool.plan.ops.base import Phase, PlanContext, skip
from qtool.plan.ops.clamp import ClampHandler
from qtool.plan.ops.matmul import becomes_a_gemm
from qtool.plan.ops.movers import MoverHandler
from qtool.plan.ops.reasons import reason
from qtool.plan.ops.rescale import absorbing_producer, rescale_factor
from qtool.plan.ops.residual import residual_branch
from qtool.plan.plan import Decision, Form, Skip


class Round:
    """Decisions about all nodes of one graph.

    Args:
        ctx: A fresh context; it is filled.
        vetoes: Node name -> why an earlier round's decision about it was taken back.

    Attributes:
        ctx: The context, with the decisions.
        skips: Why the other nodes stay float, by node identity.
    """

    def __init__(self, ctx: PlanContext, vetoes: Mapping[str, str]) -> None:
        self.ctx = ctx
        self.skips: dict[int, Skip] = {}
        self._vetoes = vetoes
        self._follow: list[ir.Node] = []
        # what an elementwise node takes with it: a Relu, a Clip, or a Div and the Mul behind it
        self._parts: dict[int, list[ir.Node]] = {}

    def run(self) -> None:
        """Decide."""
        for node in self.ctx.graph.nodes:
            self._first_look(node)
        self._decide_residuals()
        for node in self._follow:
            if id(node) not in self.ctx.absorbed and handlers()[node.op_type].passes_native(node, self.ctx):
                self.ctx.native.update(o.name or "" for o in node.outputs)
        following = {id(node) for node in self._follow}
        for node in reversed(self._follow):
            if id(node) in self.ctx.absorbed:
                continue
            taken = self._producer_that_takes(node)
            if taken is None or not following.issuperset(map(id, (taken[0], *taken[1]))):
                self._decide_follower(node)
                continue
            producer, parts = taken
            self.ctx.absorbed.update((id(part), producer) for part in parts)
            self._parts[id(producer)] = parts
            self.ctx.wanted.add(producer.outputs[0].name or "")
        for node in self.ctx.graph.nodes:
            decision = self.ctx.decided.get(id(node))
            if decision is not None and decision.form is Form.OPERATOR and not decision.outputs:
                self.ctx.decided[id(node)] = _product_output(self.ctx, node, decision)

    def _first_look(self, node: ir.Node) -> None:
        """Decide about a COMPUTE node; put a FOLLOW node off."""
        ctx = self.ctx
        handler = handlers().get(node.op_type) if ctx.graph.is_default_domain(node) else None
        why = ctx.selection.reason_to_skip(node) or self._vetoes.get(node.name or "")
        if handler is None:
            text, expected = reason(node.op_type, node.domain)
            self.skips[id(node)] = skip(node, text, expected=expected)
        elif why is not None:
            self.skips[id(node)] = skip(node, why)
        elif node.op_type in ctx.target.left_float:
            self.skips[id(node)] = skip(node, ctx.target.left_float[node.op_type])
        elif handler.phase is Phase.FOLLOW:
            self._follow.append(node)
        else:
            answer = handler.plan(node, ctx)
            if not isinstance(answer, Skip) and any(_is_behind_breaking(ctx.graph, t) for _, t in answer.inputs):
                answer = skip(node, "its input comes from a dilated AveragePool, which the runtime would fuse wrongly")
            if isinstance(answer, Skip):
                self.skips[id(node)] = answer
                return
            if not ctx.target.int32_bias:
                answer = replace(answer, bias=None)
            if ctx.writes_codes(node):
                answer = _with_output(ctx, node, answer, node.outputs[0])
                ctx.native.update(answer.outputs)
            for name in answer.absorbed:
                ctx.absorbed[id(ctx.graph.by_name[name])] = node
            ctx.read_by_products.update(tensor for _, tensor in answer.inputs)
            self._accept(node, answer)

    def _decide_residuals(self) -> None:
        """Quantize skip connections where the target adds them inside of a Conv."""
        for node in list(self._follow) if self.ctx.target.quantized_residuals else ():
            decision = residual_branch(node, self.ctx)
            if decision is not None:
                self._follow.remove(node)
                self._accept(node, decision)

    def _decide_follower(self, node: ir.Node) -> None:
        answer = handlers()[node.op_type].plan(node, self.ctx)
        parts = self._parts.get(id(node), [])
        if isinstance(answer, Skip):
            self.skips[id(node)] = answer
            for part in parts:
                del self.ctx.absorbed[id(part)]
                self.skips[id(part)] = skip(part, "its producer stays float", expected=True)
            return
        factors = [rescale_factor(part, self.ctx) for part in parts]
        known = [factor for factor in factors if factor is not None]
        if known:
            absorbed = tuple(part.name or "" for part in parts)
            output = parts[-1].outputs[0].name or ""
            answer = replace(answer, outputs=(output,), absorbed=absorbed, rescale=math.prod(known))
        elif parts:
            answer = _with_output(self.ctx, node, answer, node.outputs[0])
        self._accept(node, answer)

    def _accept(self, node: ir.Node, decision: Decision) -> None:
        self.ctx.decided[id(node)] = decision
        self.ctx.wanted.update(tensor for _, tensor in decision.inputs)

    def _producer_that_takes(self, node: ir.Node) -> tuple[ir.Node, list[ir.Node]] | None:
        """The elementwise operator that a wanted Relu, Clip or division becomes part of, and all that does."""
        ctx = self.ctx
        if not ctx.is_wanted(node.outputs[0]):
            return None
        if node.op_type not in ("Relu", "Clip"):
            return absorbing_producer(node, ctx)
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        if producer is None or not ctx.is_native(producer.outputs[0]):
            return None
        handler = handlers().get(producer.op_type)
        if handler is None or not handler.absorbs_clamps:
            return None
        clamp = ctx.absorbable(producer.outputs[0])
        return (producer, [node]) if clamp is not None and clamp.node is node else None


def last_value(graph: Graph, node: ir.Node, decision: Decision) -> ir.Value:
    """What a node writes together with what it absorbed."""
    last = graph.by_name[decision.absorbed[-1]] if decision.absorbed else node
    return last.outputs[0]


def _with_output(ctx: PlanContext, node: ir.Node, decision: Decision, output: ir.Value) -> Decision:
    """The decision with a quantized output, and with the Relu or Clip behind it absorbed where that is possible."""
    clamp = ctx.absorbable(output) if handlers()[node.op_type].absorbs_clamps else None
    if clamp is None:
        return replace(decision, outputs=(output.name or "",))
    name = clamp.node.name or ""
    return replace(
        decision, outputs=(clamp.node.outputs[0].name or "",), absorbed=(*decision.absorbed, name), clip=name
    )


def _product_output(ctx: PlanContext, node: ir.Node, decision: Decision) -> Decision:
    """Quantize the result of a product only where its float form is needed by nobody.

    A plain MatMul that ends the graph is quantized like any other: that is the operator's own form. A bias is worth
    more than that, so with one the result stays float.

    Where one reader wants codes and another a float, there is no good choice: onnxruntime (1.32) does not fuse a
    product with a QuantizeLinear beside something else behind it, and computes in float with weights that it
    dequantizes at every run. Then all readers get codes.
    """
    output = last_value(ctx.graph, node, decision)
    whole = _with_output(ctx, node, decision, output)
    for candidate in (whole, replace(decision, outputs=(output.name or "",))):
        value = last_value(ctx.graph, node, candidate)
        last = value.is_graph_output() and not list(value.uses()) and decision.bias is None and node.op_type == "MatMul"
        if ctx.all_readers_quantized(value) or last:
            return candidate
    if not ctx.target.microsoft_operators or node.op_type not in ("MatMul", "Gemm"):
        return decision  # it is not onnxruntime, or a Conv, whose result is float on purpose
    with_add = node.op_type == "MatMul" and decision.bias is not None
    if ctx.is_wanted(output) and not (with_add and not becomes_a_gemm(node, ctx.graph)):  # an Add would stand between
        return replace(decision, outputs=(output.name or "",))
    reader = ctx.graph.sole_consumer(output)
    hidden = with_add and not (becomes_a_gemm(node, ctx.graph) and ctx.graph.rank(node.inputs[0]) == 2)
    if reader is not None and reader.op_type in ("Relu", "Clip") and ctx.graph.is_default_domain(reader) and not hidden:
        return replace(decision, clamp_apart=reader.name)
    return decision


def _is_behind_breaking(graph: Graph, tensor: str) -> bool:
    """Whether a tensor comes, but for layout and clamping, from a node that must not stand between DQ and Q.

    A QuantizeLinear behind such a node would complete the pattern that the runtime looks for, however the node itself
    was decided; runtimes move a QuantizeLinear up through movers, and drop a Relu or Clip before it.
    """
    value = graph.values.get(tensor)
    node = value.producer() if value is not None else None
    while node is not None and graph.is_default_domain(node):
        if graph.breaks_on_codes(node):
            return True
        vanishes = isinstance(handlers().get(node.op_type), (MoverHandler, ClampHandler))
        if not (vanishes or node.op_type in ("Cast", "Dropout")) or not node.inputs or node.inputs[0] is None:
            return False
        node = node.inputs[0].producer()
    return False
