"""Decide: which nodes are quantized, through a fixed point over demand.

    1. COMPUTE nodes in graph order: what quantization is for. They want their inputs quantized.
    2. What exists quantized anyway ("native"), forward from Convs.
    3. FOLLOW nodes in reverse order: quantized only if a quantized node wants their output.
    4. Products whose readers all read codes write codes; the others keep their float result.
    5. Decisions that turn out not to pay, or that lack statistics, are vetoed, and 1-4 are done again.

The same code runs before calibration (which tensors are wanted?) and after it (with which parameters?).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from qtool.calibrate.statistics import Statistics
from qtool.config import QuantConfig
from qtool.plan.analysis import Graph, subgraph_nodes
from qtool.plan.ops import handlers
from qtool.plan.ops.base import Phase, PlanContext, skip
from qtool.plan.ops.clamp import ClampHandler
from qtool.plan.ops.conv import multiplications, products_per_output, reason_not_to_pay
from qtool.plan.ops.movers import MoverHandler
from qtool.plan.ops.reasons import reason
from qtool.plan.ops.rescale import absorbing_producer, rescale_factor
from qtool.plan.plan import Decision, Form, Plan, Skip
from qtool.plan.ranges import activation_parameters, shared_groups
from qtool.plan.selection import Selection
from qtool.plan.weights import repair_for_bias, weight_parameters
from qtool.qparams import QParams

# largest K for which |sum of K products| stays below 2^31 (numerics.md 4)
_MAX_K = {("uint8", "int8"): 66_311, ("int8", "int8"): 131_071, ("uint8", "uint8"): 33_025}


@dataclass
class _State:
    """What one round taught the next."""

    vetoes: dict[str, str] = field(default_factory=dict)
    separate_joins: frozenset[str] = frozenset()


def build_plan(
    model: ir.Model, config: QuantConfig, selection: Selection, statistics: Statistics | None = None
) -> Plan:
    """Plan the quantization of a prepared model.

    Args:
        model: A prepared model; it is only read.
        config: What the user asked for.
        selection: The include and exclude patterns of ``config``, resolved against the user's model.
        statistics: Statistics of at least ``build_plan(model, config, selection).tensors``. Without them the plan has
            no parameters, and its ``tensors`` are the ones to calibrate.

    Raises:
        ModelError: If a weight that would be quantized holds NaN or Inf.
    """
    graph = Graph(model.graph)
    state = _State()
    while True:
        ctx, skips = _decide(graph, config, selection, statistics, state)
        vetoes = _vetoes(ctx, state)
        if vetoes:
            state.vetoes.update(vetoes)
            continue
        decisions = [ctx.decided[id(n)] for n in graph.nodes if id(n) in ctx.decided]
        values = _quantized_values(graph, decisions)
        if statistics is None:
            return _plan(graph, decisions, skips, dict.fromkeys(values), [])
        tensors = activation_parameters(graph, values, decisions, config, ctx.activation_dtype, statistics)
        joins = _joins_to_separate(graph, decisions, tensors)
        if joins:
            state.separate_joins |= joins
            continue
        decisions, notes = _with_weights(ctx, decisions, tensors)
        return _plan(graph, decisions, skips, tensors, notes)


def _plan(
    graph: Graph,
    decisions: list[Decision],
    skips: Mapping[int, Skip],
    tensors: Mapping[str, QParams | None],
    notes: list[str],
) -> Plan:
    absorbed = {name for d in decisions for name in d.absorbed}
    ordered = tuple(skips[id(n)] for n in graph.nodes if id(n) in skips and (n.name or "") not in absorbed)
    total = len(graph.nodes) + subgraph_nodes(graph.ir)
    types = {n.name or "": n.op_type for n in graph.nodes if n.name in absorbed}
    return Plan(tuple(decisions), ordered, tensors, total, types, tuple(notes))


def _decide(
    graph: Graph, config: QuantConfig, selection: Selection, statistics: Statistics | None, state: _State
) -> tuple[PlanContext, dict[int, Skip]]:
    ctx = PlanContext(graph, config, selection, statistics, state.separate_joins)
    skips: dict[int, Skip] = {}
    follow: list[ir.Node] = []
    for node in graph.nodes:
        handler = handlers().get(node.op_type) if graph.is_default_domain(node) else None
        why = selection.reason_to_skip(node) or state.vetoes.get(node.name or "")
        if handler is None:
            text, expected = reason(node.op_type, node.domain)
            skips[id(node)] = skip(node, text, expected=expected)
        elif why is not None:
            skips[id(node)] = skip(node, why)
        elif handler.phase is Phase.FOLLOW:
            follow.append(node)
        else:
            answer = handler.plan(node, ctx)
            if not isinstance(answer, Skip) and any(_is_behind_breaking(graph, tensor) for _, tensor in answer.inputs):
                answer = skip(node, "its input comes from a dilated AveragePool, which the runtime would fuse wrongly")
            if isinstance(answer, Skip):
                skips[id(node)] = answer
                continue
            if handler.output_always_quantized:
                answer = _with_output(ctx, node, answer, node.outputs[0])
                ctx.native.update(answer.outputs)
            for name in answer.absorbed:
                ctx.absorbed[id(_by_name(graph, name))] = node
            ctx.decided[id(node)] = answer
            ctx.wanted.update(tensor for _, tensor in answer.inputs)
    for node in follow:
        if id(node) not in ctx.absorbed and handlers()[node.op_type].passes_native(node, ctx):
            ctx.native.update(o.name or "" for o in node.outputs)
    for node in reversed(follow):
        if (
            id(node) in ctx.absorbed
            or _absorbed_by_producer(ctx, node, follow)
            or _rescales_producer(ctx, node, follow)
        ):
            continue
        _follow(ctx, node, skips)
    for node in graph.nodes:
        decision = ctx.decided.get(id(node))
        if decision is not None and decision.form is Form.OPERATOR and not decision.outputs:
            ctx.decided[id(node)] = _product_output(ctx, node, decision)
    return ctx, skips


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


def _follow(ctx: PlanContext, node: ir.Node, skips: dict[int, Skip]) -> None:
    handler = handlers()[node.op_type]
    answer = handler.plan(node, ctx)
    behind = [n for n in ctx.graph.nodes if ctx.absorbed.get(id(n)) is node]
    if isinstance(answer, Skip):
        skips[id(node)] = answer
        for clamp in behind:  # it was to be part of this node
            del ctx.absorbed[id(clamp)]
            skips[id(clamp)] = skip(clamp, "its producer stays float", expected=True)
        return
    factor = rescale_factor(behind[0], ctx) if behind else None
    if factor is not None:
        name, output = behind[0].name or "", behind[0].outputs[0].name or ""
        answer = replace(answer, outputs=(output,), absorbed=(name,), rescale=factor)
    elif behind:
        answer = _with_output(ctx, node, answer, node.outputs[0])
    ctx.decided[id(node)] = answer
    ctx.wanted.update(tensor for _, tensor in answer.inputs)


def _absorbed_by_producer(ctx: PlanContext, node: ir.Node, follow: list[ir.Node]) -> bool:
    """Whether a wanted Relu or Clip becomes part of the elementwise operator before it."""
    if node.op_type not in ("Relu", "Clip") or not ctx.is_wanted(node.outputs[0]):
        return False
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    if producer is None or not any(producer is n for n in follow) or not ctx.is_native(producer.outputs[0]):
        return False
    if not handlers()[producer.op_type].absorbs_clamps:
        return False
    clamp = ctx.absorbable(producer.outputs[0])
    if clamp is None or clamp.node is not node:
        return False
    ctx.absorbed[id(node)] = producer
    ctx.wanted.add(producer.outputs[0].name or "")
    return True


def _rescales_producer(ctx: PlanContext, node: ir.Node, follow: list[ir.Node]) -> bool:
    """Whether a wanted division by a constant becomes part of the elementwise operator before it."""
    if not ctx.is_wanted(node.outputs[0]):
        return False
    producer = absorbing_producer(node, ctx)
    if producer is None or not any(producer is n for n in follow):
        return False
    ctx.absorbed[id(node)] = producer
    ctx.wanted.add(producer.outputs[0].name or "")
    return True


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
    """
    output = _by_name(ctx.graph, decision.absorbed[-1]).outputs[0] if decision.absorbed else node.outputs[0]
    whole = _with_output(ctx, node, decision, output)
    for candidate in (whole, replace(decision, outputs=(output.name or "",))):
        value = _by_name(ctx.graph, candidate.absorbed[-1]).outputs[0] if candidate.absorbed else node.outputs[0]
        last = value.is_graph_output() and not list(value.uses()) and decision.bias is None and node.op_type == "MatMul"
        if ctx.all_readers_quantized(value) or last:
            return candidate
    return decision


