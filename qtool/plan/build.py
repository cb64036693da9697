"""Plan: rounds of deciding until nothing is taken back, then parameters.

A decision that turns out not to pay, or that lacks statistics, is vetoed, and all nodes are decided again (decide.py).
The same code runs before calibration (which tensors are wanted?) and after it (with which parameters?).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from qtool.calibrate.statistics import Statistics
from qtool.config import QuantConfig
from qtool.dtypes import qdtype
from qtool.plan.accumulator import wrap_note
from qtool.plan.analysis import Graph
from qtool.plan.bodies import loop_skips, planned_graphs
from qtool.plan.decide import Round, last_value
from qtool.plan.ops.base import PlanContext
from qtool.plan.ops.conv import multiplications, products_per_output, reason_not_to_pay
from qtool.plan.ops.matmul import SCORES
from qtool.plan.overriding import ActivationSettings, activation_settings, symmetric_clamps, with_forms
from qtool.plan.plan import Decision, Form, Plan, Skip
from qtool.plan.ranges import activation_parameters, shared_groups
from qtool.plan.selection import Selection
from qtool.plan.spectrum import is_spectrum
from qtool.plan.starved import is_starved
from qtool.plan.tensor_methods import too_few_values
from qtool.plan.weights import is_least_scale, repair_for_bias, weight_parameters
from qtool.qparams import QParams


@dataclass
class _State:
    """What one round taught the next."""

    vetoes: dict[str, str] = field(default_factory=dict)
    separate_joins: frozenset[str] = frozenset()
    kept_clamps: frozenset[str] = frozenset()
    quantize_scores: bool = False
    settled: bool = False  # what does not pay has been taken back: from here on the wanted tensors only become fewer

    def veto(self, reasons: Mapping[str, str]) -> bool:
        """Take decisions back; whether there were any."""
        assert not (reasons.keys() & self.vetoes.keys()), "Bug: a vetoed node was decided again"
        self.vetoes.update(reasons)
        return bool(reasons)


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
    return _whole([_graph_plan(graph, config, selection, statistics) for graph in planned_graphs(model)])


def with_ranges_of(
    model: ir.Model, plan: Plan, config: QuantConfig, selection: Selection, statistics: Statistics
) -> Plan:
    """A plan with the ranges of other methods: what :func:`build_plan` gives for ``config``, at a fraction of the cost.

    Which nodes are quantized does not depend on the range methods, nor do the weights. Where it does, because a bias or
    a bound meets another scale, the plan is built anew.

    Args:
        model: The prepared model.
        plan: Its plan with the same statistics, and settings that differ from ``config`` in range methods only.
        config: The settings to follow.
        selection: That of ``config``.
        statistics: What ``plan`` was built from.
    """
    tensors: dict[str, QParams | None] = {}
    for graph in planned_graphs(model):
        decisions = [decision for decision in plan.decisions if decision.node in graph.by_name]
        values = _quantized_values(graph, decisions)
        settings = activation_settings(graph, decisions, list(values), config, selection)
        found = activation_parameters(graph, values, decisions, settings.of, statistics)
        if _joins_to_separate(graph, decisions, found) or not all(
            _keeps_weight(graph, decision, plan.tensors, found) for decision in decisions
        ):
            return build_plan(model, config, selection, statistics)
        tensors |= found
    return replace(plan, tensors={name: tensors[name] for name in plan.tensors})


def _keeps_weight(
    graph: Graph, decision: Decision, before: Mapping[str, QParams | None], tensors: Mapping[str, QParams]
) -> bool:
    """Whether a decision's weight scale suits its bias under another input scale, and was not raised for it before."""
    if decision.bias is None or decision.form is not Form.OPERATOR:
        return True
    name = decision.inputs[0][1]
    was, bias = before[name], graph.by_name[decision.bias.node].inputs[decision.bias.index]
    assert was is not None, "Bug: a plan without parameters"
    assert bias is not None, "Bug: a planned bias is missing"
    if decision.note or is_least_scale(decision.weights[0], float(was.scale)):
        return False
    same, _ = repair_for_bias(decision.weights[0], graph.weight(bias), float(tensors[name].scale))
    return same is decision.weights[0]


