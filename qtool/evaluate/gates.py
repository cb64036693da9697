"""Gates: thresholds that a report must meet, as a command line states them.

``--fail-under sqnr=30`` fails if the worst output has an SQNR below 30 dB; ``--fail-over max_abs=0.1`` if the worst one
has a larger error. The direction belongs to the metric, and the wrong option is refused: a gate that can never fire is
worse than none. The value itself passes (not below, not over); NaN and "not defined for any output" fail.

Besides metrics, ``size_ratio`` and ``latency_ratio`` (float / quantized: how many times smaller and faster) are gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from qtool.errors import ConfigError
from qtool.evaluate.metrics import METRICS, select_metrics
from qtool.evaluate.report import Report


@dataclass(frozen=True)
class Gate:
    """One threshold.

    Attributes:
        name: A metric, or one of ``size_ratio`` and ``latency_ratio``.
        threshold: The value that still passes.
        over: False: fails below the threshold. True: fails above it.
    """

    name: str
    threshold: float
    over: bool

    def __str__(self) -> str:
        return f"{option(self.over)} {self.name}={self.threshold:g}"


RATIOS: Mapping[str, Callable[[Report], float | None]] = {
    "size_ratio": lambda report: report.sizes.ratio,
    "latency_ratio": lambda report: None if report.latency is None else report.latency.ratio,
}
"""Figures of the whole model that can be gated; for all of them higher is better."""


def option(over: bool) -> str:
    """The command line's name of a direction."""
    return "--fail-over" if over else "--fail-under"


def parse_gate(text: str, *, over: bool) -> Gate:
    """Read ``NAME=VALUE``.

    Args:
        text: As given by the user, e.g. ``sqnr=30``.
        over: Whether it was given as ``--fail-over``.

    Raises:
        ConfigError: If the text has another form, the name is unknown, the value is no number or one that the metric
            cannot take, or the option has the wrong direction for the metric.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise ConfigError(f"{option(over)} '{text}' is not of the form NAME=VALUE.", hint=f"E.g. {example(over)}.")
    known = [*METRICS, *RATIOS]
    if name not in known:
        raise ConfigError(f"{option(over)} '{text}': unknown metric '{name}'; expected one of: {', '.join(known)}.")
    try:
        threshold = float(value)
    except ValueError:
        threshold = math.nan
    if math.isnan(threshold):
        raise ConfigError(f"{option(over)} '{text}': '{value}' is not a number.", hint=f"E.g. {example(over)}.")
    metric = METRICS.get(name)
    higher_is_better = metric is None or metric.higher_is_better
    if higher_is_better == over:
        better = "higher" if higher_is_better else "lower"
        raise ConfigError(
            f"{option(over)} '{text}': for {name} {better} is better, so this gate would fail good models.",
            hint=f"Write {option(not over)} {name}={value}.",
        )
    low, high = (0.0, math.inf) if metric is None else metric.bounds
    if not low <= threshold <= high:
        percent = f"Write {name}={threshold / 100:g} for {threshold:g} %." if (low, high) == (0.0, 1.0) else None
        raise ConfigError(f"{option(over)} '{text}': {name} lies between {low:g} and {high:g}.", hint=percent)
    return Gate(name, threshold, over)


def example(over: bool) -> str:
    """A gate that parses, for hints."""
    return f"{option(over)} {'max_abs=0.1' if over else 'sqnr=30'}"


def parse_gates(fail_under: Iterable[str] = (), fail_over: Iterable[str] = ()) -> tuple[Gate, ...]:
    """All gates of a command line; see :func:`parse_gate`."""
    under = [parse_gate(text, over=False) for text in fail_under]
    over = [parse_gate(text, over=True) for text in fail_over]
    return (*under, *over)


def required_metrics(gates: Iterable[Gate], *, labels: bool) -> tuple[str, ...]:
    """Names of the metrics that an evaluation must compute to judge the gates: to be asked before any work.

    Args:
        gates: The gates.
        labels: Whether labels are at hand.

    Raises:
        ConfigError: If a gate needs labels and there are none.
    """
    names = [gate.name for gate in gates if gate.name in METRICS]
    return tuple(metric.name for metric in select_metrics(names, labels=labels))


def check(report: Report, gates: Iterable[Gate]) -> tuple[str, ...]:
    """The lines that say why a report fails; empty if it passes.

    Args:
        report: A finished evaluation.
        gates: Thresholds; without any, only what always fails is left (``Report.failures``).

    Raises:
        ConfigError: If a gate's metric was not computed or the latency not measured.
    """
    lines = list(report.failures)
    for gate in gates:
        line = _check_ratio(report, gate) if gate.name in RATIOS else _check_metric(report, gate)
        if line is not None:
            lines.append(line)
    return tuple(lines)


def _check_ratio(report: Report, gate: Gate) -> str | None:
    value = RATIOS[gate.name](report)
    if value is None:
        raise ConfigError(f"Gate '{gate}': the latency was not measured.", hint="Evaluate with latency.")
    if _passes(value, gate):
        return None
    return f"{gate.name} is {value:.6g}, below {gate.threshold:g}."


def _check_metric(report: Report, gate: Gate) -> str | None:
    metric = METRICS[gate.name]
    if gate.name not in report.metrics:
        hint = "Name the array of labels in the data with --labels KEY." if metric.needs_labels else None
        raise ConfigError(
            f"Gate '{gate}': {gate.name} was not computed; the report has: {', '.join(report.metrics) or 'none'}.",
            hint=hint,
        )
    worst = report.worst(gate.name)
    if worst is None:
        return f"{gate.name} is not defined for any output, so '{gate}' cannot pass."
    output, value = worst
    if _passes(value, gate):
        return None
    unit = f" {metric.unit}" if metric.unit else ""
    side = "over" if gate.over else "below"
    return f"{gate.name} of output '{output}' is {value:.6g}{unit}, {side} {gate.threshold:g}{unit}."


def _passes(value: float, gate: Gate) -> bool:
    # written so that a NaN does not pass
    return value <= gate.threshold if gate.over else value >= gate.threshold