def _vetoes(ctx: PlanContext, state: _State) -> dict[str, str]:
    """Decisions to take back, with the reason.

    What does not pay is settled first: only then is it known which tensors the plan needs, and those are the ones that
    were calibrated.
    """
    decided = [(node, ctx.decided[id(node)]) for node in ctx.graph.nodes if id(node) in ctx.decided]
    total = _total_multiplications(ctx)
    reasons = {node.name or "": _reason_not_to_pay(ctx, node, decision, total) for node, decision in decided}
    found = {name: why for name, why in reasons.items() if why is not None}
    if not found:
        reasons = {node.name or "": _without_statistics(ctx, decision) for node, decision in decided}
        found = {name: why for name, why in reasons.items() if why is not None}
    assert not (found.keys() & state.vetoes.keys()), "Bug: a vetoed node was decided again"
    return found


def _reason_not_to_pay(ctx: PlanContext, node: ir.Node, decision: Decision, total: int | None) -> str | None:
    if not handlers()[node.op_type].output_always_quantized:
        return None
    value = _by_name(ctx.graph, decision.absorbed[-1]).outputs[0] if decision.absorbed else node.outputs[0]
    if ctx.is_wanted(value) or value.is_graph_output():
        return None
    return reason_not_to_pay(node, ctx, total)


