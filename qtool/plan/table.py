"""A plan as a table: for each node what becomes of it, of which types, and where its scales come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.granularity import PerAxis, PerBlock
from qtool.plan.analysis import Graph
from qtool.plan.bodies import planned_graphs
from qtool.plan.overriding import ActivationSettings, activation_settings
from qtool.plan.plan import Decision, Form, Plan, WeightPlan
from qtool.plan.ranges import fixed_ranges, shared_groups
from qtool.plan.selection import Selection
from qtool.plan.stored import StoredWeight
from qtool.plan.tensor_methods import method_text


@dataclass(frozen=True)
class ScaleSource:
    """Where the scale of one tensor comes from.

    Attributes:
        tensor: Its name.
        role: ``input``, ``output``, ``weight`` or ``bias``.
        dtype: Element type of its codes.
        source: In words: ``calibrated (auto)``, ``fixed by Softmax``, ``shared with 'x'``, ``absmax per channel`` ..
    """

    tensor: str
    role: str
    dtype: str
    source: str

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return {"tensor": self.tensor, "role": self.role, "dtype": self.dtype, "source": self.source}


@dataclass(frozen=True)
class PlanRow:
    """What becomes of one node.

    Attributes:
        node: Its name.
        op_type: Its operator.
        decision: ``quantize`` or ``float``.
        becomes: The form of a quantized node (``operator``, ``mover``, ``dynamic`` ..), ``part of X``, or ``float``.
        reason: Why a node stays float; of a quantized one what there is to know (a repaired scale, an override).
        scales: Of every tensor that it reads or writes quantized.
        bytes_before: Constants that it is the first to read, in the float model.
        bytes_after: The same in the quantized model, with scales and zero points; None where that is not known.
    """

    node: str
    op_type: str
    decision: str
    becomes: str
    reason: str
    scales: tuple[ScaleSource, ...] = ()
    bytes_before: int = 0
    bytes_after: int | None = None

    @property
    def activations(self) -> str:
        """Types of what it reads and writes: ``uint8``, ``uint8 -> float``; empty for a float node."""
        read = list(dict.fromkeys(s.dtype for s in self.scales if s.role == "input"))
        written = list(dict.fromkeys(s.dtype for s in self.scales if s.role == "output"))
        if not read and not written:
            return ""
        left, right = ", ".join(read) or "float", ", ".join(written) or "float"
        return left if left == right else f"{left} -> {right}"

    @property
    def weights(self) -> str:
        """Types of its constants, the bias aside."""
        return ", ".join(dict.fromkeys(s.dtype for s in self.scales if s.role == "weight"))

    @property
    def sources(self) -> str:
        """All sources in one cell, those of inputs, outputs and weights."""
        parts = [(role, s.source) for role in ("input", "output", "weight") for s in self.scales if s.role == role]
        return "; ".join(f"{role} {source}" for role, source in dict.fromkeys(parts))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "decision": self.decision,
            "becomes": self.becomes,
            "reason": self.reason,
            "activations": self.activations,
            "weights": self.weights,
            "scales": [s.to_dict() for s in self.scales],
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }


def plan_rows(
    nodes: Sequence[tuple[str, ir.Node]], model: ir.Model, plan: Plan, config: QuantConfig, selection: Selection
) -> list[PlanRow]:
    """A row for each node that the plan knows, in graph order.

    Args:
        nodes: (name in the plan, node) in graph order.
        model: The prepared model.
        plan: With or without parameters.
        config: The settings that it was made with.
        selection: The patterns that it was made with.
    """
    sources = _Sources(model, plan, config, selection)
    rows: dict[str, PlanRow] = {}
    for d in plan.decisions:
        said = f"override: {', '.join(f'{k} {str(v).lower()}' for k, v in d.override)}" if d.override else ""
        form = f"{d.form} ({d.written_as})" if d.override and d.written_as else str(d.form)
        remark = "; ".join(part for part in (d.note or "", said) if part)
        rows[d.node] = PlanRow(d.node, d.op_type, "quantize", form, remark, tuple(sources.of(d)))
        for name in d.absorbed:
            rows[name] = PlanRow(name, plan.absorbed_types.get(name, ""), "quantize", f"part of {d.node}", "")
    for s in plan.skips:
        rows[s.node] = PlanRow(s.node, s.op_type, "float", "float", s.reason)
    return [replace(rows[name], op_type=node.op_type) for name, node in nodes if name in rows]


class _Sources:
    """Where scales come from."""

    def __init__(self, model: ir.Model, plan: Plan, config: QuantConfig, selection: Selection) -> None:
        self._plan = plan
        self._config = config
        self._selection = selection
        self._special: dict[str, QuantConfig] = {}
        self._first: dict[str, str] = {}
        self._fixed: dict[str, tuple[float, float]] = {}
        self._producers: dict[str, ir.Node | None] = {}
        if plan.tensors:
            for graph in planned_graphs(model):
                self._look(graph)
        self._settings = ActivationSettings(config, self._special)

    def _look(self, graph: Graph) -> None:
        """Settle what one graph says about its activations."""
        self._producers |= {n: v.producer() for n, v in graph.values.items()}
        decisions = [d for d in self._plan.decisions if d.node in graph.by_name and (d.inputs or d.outputs)]
        names = list(dict.fromkeys(t for d in decisions for t in (*(t for _, t in d.inputs), *d.outputs)))
        names = [name for name in self._plan.tensors if name in names]
        settings = activation_settings(graph, decisions, names, self._config, self._selection)
        self._special |= settings.special
        for group in shared_groups(decisions, names):
            self._first.update((name, group[0]) for name in group)
        values = {name: graph.values[name] for name in names if name in graph.values}
        self._fixed |= fixed_ranges(values, decisions, settings.of)

    def of(self, decision: Decision) -> list[ScaleSource]:
        """Of every tensor of a decision."""
        if decision.form is Form.DYNAMIC:
            found = [ScaleSource(t, "input", "uint8", "measured by the running model") for _, t in decision.inputs]
        else:
            found = [self._activation(t, "input") for _, t in decision.inputs]
            found += [self._activation(t, "output") for t in decision.outputs]
        found += [self._weight(weight, decision) for weight in decision.weights]
        if decision.bias is not None:
            product = "scale of the input times that of the weight"
            found.append(ScaleSource(decision.bias.tensor, "bias", "int32", product))
        return found

    def _activation(self, tensor: str, role: str) -> ScaleSource:
        params = self._plan.tensors.get(tensor)
        dtype = params.dtype.name if params is not None else self._settings.dtype(tensor).name
        first = self._first.get(tensor, tensor)
        if first != tensor:
            source = f"shared with '{first}'"
        elif tensor in self._fixed:
            producer = self._producers.get(tensor)
            source = f"fixed by {producer.op_type if producer is not None else 'its operator'}"
        else:
            source = f"calibrated ({method_text(self._settings.of(tensor), [tensor])})"
        return ScaleSource(tensor, role, dtype, source)

    def _weight(self, weight: WeightPlan, decision: Decision) -> ScaleSource:
        if isinstance(weight, StoredWeight):
            dtype = weight.dtype.name if weight.dtype is not None else ""
            return ScaleSource(weight.tensor, "weight", dtype, f"search {_where(weight.granularity)}")
        params = weight.params
        if weight.as_activation:
            beside = self._activation(decision.inputs[0][1], "input").dtype if decision.inputs else ""
            dtype = params.dtype.name if params is not None else beside
            return ScaleSource(weight.tensor, "weight", dtype, "range of the constant")
        if params is not None:
            return ScaleSource(weight.tensor, "weight", params.dtype.name, f"absmax {_where(params.granularity)}")
        said = dict(decision.override)
        per_channel = said.get("per_channel", self._config.per_channel) and weight.axis is not None
        if decision.op_type in self._config.facts.per_tensor_weights:
            per_channel = False
        dtype = said.get("weights", self._config.weights)
        return ScaleSource(weight.tensor, "weight", dtype, f"absmax {'per channel' if per_channel else 'per tensor'}")


def _where(granularity: object) -> str:
    if isinstance(granularity, PerBlock):
        return f"blocks of {granularity.size}"
    return "per channel" if isinstance(granularity, PerAxis) else "per tensor"