def _whole(parts: list[Plan]) -> Plan:
    """The plans of a model's graphs as one."""
    tensors: dict[str, QParams | None] = {}
    types: dict[str, str] = {}
    for part in parts:
        tensors |= part.tensors
        types |= part.absorbed_types
    return Plan(
        tuple(d for part in parts for d in part.decisions),
        tuple(s for part in parts for s in part.skips),
        tensors,
        sum(part.nodes for part in parts),
        types,
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _graph_plan(graph: Graph, config: QuantConfig, selection: Selection, statistics: Statistics | None) -> Plan:
    state = _State()
    while True:
        ctx = PlanContext(
            graph, config, selection, statistics, state.separate_joins, quantize_scores=state.quantize_scores
        )
        ctx.kept_clamps = state.kept_clamps
        current = Round(ctx, state.vetoes)
        current.run()
        if state.veto(_that_do_not_pay(ctx)):
            continue
        if not state.settled:
            state.settled = True
            if _has_no_other_products(ctx, current.skips):
                state.quantize_scores = True
                continue
        if state.veto(_without_statistics(ctx)) or (state.quantize_scores and state.veto(_starved(ctx))):
            continue
        decisions = [ctx.decided[id(n)] for n in graph.nodes if id(n) in ctx.decided]
        values = _quantized_values(graph, decisions)
        settings = activation_settings(graph, decisions, list(values), config, selection)
        clamps = symmetric_clamps(decisions, settings)
        if clamps:
            state.kept_clamps |= clamps
            continue
        decisions = with_forms(graph, decisions, settings, selection)
        if statistics is None:
            return _plan(graph, decisions, current.skips, dict.fromkeys(values), [])
        tensors = activation_parameters(graph, values, decisions, settings.of, statistics)
        joins = _joins_to_separate(graph, decisions, tensors)
        if joins:
            state.separate_joins |= joins
            continue
        decisions, notes = _with_weights(ctx, decisions, tensors, settings)
        notes += too_few_values(settings.of, shared_groups(decisions, list(values)), statistics)
        return _plan(graph, decisions, current.skips, tensors, notes)


def _plan(
    graph: Graph,
    decisions: list[Decision],
    skips: Mapping[int, Skip],
    tensors: Mapping[str, QParams | None],
    notes: list[str],
) -> Plan:
    absorbed = {name for d in decisions for name in d.absorbed}
    ordered = tuple(skips[id(n)] for n in graph.nodes if id(n) in skips and (n.name or "") not in absorbed)
    ordered += tuple(loop_skips(graph.ir))
    types = {n.name or "": n.op_type for n in graph.nodes if n.name in absorbed}
    return Plan(tuple(decisions), ordered, tensors, len(decisions) + len(types) + len(ordered), types, tuple(notes))


def _that_do_not_pay(ctx: PlanContext) -> dict[str, str]:
    """Decisions to take back because they would cost more than they gain, with the reason.

    They are settled before statistics are looked at: only then is it known which tensors the plan needs, and those are
    the ones that were calibrated.
    """
    found: dict[str, str] = {}
    total = _total_multiplications(ctx)
    for node in ctx.graph.nodes:
        decision = ctx.decided.get(id(node))
        if decision is None or not ctx.writes_codes(node):
            continue
        value = last_value(ctx.graph, node, decision)
        if ctx.is_wanted(value) or value.is_graph_output():
            continue
        why = reason_not_to_pay(node, ctx, total)
        if is_spectrum(ctx.graph, value) and not ctx.selection.names(node):
            why = "its output is squared: a spectrum spans more than 8 bits hold; --include quantizes it all the same"
        if why is not None:
            found[node.name or ""] = why
    return found


def _has_no_other_products(ctx: PlanContext, skips: Mapping[int, Skip]) -> bool:
    """Whether the products of attention are all that there is to quantize."""
    if any(d.form is Form.OPERATOR for d in ctx.decided.values()):
        return False
    return any(s.reason == SCORES for s in skips.values())


def _without_statistics(ctx: PlanContext) -> dict[str, str]:
    """Decisions to take back because no range can be had for a tensor, with the reason."""
    decided = [ctx.decided[id(n)] for n in ctx.graph.nodes if id(n) in ctx.decided]
    reasons = {d.node: _why_without_range(ctx, d) for d in decided}
    return {name: why for name, why in reasons.items() if why is not None}


def _starved(ctx: PlanContext) -> dict[str, str]:
    """Products of attention to take back: one of their factors would lose most of its values, with the reason.

    A key or value that a mask hides may be of any size, and attention may be spread over more keys than there are codes
    below 1.
    """
    if ctx.statistics is None:
        return {}
    found: dict[str, str] = {}
    steps = ctx.activation_dtype.qmax - ctx.activation_dtype.qmin
    for node in ctx.graph.nodes:
        decision = ctx.decided.get(id(node))
        if decision is None or decision.form is not Form.OPERATOR or decision.weights:
            continue
        for _, name in decision.inputs:
            seen, value = ctx.statistics[name], ctx.graph.values.get(name)
            producer = value.producer() if value is not None else None
            softmax = producer is not None and producer.op_type == "Softmax"
            low, high = (0.0, 1.0) if softmax else (seen.minimum, seen.maximum)
            if is_starved(seen, low, high, steps):
                found[node.name or ""] = f"'{name}' spans so much that most of its values would become 0"
    return found


def _why_without_range(ctx: PlanContext, decision: Decision) -> str | None:
    if ctx.statistics is None:
        return None
    for name in [*(t for _, t in decision.inputs), *decision.outputs]:
        seen = ctx.statistics.get(name)
        if seen is None or seen.count == 0:
            return f"'{name}' was never produced by the calibration data"
        if ctx.graph.is_branch and ctx.graph.values[name].dtype is None:
            return f"the type of '{name}', inside a branch, is not known"
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


def _quantized_values(graph: Graph, decisions: list[Decision]) -> dict[str, ir.Value]:
    """The activations that some decision reads or writes quantized, in graph order."""
    names = {t for d in decisions for _, t in d.inputs} | {t for d in decisions for t in d.outputs}
    ordered: dict[str, ir.Value] = {}
    for value in [*graph.ir.inputs, *(o for node in graph.ir for o in node.outputs)]:
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
        clamp = graph.clamp(graph.by_name[decision.clip])
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
    ctx: PlanContext, decisions: list[Decision], tensors: Mapping[str, QParams], settings: ActivationSettings
) -> tuple[list[Decision], list[str]]:
    """Fill in the parameters of constant operands; repair scales whose bias would not fit."""
    result: list[Decision] = []
    notes: list[str] = []
    repairs: dict[str, int] = {}
    for decision in decisions:
        node = ctx.graph.by_name[decision.node]
        own = ctx.selection.config_for(node)
        # constant operands beside an activation are quantized as that is
        beside = settings.of(decision.inputs[0][1]) if decision.inputs else own
        weights = []
        for weight in decision.weights:
            value = node.inputs[weight.index]
            assert value is not None, "Bug: a planned weight is missing"
            params = weight_parameters(
                weight,
                value,
                ctx.graph,
                weights=qdtype(own.weights),
                activations=qdtype(beside.activations),
                per_channel=own.per_channel and node.op_type not in ctx.target.per_tensor_weights,
                symmetric=beside.symmetric_activations,
            )
            weights.append(replace(weight, params=params))
        note = decision.note
        if decision.bias is not None and decision.form is Form.OPERATOR:
            holder = ctx.graph.by_name[decision.bias.node]
            bias = holder.inputs[decision.bias.index]
            assert bias is not None, "Bug: a planned bias is missing"
            scale = float(tensors[decision.inputs[0][1]].scale)
            weights[0], repaired = repair_for_bias(weights[0], ctx.graph.weight(bias), scale)
            if repaired:
                note = f"raised the weight scale of {repaired} channel(s) so that the bias fits int32"
                repairs[decision.node] = repaired
        depth = products_per_output(node, ctx) if decision.form is Form.OPERATOR and decision.weights else 0
        wraps = wrap_note(decision.node, depth, beside.activations, own.weights)
        if wraps is not None:
            notes.append(wraps)
        result.append(replace(decision, weights=tuple(weights), note=note))
    if repairs:
        first = next(iter(repairs))
        others = f" and {len(repairs) - 1} more nodes" if len(repairs) > 1 else ""
        notes.append(
            f"raised the weight scale of {sum(repairs.values())} channels, whose weights are tiny beside their bias, "
            f"so that the bias fits int32 (in {first}{others})"
        )
    return result, notes