def _without_statistics(ctx: PlanContext, decision: Decision) -> str | None:
    if ctx.statistics is None:
        return None
    for name in [*(t for _, t in decision.inputs), *decision.outputs]:
        seen = ctx.statistics.get(name)
        if seen is None or seen.count == 0:
            return f"'{name}' was never produced by the calibration data"
        if seen.pos_inf or seen.neg_inf:
            return f"'{name}' holds infinities, which no range can hold"
        if seen.finite == 0:
            return f"'{name}' had no finite value in the calibration data"
    return None


def _total_multiplications(ctx: PlanContext) -> int | None:
    total = 0
    for node in ctx.graph.nodes:
        if node.op_type in ("Conv", "MatMul", "Gemm"):
            own = multiplications(node, ctx)
            if own is None:
                return None
            total += own
    return total


def _by_name(graph: Graph, name: str) -> ir.Node:
    return graph.by_name[name]


def _quantized_values(graph: Graph, decisions: list[Decision]) -> dict[str, ir.Value]:
    """The activations that some decision reads or writes quantized, in graph order."""
    names = {t for d in decisions for _, t in d.inputs} | {t for d in decisions for t in d.outputs}
    ordered: dict[str, ir.Value] = {}
    for value in [*graph.ir.inputs, *(o for node in graph.nodes for o in node.outputs)]:
        if value.name in names:
            ordered[value.name or ""] = value
    assert len(ordered) == len(names), "Bug: a decision names a tensor that is not in the graph"
    return ordered


def _joins_to_separate(graph: Graph, decisions: list[Decision], tensors: Mapping[str, QParams]) -> frozenset[str]:
    """Concats whose shared range reaches beyond the bounds of a Relu or Clip that is absorbed in front of them.

    Saturation would not clip there. With a scale of its own for each input the Concat requantizes, and the bound holds.
    """
    exceeding = set()
    for decision in decisions:
        if decision.clip is None:
            continue
        clamp = graph.clamp(_by_name(graph, decision.clip))
        assert clamp is not None, "Bug: absorbed something that does not clamp"
        low, high = tensors[decision.outputs[0]].range
        if low < clamp.low or high > clamp.high * (1.0 + 1e-6):
            exceeding.add(decision.outputs[0])
    if not exceeding:
        return frozenset()
    groups = [set(group) for group in shared_groups(decisions, list(tensors))]
    affected = set().union(*(group for group in groups if group & exceeding))
    joins = [d for d in decisions if d.op_type == "Concat" and d.form is Form.MOVER]
    found = frozenset(d.node for d in joins if d.outputs[0] in affected)
    assert found, "Bug: a range exceeds its clamp, and nothing shares it"
    return found


def _with_weights(
    ctx: PlanContext, decisions: list[Decision], tensors: Mapping[str, QParams]
) -> tuple[list[Decision], list[str]]:
    """Fill in the parameters of constant operands; repair scales whose bias would not fit."""
    result: list[Decision] = []
    notes: list[str] = []
    repairs: dict[str, int] = {}
    for decision in decisions:
        node = _by_name(ctx.graph, decision.node)
        weights = []
        for weight in decision.weights:
            value = node.inputs[weight.index]
            assert value is not None, "Bug: a planned weight is missing"
            params = weight_parameters(
                weight,
                value,
                ctx.graph,
                weights=ctx.weight_dtype,
                activations=ctx.activation_dtype,
                per_channel=ctx.config.per_channel,
                symmetric=ctx.config.symmetric_activations,
            )
            weights.append(replace(weight, params=params))
        note = decision.note
        if decision.bias is not None and decision.form is Form.OPERATOR:
            holder = _by_name(ctx.graph, decision.bias.node)
            bias = holder.inputs[decision.bias.index]
            assert bias is not None, "Bug: a planned bias is missing"
            scale = float(tensors[decision.inputs[0][1]].scale)
            weights[0], repaired = repair_for_bias(weights[0], ctx.graph.weight(bias), scale)
            if repaired:
                note = f"raised the weight scale of {repaired} channel(s) so that the bias fits int32"
                repairs[decision.node] = repaired
        depth = products_per_output(node, ctx) if decision.form is Form.OPERATOR and decision.weights else 0
        limit = _MAX_K.get((ctx.activation_dtype.name, ctx.weight_dtype.name))
        if limit is not None and depth > limit:
            notes.append(
                f"{decision.node}: sums {depth} products, which may wrap around in int32 (safe up to {limit} for "
                f"{ctx.activation_dtype.name} x {ctx.weight_dtype.name})"
            )
        result.append(replace(decision, weights=tuple(weights), note=note))
    if repairs:
        first = next(iter(repairs))
        others = f" and {len(repairs) - 1} more nodes" if len(repairs) > 1 else ""
        notes.append(
            f"raised the weight scale of {sum(repairs.values())} channels, whose weights are tiny beside their bias, "
            f"so that the bias fits int32 (in {first}{others})"
        )
    return result, notes
