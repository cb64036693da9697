"""Gates: thresholds that a report must meet, as a command line or a configuration file states them.

``--fail-under sqnr=30`` fails if the worst output has an SQNR below 30 dB; ``--fail-over max_abs=0.1`` if the worst one
has a larger error. The direction belongs to the metric, and the wrong option is refused: a gate that can never fire is
worse than none. The value itself passes (not below, not over); NaN and "not defined for any output" fail.

Besides metrics there are:

- ``drop=0.5pp`` or ``drop=1%`` (``--fail-over``): how much the quantized model is worse than the float model against
  labels, in percentage points or as a share of the float model's value; ``drop`` is about the metric that stands for
  accuracy (``Report.primary``), ``drop:NAME`` about another one. Where lower is better, a rise is the drop.
- ``--min-agreement 99``: percent of decisions that stay the same, ``top1_agreement`` in other words.
- ``size_ratio`` and ``latency_ratio`` (float / quantized: how many times smaller and faster).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qtool.errors import ConfigError
from qtool.evaluate.metrics import METRICS, find_metric, select_metrics, unknown
from qtool.evaluate.metrics.base import Metric
from qtool.evaluate.paired import shows_nothing
from qtool.evaluate.report import GateResult, OutputReport, Report, Statistic

DROP, AGREEMENT = "drop", "agreement"
POINTS, PERCENT = "pp", "%"


@dataclass(frozen=True)
class Gate:
    """One threshold.

    Attributes:
        name: A metric, ``drop`` or ``drop:METRIC``, ``agreement``, ``size_ratio`` or ``latency_ratio``.
        threshold: The value that still passes.
        over: False: fails below the threshold. True: fails above it.
        unit: Unit of the threshold where it is part of the gate: ``pp`` or ``%``.
    """

    name: str
    threshold: float
    over: bool
    unit: str = ""

    def __str__(self) -> str:
        if self.name == AGREEMENT:
            return f"--min-agreement {self.threshold:g}"
        return f"{option(self.over)} {self.name}={self.threshold:g}{self.unit}"


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
    if name == DROP or name.startswith(f"{DROP}:"):
        return _parse_drop(name, value, text, over=over)
    metric = None if name in RATIOS else find_metric(name)
    if metric is None and name not in RATIOS:
        known = unknown(name, [*METRICS, DROP, *RATIOS])
        raise ConfigError(f"{option(over)} '{text}': unknown metric '{name}'; {known}")
    threshold = _number(value)
    if math.isnan(threshold):
        raise ConfigError(f"{option(over)} '{text}': '{value}' is not a number.", hint=f"E.g. {example(over)}.")
    higher_is_better = metric is None or metric.higher_is_better
    if higher_is_better is not None and higher_is_better == over:
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


def _parse_drop(name: str, value: str, text: str, *, over: bool) -> Gate:
    _, _, of = name.partition(":")
    metric = METRICS.get(of)
    judging = [metric.name for metric in METRICS.values() if metric.needs_labels]
    if name != DROP and of not in judging:
        raise ConfigError(f"{option(over)} '{text}': no drop of '{of}'; {unknown(of, judging)}")
    if not over:
        raise ConfigError(
            f"{option(over)} '{text}': a smaller drop is better, so this gate would fail good models.",
            hint=f"Write {option(True)} {name}={value}.",
        )
    match = re.fullmatch(r"(.*?)\s*(pp|%)", value)
    threshold = _number(match[1]) if match else math.nan
    if match is None or math.isnan(threshold):
        raise ConfigError(
            f"{option(over)} '{text}': a drop is in percentage points or percent of the float model's value.",
            hint=f"E.g. {option(True)} drop=0.5pp, or drop=1%.",
        )
    if metric is not None and match[2] == POINTS and not metric.share:
        raise ConfigError(
            f"{option(over)} '{text}': {of} is no share, so that percentage points say nothing.",
            hint=f"Write {name}=1% for a hundredth of the float model's value.",
        )
    return Gate(name, threshold, over, match[2])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def example(over: bool) -> str:
    """A gate that parses, for hints."""
    return f"{option(over)} {'max_abs=0.1' if over else 'sqnr=30'}"


def min_agreement(percent: float) -> Gate:
    """The gate of ``--min-agreement``.

    Raises:
        ConfigError: If it is no percentage.
    """
    if not 0.0 <= percent <= 100.0:
        raise ConfigError(f"--min-agreement is {percent:g}; expected percent, from 0 to 100.")
    hint = f"Write --min-agreement {percent * 100:g} for a share of {percent:g}."
    if 0.0 < percent <= 1.0:
        raise ConfigError(f"--min-agreement is {percent:g}; expected percent, as in 99.", hint=hint)
    return Gate(AGREEMENT, percent, over=False, unit=PERCENT)


def parse_gates(
    fail_under: Iterable[str] | Mapping[str, object] = (),
    fail_over: Iterable[str] | Mapping[str, object] = (),
    agreement: float | None = None,
) -> tuple[Gate, ...]:
    """All gates of a command line or of a caller; see :func:`parse_gate`.

    Args:
        fail_under: ``NAME=VALUE`` each, or names with their values.
        fail_over: The same for upper limits.
        agreement: Percent of decisions that must stay the same.
    """
    under = [parse_gate(text, over=False) for text in texts(fail_under)]
    over = [parse_gate(text, over=True) for text in texts(fail_over)]
    least = [] if agreement is None else [min_agreement(agreement)]
    return (*under, *over, *least)


def texts(gates: Iterable[str] | Mapping[str, object]) -> list[str]:
    """Gates as ``NAME=VALUE``."""
    return [f"{name}={value}" for name, value in gates.items()] if isinstance(gates, Mapping) else list(gates)


def required_metrics(gates: Iterable[Gate], *, labels: bool) -> tuple[str, ...]:
    """Names of the metrics that an evaluation must compute to judge the gates: to be asked before any work.

    Args:
        gates: The gates.
        labels: Whether labels are at hand.

    Raises:
        ConfigError: If a gate needs labels and there are none.
    """
    gates = tuple(gates)
    dropping = next((gate for gate in gates if gate.name == DROP), None)
    if dropping is not None and not labels:
        raise ConfigError(
            f"Gate '{dropping}' is on the metric against labels, and there are none.",
            hint="Name the array of labels in the data with --labels KEY.",
        )
    names = [name for gate in gates if (name := _metric_name(gate)) is not None]
    for name in names:  # wer needs a word separator too, which is the evaluation's to ask for
        if name != "wer" or not labels:
            select_metrics([name], labels=labels, separator=0)
    order = [*METRICS, *names]
    return tuple(sorted(dict.fromkeys(names), key=order.index))


def require_latency(gates: Iterable[Gate], engine: str, *, latency: bool) -> None:
    """Refuse a gate on a latency that will not be measured.

    Raises:
        ConfigError: If there is one.
    """
    if not any(gate.name == "latency_ratio" for gate in gates):
        return
    if engine != "ort":
        raise ConfigError(f"Gate latency_ratio needs the latency, which is not measured with --engine {engine}.")
    if not latency:
        raise ConfigError("Gate latency_ratio needs the latency, and --no-latency was given.")


def with_required(metrics: Sequence[str] | None, needed: Sequence[str]) -> list[str] | None:
    """The metrics to compute: those wished for and those that gates need; None for what is computed unasked."""
    if metrics is not None:
        return list(dict.fromkeys([*metrics, *needed]))
    extra = [name for name in needed if name not in METRICS or not METRICS[name].default]
    return ["default", *extra] if extra else None


def _metric_name(gate: Gate) -> str | None:
    """What must be computed for a gate; None for what always is."""
    if gate.name in RATIOS:
        return None
    if gate.name == AGREEMENT:
        return "top1_agreement"
    if gate.name == DROP:
        return "primary"
    return gate.name.removeprefix(f"{DROP}:")


def judge(report: Report, gates: Iterable[Gate]) -> tuple[GateResult, ...]:
    """The outcome of every gate.

    Args:
        report: A finished evaluation.
        gates: Thresholds.

    Raises:
        ConfigError: If a gate's metric was not computed or the latency not measured.
    """
    return tuple(_judge(report, gate) for gate in gates)


def judged(report: Report, gates: Iterable[Gate]) -> Report:
    """The report with the outcome of every gate; see :func:`judge`."""
    return replace(report, gates=judge(report, gates))


def lines(report: Report) -> tuple[str, ...]:
    """The lines that say why a judged report fails; empty if it passes."""
    return (*report.failures, *(gate.line for gate in report.gates if not gate.passed))


def check(report: Report, gates: Iterable[Gate]) -> tuple[str, ...]:
    """The lines that say why a report fails; empty if it passes.

    Args:
        report: A finished evaluation.
        gates: Thresholds; without any, only what always fails is left (``Report.failures``).

    Raises:
        ConfigError: If a gate's metric was not computed or the latency not measured.
    """
    return lines(judged(report, gates))


def _judge(report: Report, gate: Gate) -> GateResult:
    if gate.name in RATIOS:
        value = RATIOS[gate.name](report)
        if value is None:
            raise ConfigError(f"Gate '{gate}': the latency was not measured.", hint="Evaluate with latency.")
        return _result(gate, gate.name, value, None, "")
    metric = _computed(report, gate)
    if gate.name == DROP or gate.name.startswith(f"{DROP}:"):
        return _judge_drop(report, gate, metric)
    worst = report.worst(metric.name, over=gate.over)
    if worst is None:
        return _undefined(gate, gate.name, metric.unit)
    output, value = worst
    if gate.name == AGREEMENT:
        return _result(gate, f"top1_agreement of output '{output}'", round(100.0 * value, 10), output, PERCENT)
    return _result(gate, f"{gate.name} of output '{output}'", value, output, metric.unit)


def _computed(report: Report, gate: Gate) -> Metric:
    name = _metric_name(gate)
    if name == "primary":
        name = report.primary or "primary"
    if name not in report.metrics:
        metric = METRICS.get(str(name))
        hint = "Name the array of labels in the data with --labels KEY."
        subject = gate.name if name == "primary" else name
        raise ConfigError(
            f"Gate '{gate}': {subject} was not computed; the report has: {', '.join(report.metrics) or 'none'}.",
            hint=hint if name == "primary" or (metric is not None and metric.needs_labels) else None,
        )
    return report.metric(str(name))


def _judge_drop(report: Report, gate: Gate, metric: Metric) -> GateResult:
    if gate.unit == POINTS and not metric.share:
        raise ConfigError(
            f"Gate '{gate}': {metric.name} is no share, so that percentage points say nothing.",
            hint=f"Write {gate.name}=1% for a hundredth of the float model's value.",
        )
    drops = [(drop, output) for output in report.outputs if (drop := _drop_of(output, metric, gate.unit)) is not None]
    if not drops:
        return _undefined(gate, f"drop of {metric.name}", gate.unit)
    broken = [pair for pair in drops if math.isnan(pair[0])]
    value, output = broken[0] if broken else max(drops, key=lambda pair: pair[0])
    subject = f"drop of {metric.name} of output '{output.name}'"
    result = _result(gate, subject, value, output.name, gate.unit)
    doubt = _doubt(metric, gate, output.statistics.get(metric.name))
    return replace(result, line=result.line + doubt)


def _drop_of(output: OutputReport, metric: Metric, unit: str) -> float | None:
    """How much worse the quantized model is, in pp or %."""
    ours, theirs = output.float_values.get(metric.name), output.values.get(metric.name)
    if theirs is not None and math.isnan(theirs):
        return math.nan
    if ours is None or theirs is None:
        return None
    if ours == theirs:  # two infinities too
        return 0.0
    worse = ours - theirs if metric.higher_is_better else theirs - ours
    if unit == POINTS:
        return round(100.0 * worse, 10)  # so that a drop of 0.5 pp is not above 0.5
    return round(100.0 * worse / abs(ours), 10) if ours else math.copysign(math.inf, worse)


def _doubt(metric: Metric, gate: Gate, statistic: Statistic | None) -> str:
    """What samples leave open about a drop in points."""
    if statistic is None or statistic.interval is None or gate.unit != POINTS:
        return ""
    low, high = (100.0 * end for end in statistic.interval)
    if metric.higher_is_better:
        low, high = -high, -low
    text = f" Its 95 % interval is {low:.3g} to {high:.3g} pp"
    if statistic.detectable is not None and shows_nothing(statistic) and 100.0 * statistic.detectable > gate.threshold:
        least = 100.0 * statistic.detectable
        limit = "any drop" if least > 100 else f"a drop below {least:.2g} pp"
        text += f": n={statistic.n} cannot show {limit}"
    return f"{text}."


def _result(gate: Gate, subject: str, value: float, output: str | None, unit: str) -> GateResult:
    # written so that a NaN does not pass
    passed = value <= gate.threshold if gate.over else value >= gate.threshold
    side = ("at most" if gate.over else "at least") if passed else ("over" if gate.over else "below")
    text = f" {unit}" if unit else ""
    line = f"{subject} is {value:.6g}{text}, {side} {gate.threshold:g}{text}."
    return GateResult(gate.name, str(gate), gate.threshold, gate.over, unit, value, output, bool(passed), line)


def _undefined(gate: Gate, subject: str, unit: str) -> GateResult:
    line = f"{subject} is not defined for any output, so '{gate}' cannot pass."
    return GateResult(gate.name, str(gate), gate.threshold, gate.over, unit, None, None, passed=False, line=line)
