"""The result of an evaluation: plain frozen data, and its JSON form.

``Report.to_dict`` is strict JSON: numbers that JSON lacks are the strings ``"inf"``, ``"-inf"`` and ``"nan"``; a value
that is not defined is ``null``. Keys come in a fixed order and no time of day is in it, so two reports differ only
where the evaluations do (latency is measured, and never twice the same).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qtool.evaluate.attribution.report import Attribution, Sensitivity
from qtool.evaluate.details import Details
from qtool.evaluate.json_form import Json, encode
from qtool.evaluate.metrics import METRICS, PRIMARY
from qtool.evaluate.metrics.base import Metric

if TYPE_CHECKING:
    from qtool.evaluate.checks.result import CheckResult

SCHEMA_VERSION = 1
"""Raised whenever a key of the JSON form is renamed, removed or changes its meaning; new keys leave it."""


@dataclass(frozen=True)
class Statistic:
    """How far one metric on one output can be trusted.

    Attributes:
        n: Independent samples behind it.
        float_value: The float model's own value; None for metrics that compare the two models with each other.
        quantized_value: The quantized model's own value, or the distance of the two models.
        delta: ``quantized_value - float_value``; None without a float value.
        interval: 95 % interval of the delta, or of the value where there is no delta; None where there are too few
            samples, or the samples' shares of an output cannot be told apart.
        method: What the interval comes from: ``score`` (McNemar's test of paired answers, turned around),
            or Wilson's of a share of samples that are all alike), ``bootstrap`` (over samples), or empty without one.
        p_value: Exact McNemar test that both models are equally good; None where answers are not paired one per sample.
        lost: Samples that only the float model answers correctly; None as for ``p_value``.
        gained: Samples that only the quantized model answers correctly.
        detectable: The smallest drop that these samples could have shown; None where nothing is known.
    """

    n: int
    float_value: float | None = None
    quantized_value: float | None = None
    delta: float | None = None
    interval: tuple[float, float] | None = None
    method: str = ""
    p_value: float | None = None
    lost: int | None = None
    gained: int | None = None
    detectable: float | None = None

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "n": self.n,
            "float": encode(self.float_value),
            "quantized": encode(self.quantized_value),
            "delta": encode(self.delta),
            "interval": None if self.interval is None else [encode(end) for end in self.interval],
            "method": self.method,
            "p_value": encode(self.p_value),
            "lost": self.lost,
            "gained": self.gained,
            "detectable": encode(self.detectable),
        }


@dataclass(frozen=True)
class GateResult:
    """A threshold and whether the report meets it.

    Attributes:
        name: What is judged: a metric, ``drop`` or ``drop:METRIC``, ``agreement``, ``size_ratio``, ``latency_ratio``.
        option: The gate as the command line states it, e.g. ``--fail-under sqnr=30``.
        threshold: The value that still passes.
        over: False: fails below the threshold. True: fails above it.
        unit: Unit of threshold and value: ``dB``, ``pp``, ``%`` or empty.
        value: What was found, of the worst output; None: not defined for any output.
        output: The output that the value is of; None for what is about the whole model or no output.
        passed: Whether the gate holds; NaN and None never do.
        line: One sentence that says what was found, for either outcome.
    """

    name: str
    option: str
    threshold: float
    over: bool
    unit: str
    value: float | None
    output: str | None
    passed: bool
    line: str

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "name": self.name,
            "option": self.option,
            "threshold": encode(self.threshold),
            "over": self.over,
            "unit": self.unit,
            "value": encode(self.value),
            "output": self.output,
            "passed": self.passed,
            "line": self.line,
        }


@dataclass(frozen=True)
class OutputReport:
    """How one output of the quantized model differs from the float model's.

    Attributes:
        name: Output name, the same in both models.
        dtype: Element type in the float model, numpy's name for it.
        shape: Declared shape in the float model: a size, a symbol, or None where unknown.
        elements: How many elements were compared over all samples.
        values: Metric name to value; None: not defined for this output; nan: broken.
        float_values: The float model's own value, for metrics against labels only.
        new_nan: Elements that are NaN in the quantized model only.
        new_inf: Elements that are infinite in the quantized model and finite in the float model.
        statistics: Metric name to sample size, interval and comparison with the float model, for metrics that have
            them.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    elements: int
    values: Mapping[str, float | None]
    float_values: Mapping[str, float | None] = field(default_factory=dict)
    new_nan: int = 0
    new_inf: int = 0
    statistics: Mapping[str, Statistic] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "elements": self.elements,
            "values": {name: encode(value) for name, value in self.values.items()},
            "float_values": {name: encode(value) for name, value in self.float_values.items()},
            "new_nan": self.new_nan,
            "new_inf": self.new_inf,
            "statistics": {name: statistic.to_dict() for name, statistic in self.statistics.items()},
        }


@dataclass(frozen=True)
class Sizes:
    """Bytes of both models: the model file and every external data file it names.

    Attributes:
        float_bytes: Float model.
        quantized_bytes: Quantized model.
    """

    float_bytes: int
    quantized_bytes: int

    @property
    def ratio(self) -> float:
        """How many times smaller the quantized model is: float bytes / quantized bytes."""
        return self.float_bytes / self.quantized_bytes if self.quantized_bytes else math.inf

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "float_bytes": self.float_bytes,
            "quantized_bytes": self.quantized_bytes,
            "ratio": encode(self.ratio),
        }


