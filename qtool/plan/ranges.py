"""From statistics to parameters: which tensors share them, which ranges are fixed by the operator (emission.md 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from qtool.calibrate.statistics import Statistics, TensorStatistics, merge
from qtool.config import QuantConfig
from qtool.dtypes import QDType, qdtype
from qtool.plan.analysis import Graph
from qtool.plan.plan import Decision, Form
from qtool.plan.tensor_methods import method_of
from qtool.qparams import QParams, activation_qparams


def shared_groups(decisions: Iterable[Decision], tensors: Sequence[str]) -> list[list[str]]:
    """Sets of tensors that must have equal parameters, in the order of ``tensors`` (union-find over the movers)."""
    parent = {name: name for name in tensors}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for decision in decisions:
        if decision.form is Form.MOVER:
            first, *rest = [*(t for _, t in decision.inputs), *decision.outputs]
            for other in rest:
                a, b = find(first), find(other)
                parent[b] = a
    groups: dict[str, list[str]] = {}
    for name in tensors:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def joined(members: Sequence[TensorStatistics]) -> TensorStatistics:
    """Statistics of tensors that share their parameters: all values, and the channels of all weighted readers.

    A value's floor holds for one tensor alone: the others have readers of their own.
    """
    if len(members) == 1:
        return members[0]
    merged = reduce(merge, [one.without_channels() for one in members])
    merged.clip_weight = max(one.clip_weight for one in members)
    merged.coherence = max(one.coherence for one in members)
    weighted = [(one.channel_absmax, one.channel_energy) for one in members]
    known = [(reach, energy) for reach, energy in weighted if reach is not None and energy is not None]
    if known:
        merged.channel_axis = next(one.channel_axis for one in members if one.channel_energy is not None)
        merged.channel_absmax = np.concatenate([reach for reach, _ in known])
        merged.channel_energy = np.concatenate([energy for _, energy in known])
    return merged


def fixed_range(op_type: str, dtype: QDType, *, symmetric: bool) -> tuple[float, float] | None:
    """The range of an operator's output that must not depend on data: a near-uniform Softmax must still reach 1.

    The asymmetric step is a power of two, 1/2^bits of the range, so that 0 and the midpoint are exact.
    """
    steps = 2.0**dtype.bits
    if op_type in ("Softmax", "Sigmoid", "HardSigmoid"):
        return (0.0, 1.0) if symmetric else (0.0, (steps - 1.0) / steps)
    if op_type == "Tanh":
        return (-1.0, 1.0) if symmetric else (-1.0, (steps / 2.0 - 1.0) / (steps / 2.0))
    return None


def activation_parameters(
    graph: Graph,
    values: Mapping[str, ir.Value],
    decisions: Sequence[Decision],
    settings_of: Callable[[str], QuantConfig],
    seen: Statistics,
) -> dict[str, QParams]:
    """Parameters of every quantized activation.

    Args:
        graph: The prepared graph.
        values: The quantized activations by name, in graph order.
        decisions: All decisions.
        settings_of: Type, method and symmetry of a tensor, equal for those that share their parameters.
        seen: Statistics of each of ``values``, each with at least one finite value.
    """
    fixed = fixed_ranges(values, decisions, settings_of)
    limits = _clamp_limits(graph, values)
    result: dict[str, QParams] = {}
    for group in shared_groups(decisions, list(values)):
        config = settings_of(group[0])
        dtype, symmetric = qdtype(config.activations), config.symmetric_activations
        ranges = [fixed[name] for name in group if name in fixed]
        measured: list[TensorStatistics] = [seen[name] for name in group if name not in fixed]
        if measured:
            merged = joined(measured)
            method, parameter = method_of(config, group)
            ranges.append(method.range_of(merged, dtype, symmetric=symmetric, parameter=parameter))
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        if len(group) == 1:
            # a gate that opens above 0 asks for nothing below it
            low = max(low, min(gate_floor(graph, values[group[0]]), 0.0))
        bounds = [limits[name] for name in group if name in limits]
        if bounds and low == high == 0.0 and min(bounds) > 0.0:
            high = min(bounds)  # no value tells the scale; the stand-in, 1, may reach beyond the bound
        params = activation_qparams(low, high, dtype, symmetric=symmetric)
        if bounds and low >= 0.0 and not symmetric:
            params = _below(params, min(bounds))
        for name in group:
            result[name] = params
    return result


def fixed_ranges(
    values: Mapping[str, ir.Value], decisions: Sequence[Decision], settings_of: Callable[[str], QuantConfig]
) -> dict[str, tuple[float, float]]:
    """Ranges that the operators fix, by tensor, carried on through movers."""
    found: dict[str, tuple[float, float]] = {}
    mover_of = {out: d for d in decisions if d.form is Form.MOVER for out in d.outputs}
    for name, value in values.items():  # graph order: a mover's inputs come before its outputs
        producer = value.producer()
        mover = mover_of.get(name)
        if mover is not None:
            sources = [found.get(tensor) for _, tensor in mover.inputs]
            known = [s for s in sources if s is not None]
            if known and len(known) == len(sources):
                found[name] = (min(s[0] for s in known), max(s[1] for s in known))
        elif producer is not None:
            config = settings_of(name)
            dtype, symmetric = qdtype(config.activations), config.symmetric_activations
            own = fixed_range(producer.op_type, dtype, symmetric=symmetric)
            if own is not None:
                found[name] = own
    return found


def _clamp_limits(graph: Graph, values: Mapping[str, ir.Value]) -> dict[str, float]:
    """Upper bounds of tensors that a Clip with a constant bound writes."""
    limits: dict[str, float] = {}
    for name, value in values.items():
        clamp = graph.clamp(value.producer())
        if clamp is not None and clamp.high < np.inf:
            limits[name] = clamp.high
    return limits


def gate_floor(graph: Graph, value: ir.Value) -> float:
    """The value below which a hard gate makes every reader see 0, or -inf.

    x * clip(x + c, 0, h) and x * HardSigmoid(x) (HardSwish) are 0 for all x <= -c and x <= -beta/alpha. Where nothing
    else reads x, its range need not reach lower: codes spent there would all mean 0.
    """
    uses = list(value.uses())
    if len(uses) != 2 or value.is_graph_output():
        return -np.inf
    for gate, product in ((uses[0].node, uses[1].node), (uses[1].node, uses[0].node)):
        floor, open_gate = _gate(graph, gate, value)
        if open_gate is None or product.op_type != "Mul" or not any(v is open_gate for v in product.inputs):
            continue
        if graph.sole_consumer(open_gate) is product:
            return floor
    return -np.inf


def _gate(graph: Graph, node: ir.Node, value: ir.Value) -> tuple[float, ir.Value | None]:
    """(-c, gate) of a node that begins a hard gate."""
    if node.op_type == "HardSigmoid":
        alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 0.2
        beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 0.5
        return (-beta / alpha, node.outputs[0]) if alpha > 0.0 else (-np.inf, None)
    if node.op_type != "Add":
        return -np.inf, None
    offset = graph.scalar(node.inputs[1] if node.inputs[0] is value else node.inputs[0])
    clamp = graph.clamp(graph.sole_consumer(node.outputs[0]))
    if offset is None or clamp is None or clamp.low != 0.0:
        return -np.inf, None
    return -offset, clamp.node.outputs[0]


def _below(params: QParams, limit: float) -> QParams:
    """Lower the scale by single float steps until the largest code lies within a Clip's bound.

    6/255 rounded to float32 times 255 may exceed 6; a runtime then keeps the Clip, and with it the whole layer, float.
    Nothing is changed if the range reaches beyond the bound anyway.
    """
    steps = np.float32(params.dtype.qmax - params.dtype.qmin)
    scale = np.float32(params.scale)
    if float(scale) * float(steps) > limit * (1.0 + 1e-6):
        return params
    while np.float32(scale * steps) > np.float32(limit):
        scale = np.nextafter(scale, np.float32(0.0))
    return QParams(params.dtype, np.asarray(scale), params.zero_point, params.granularity)
