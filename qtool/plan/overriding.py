"""Overrides of single nodes, where they meet: activations that several nodes read, and groups that share a scale.

The parameters of an activation are those that its readers ask for. A reader whose override says something outranks all
that have none; two overrides that say different things are refused. Where no quantized node reads an activation, its
writer's override counts. Tensors that share their parameters (a Reshape's input and output) count as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from qtool.config import QLINEAR_PAIRS, QuantConfig
from qtool.dtypes import QDType, qdtype
from qtool.errors import ConfigError
from qtool.overrides import KEYS, Override
from qtool.plan.analysis import Graph
from qtool.plan.plan import Decision, Form
from qtool.plan.ranges import shared_groups
from qtool.plan.selection import Selection

_OF_ACTIVATIONS = ("activations", "symmetric", "method")


@dataclass(frozen=True)
class ActivationSettings:
    """How the activations of a model are quantized.

    Attributes:
        config: The settings of all that no override is about.
        special: Tensor -> settings, of those that one is about.
    """

    config: QuantConfig
    special: Mapping[str, QuantConfig]

    def of(self, tensor: str) -> QuantConfig:
        """The settings of a tensor."""
        return self.special.get(tensor, self.config)

    def dtype(self, tensor: str) -> QDType:
        """Its element type."""
        return qdtype(self.of(tensor).activations)


def activation_settings(
    graph: Graph, decisions: Sequence[Decision], tensors: Sequence[str], config: QuantConfig, selection: Selection
) -> ActivationSettings:
    """Settle what overrides say about activations.

    Raises:
        ConfigError: If two of them say different things about one tensor, or about two that share their parameters.
    """
    if not any(key in o.given for o in config.overrides for key in _OF_ACTIVATIONS):
        return ActivationSettings(config, {})
    special: dict[str, QuantConfig] = {}
    readers: dict[str, list[Decision]] = {}
    writers: dict[str, Decision] = {}
    for decision in decisions:
        for _, tensor in decision.inputs:
            readers.setdefault(tensor, []).append(decision)
        writers.update((tensor, decision) for tensor in decision.outputs)
    for group in shared_groups(decisions, tensors):
        changes: dict[str, Any] = {}
        for key in _OF_ACTIVATIONS:
            read = [d for tensor in group for d in readers.get(tensor, ()) if d.form is not Form.MOVER]
            found = _said(graph, selection, read, key)
            if not found:
                movers = [d for tensor in group for d in readers.get(tensor, ()) if d.form is Form.MOVER]
                found = _said(graph, selection, movers, key)
            if not found and not read:
                found = _said(graph, selection, [writers[t] for t in group if t in writers], key)
            if not found:
                continue
            node, value = next(iter(found.items()))
            other = next((n for n, v in found.items() if v != value), None)
            if other is not None:
                raise ConfigError(
                    f"Overrides disagree about '{group[0]}': {key} is {_word(value)} for '{node}' and "
                    f"{_word(found[other])} for '{other}', which share it.",
                    hint="Give both nodes the same, or leave one of them in float.",
                )
            changes[KEYS[key]] = value
        if changes:
            settings = _changed(config, changes, group[0])
            special.update(dict.fromkeys(group, settings))
    return ActivationSettings(config, special)


def _said(graph: Graph, selection: Selection, decisions: Iterable[Decision], key: str) -> dict[str, Any]:
    """Node -> value, of those whose override says something."""
    found: dict[str, Any] = {}
    for decision in decisions:
        override = override_of(graph, decision, selection)
        value = None if override is None else override.given.get(key)
        if value is not None:
            found[decision.node] = value
    return found


def override_of(graph: Graph, decision: Decision, selection: Selection) -> Override | None:
    """What overrides say about the node of a decision."""
    return selection.override_of(graph.by_name[decision.node])


def _changed(config: QuantConfig, changes: dict[str, Any], tensor: str) -> QuantConfig:
    # weights and format are the nodes' own affair: here they must only not stand in the way
    legal: dict[str, Any] = {"overrides": ()}
    legal |= {"format": "qdq"} if "qdq" in config.facts.formats else {}
    legal |= {"weights": "int8"} if "int8" in config.facts.weights else {}
    try:
        return config.with_options(**legal, **changes)
    except ConfigError as error:
        raise ConfigError(f"Overrides of the readers of '{tensor}': {error.message}", hint=error.hint) from error


def symmetric_clamps(decisions: Sequence[Decision], settings: ActivationSettings) -> frozenset[str]:
    """Relus and Clips that must not be absorbed: the zero point of what they write is fixed by an override."""
    if not settings.special:
        return frozenset()
    return frozenset(
        d.clip for d in decisions if d.clip is not None and settings.of(d.outputs[0]).symmetric_activations
    )


def with_forms(
    graph: Graph,
    decisions: Sequence[Decision],
    settings: ActivationSettings,
    selection: Selection,
) -> list[Decision]:
    """Record in each decision what overrides say about it, and the form that it is written in.

    Raises:
        ConfigError: If the operator form is asked for, and there is no operator for the types that a node gets.
    """
    if not settings.config.overrides:
        return list(decisions)
    result = []
    for decision in decisions:
        override = override_of(graph, decision, selection)
        config = selection.config_for(graph.by_name[decision.node])
        form = config.format
        if form == "qlinear" and decision.form is Form.OPERATOR and not _has_operator(decision, settings, config):
            if override is not None and override.format == "qlinear":
                types = [settings.of(t).activations for t in (*(t for _, t in decision.inputs), *decision.outputs)]
                raise ConfigError(
                    f"{override.subject} asks for the operator form of '{decision.node}', whose types there is no "
                    f"operator for: activations of {', '.join(dict.fromkeys(types))} with weights of {config.weights}.",
                    hint="Give its neighbours the same type of activations, or drop the format.",
                )
            form = "qdq"
        said = () if override is None else tuple(override.given.items())
        result.append(replace(decision, written_as=form, override=said))
    return result


def _has_operator(decision: Decision, settings: ActivationSettings, config: QuantConfig) -> bool:
    """Whether QLinearMatMul and QLinearConv take the types; without codes as output there is no operator anyway."""
    if not decision.outputs:
        return True
    operands = {index: settings.of(tensor).activations for index, tensor in decision.inputs}
    for weight in decision.weights:
        operands[weight.index] = operands[decision.inputs[0][0]] if weight.as_activation else config.weights
    left, right = operands[0], operands[1]
    return (left, right) in QLINEAR_PAIRS and all(settings.of(t).activations == left for t in decision.outputs)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_quantized_nodes(
    config: QuantConfig, selection: Selection, model: ir.Model, decided: Iterable[str]
) -> list[str]:
    """A line for each override that is about no quantized node."""
    names = set(decided)
    quantized = [node for node in model.graph.all_nodes() if node.name in names]
    return [
        f"{override.subject} ({override.describe()}) changes nothing: no node that it matches is quantized"
        for override in config.overrides
        if not override.keep_float and not any(selection.matches(override, node) for node in quantized)
    ]