@dataclass(frozen=True)
class Latency:
    """Time of one batch in both models, by interleaved rounds on the same data and threads.

    Attributes:
        float_ms: Median over runs of the float model's milliseconds per batch.
        quantized_ms: The same of the quantized model.
        rounds: Number of rounds; both models run in each.
        runs: Timed runs of each model in all rounds together.
        batch_size: Samples in the batch.
        threads: Threads of each session; None: the runtime's own choice.
    """

    float_ms: float
    quantized_ms: float
    rounds: int
    runs: int
    batch_size: int
    threads: int | None

    @property
    def ratio(self) -> float:
        """Speed-up: float time / quantized time; above 1 the quantized model is faster."""
        return self.float_ms / self.quantized_ms if self.quantized_ms else math.inf

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "float_ms": encode(self.float_ms),
            "quantized_ms": encode(self.quantized_ms),
            "ratio": encode(self.ratio),
            "rounds": self.rounds,
            "runs": self.runs,
            "batch_size": self.batch_size,
            "threads": self.threads,
        }


@dataclass(frozen=True)
class Source:
    """Data that were evaluated on.

    Attributes:
        path: The file as it was named, or None for arrays in memory.
        sha256: Hash of the file's bytes, or of the arrays.
    """

    path: str | None
    sha256: str

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {"path": self.path, "sha256": self.sha256}


@dataclass(frozen=True)
class Report:
    """What a quantized model costs and gains against its float model.

    Attributes:
        float_model: Path as given, or None for a model in memory.
        quantized_model: The same.
        metrics: Names of the metrics that were computed, in the order of columns.
        outputs: One entry per output, in the float model's order.
        samples: Number of samples compared.
        sources: Where the samples came from.
        sizes: Bytes of both models.
        latency: Time of both models, or None if it was not measured.
        engine: What ran the quantized model; the float model always runs in onnxruntime.
        notes: What the reader should know, one line each.
        failures: What makes the quantized model unusable whatever the gates say, one line each.
        gates: The thresholds that were asked for, in that order, each with its outcome.
        custom: Metrics of the user's own among ``metrics``.
        layers: Which quantized operator the noise comes from, if that was asked for.
        sensitivity: What each quantized operator alone gains in float, if that was asked for.
        details: What both files are, if that was asked for.
        checks: What checks of the runtime found; None if none were asked for.
        labels: Key of the labels, or None without.
        label_kind: What the labels are, in words; None without.
    """

    float_model: str | None
    quantized_model: str | None
    metrics: tuple[str, ...]
    outputs: tuple[OutputReport, ...]
    samples: int
    sources: tuple[Source, ...]
    sizes: Sizes
    latency: Latency | None
    engine: str = "ort"
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    custom: tuple[Metric, ...] = ()
    layers: Attribution | None = None
    sensitivity: Sensitivity | None = None
    details: Details | None = None
    checks: tuple[CheckResult, ...] | None = None
    labels: str | None = None
    label_kind: str | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing failed: no gate, and nothing that fails without one."""
        return not self.failures and all(gate.passed for gate in self.gates)

    @property
    def primary(self) -> str | None:
        """The metric that stands for accuracy, if it was computed."""
        name = next((PRIMARY[kind] for kind in PRIMARY if kind.value == self.label_kind), None)
        return name if name in self.metrics else None

    def metric(self, name: str) -> Metric:
        """What is known about one of ``metrics``: title, unit, direction, bounds."""
        return next((metric for metric in self.custom if metric.name == name), None) or METRICS[name]

    def worst(self, metric: str, *, over: bool = False) -> tuple[str, float] | None:
        """The worst output by a metric and its value; a NaN is worse than any number, None if no output has a value.

        Args:
            metric: One of ``metrics``.
            over: Of a metric whose direction nobody knows: whether a large value is bad.
        """
        values = [(output.name, value) for output in self.outputs if (value := output.values.get(metric)) is not None]
        broken = [pair for pair in values if math.isnan(pair[1])]
        if broken:
            return broken[0]
        higher_is_better = self.metric(metric).higher_is_better
        choose = max if higher_is_better is False or (higher_is_better is None and over) else min
        return choose(values, key=lambda pair: pair[1], default=None)

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see the module."""
        return {
            "schema_version": SCHEMA_VERSION,
            "float_model": self.float_model,
            "quantized_model": self.quantized_model,
            "engine": self.engine,
            "labels": self.labels,
            "label_kind": self.label_kind,
            "samples": self.samples,
            "sources": [source.to_dict() for source in self.sources],
            "metrics": [
                {
                    "name": name,
                    "unit": self.metric(name).unit,
                    "higher_is_better": self.metric(name).higher_is_better,
                    "needs_labels": self.metric(name).needs_labels,
                }
                for name in self.metrics
            ],
            "outputs": [output.to_dict() for output in self.outputs],
            "sizes": self.sizes.to_dict(),
            "latency": None if self.latency is None else self.latency.to_dict(),
            "notes": list(self.notes),
            "failures": list(self.failures),
            "passed": self.passed,
            "gates": [gate.to_dict() for gate in self.gates],
            "layers": None if self.layers is None else self.layers.to_dict(),
            "sensitivity": None if self.sensitivity is None else self.sensitivity.to_dict(),
            "details": None if self.details is None else self.details.to_dict(),
            "checks": None if self.checks is None else [check.to_dict() for check in self.checks],
        }
