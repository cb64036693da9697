"""A report as the HTML template reads it: ready text, and numbers only to sort by and for the length of bars."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from qtool.evaluate.attribution.report import Attribution, Command, LayerReport
from qtool.evaluate.checks.result import CheckResult
from qtool.evaluate.details import Details
from qtool.evaluate.report import OutputReport, Report
from qtool.evaluate.writers import _charts
from qtool.evaluate.writers._cells import ABSENT, format_bytes, format_value
from qtool.evaluate.writers._text import change, decibels, interval, one_line, percent, share_text
from qtool.evaluate.writers.layers import layer_commands
from qtool.evaluate.writers.markdown import verdict

CHARTED = 12
"""Layers in the charts."""
FINDINGS = 50
"""Of each check."""
HISTOGRAMS = 24
"""Layers whose histograms are shown."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What is shown.
        value: What the column is sorted by; None: the text.
        bar: Length of the bar behind the text, 0 to 100; None: no bar.
        kind: Class of the style sheet.
    """

    text: str
    value: float | None = None
    bar: float | None = None
    kind: str = ""

    @property
    def key(self) -> str:
        """The value as a script reads a number; NaN stands at the end."""
        value = math.inf if self.value is None or math.isnan(self.value) else self.value
        return f"{value:.9g}" if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


@dataclass(frozen=True)
class Tile:
    """One of the figures at the top."""

    label: str
    figure: str
    detail: str


@dataclass(frozen=True)
class Figures:
    """A table.

    Attributes:
        caption: What it shows.
        columns: Headings; those of text columns are followed by figures.
        rows: Cells.
        left: How many columns are text.
    """

    caption: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]
    left: int = 1


@dataclass
class View:
    """All of a page."""

    title: str
    subject: str
    reference: str
    verdict: str
    tone: str
    gates: list[dict[str, Any]]
    failures: list[str]
    tiles: list[Tile]
    quality: list[Figures]
    checks: list[dict[str, Any]] = field(default_factory=list)
    layers: dict[str, Any] | None = None
    sensitivity: Figures | None = None
    commands: list[Command] = field(default_factory=list)
    sizes: dict[str, Any] | None = None
    settings: list[tuple[str, str]] = field(default_factory=list)
    hashes: list[tuple[str, str, str]] = field(default_factory=list)
    origin: str = ""
    notes: list[str] = field(default_factory=list)
    version: str = ""


def view_of(report: Report) -> View:
    """Everything that the template needs, every name on one line and without control characters."""
    names = [one_line(name or "model in memory") for name in (report.quantized_model, report.float_model)]
    count = f"{report.samples} sample{'' if report.samples == 1 else 's'}"
    engine = "" if report.engine == "ort" else f" · engine {one_line(report.engine)}"
    view = View(
        title=PurePath(names[0]).name,
        subject=f"{count}{engine}",
        reference=PurePath(names[1]).name,
        verdict=verdict(report),
        tone="bad" if not report.passed else "good" if report.gates else "plain",
        gates=[
            {"passed": gate.passed, "option": one_line(gate.option), "line": one_line(gate.line)}
            for gate in sorted(report.gates, key=lambda gate: gate.passed)
        ],
        failures=[one_line(line) for line in report.failures],
        tiles=_tiles(report),
        quality=[quality_table(report, output) for output in report.outputs],
        checks=[_check(check) for check in report.checks or ()],
        notes=[one_line(note) for note in report.notes],
    )
    if report.layers is not None and report.layers.layers:
        view.layers = _layers(report.layers)
    if report.sensitivity is not None and report.sensitivity.units:
        view.sensitivity = _sensitivity(report)
    commands = layer_commands(report.layers, report.sensitivity)
    view.commands = [Command(one_line(text), one_line(why)) for text, why in commands]
    view.hashes = [("data", one_line(source.path or "arrays in memory"), source.sha256) for source in report.sources]
    if report.details is not None:
        _describe(view, report.details, names)
    return view


def _tiles(report: Report) -> list[Tile]:
    sizes, latency = report.sizes, report.latency
    tiles = [
        Tile(
            "Size",
            f"{sizes.ratio:.2f}× smaller",
            f"{format_bytes(sizes.float_bytes)} → {format_bytes(sizes.quantized_bytes)}",
        )
    ]
    if latency is not None:
        threads = "" if latency.threads is None else f", {latency.threads} thread{'' if latency.threads == 1 else 's'}"
        tiles.append(
            Tile(
                "Latency",
                f"{latency.ratio:.2f}× as fast",
                f"{latency.float_ms:.4g} → {latency.quantized_ms:.4g} ms, batch {latency.batch_size}{threads}",
            )
        )
    for name in (report.primary or "top1_agreement", "sqnr"):
        worst = report.worst(name) if name in report.metrics else None
        if worst is None:
            continue
        metric = report.metric(name)
        output = next(one for one in report.outputs if one.name == worst[0])
        figure = percent_or_value(worst[1], name, report)
        statistic = output.statistics.get(name)
        where = "" if len(report.outputs) == 1 else f"worst output, {one_line(output.name)}"
        baseline = output.float_values.get(name)
        if baseline is not None:
            where = f"float {percent_or_value(baseline, name, report)}" + (f", {where}" if where else "")
        if statistic is not None and statistic.interval is not None:
            where += f"{', ' if where else ''}95 %: {interval(statistic, metric)}"
        tiles.append(Tile(metric.title, figure, where or one_line(output.name)))
    return tiles


def percent_or_value(value: float, name: str, report: Report) -> str:
    """A value with its unit; shares in percent."""
    metric = report.metric(name)
    if metric.share and math.isfinite(value):
        return f"{100 * value:.2f} %"
    return f"{format_value(value, metric)}{f' {metric.unit}' if metric.unit else ''}"


def quality_table(report: Report, output: OutputReport) -> Figures:
    """All metrics of one output, with intervals where there are some."""
    rows = []
    for name in report.metrics:
        metric = report.metric(name)
        value, baseline = output.values.get(name), output.float_values.get(name)
        statistic = output.statistics.get(name)
        found = ABSENT if value is None else percent_or_value(value, name, report)
        rows.append(
            [
                Cell(metric.title),
                Cell(ABSENT if baseline is None else percent_or_value(baseline, name, report), baseline),
                Cell(found, value, kind="bad" if value is not None and math.isnan(value) else "strong"),
                Cell(ABSENT if statistic is None else change(statistic.delta, metric)),
                Cell(ABSENT if statistic is None else interval(statistic, metric)),
                Cell(ABSENT if statistic is None else str(statistic.n)),
            ]
        )
    shape = "×".join("?" if size is None else one_line(str(size)) for size in output.shape)
    caption = f"{one_line(output.name)}: {output.dtype} [{shape}], {output.elements:,} values compared"
    columns = ("metric", "float", "quantized", "difference", "95 % interval", "n")
    kept = [0, 2, *(i for i in (1, 3, 4, 5) if any(row[i].text != ABSENT for row in rows))]
    kept.sort()
    return Figures(caption, tuple(columns[i] for i in kept), [[row[i] for i in kept] for row in rows])


def _check(check: CheckResult) -> dict[str, Any]:
    shown = check.findings[:FINDINGS]
    return {
        "title": one_line(check.title),
        "state": check.state,
        "summary": one_line(check.summary),
        "count": len(check.findings),
        "more": len(check.findings) - len(shown),
        "findings": [(one_line(one.subject), one_line(one.text), one_line(one.suggestion)) for one in shown],
    }


def _layers(found: Attribution) -> dict[str, Any]:
    charted = found.layers[:CHARTED]
    cards = [_card(rank, layer) for rank, layer in enumerate(found.layers[:HISTOGRAMS], 1) if layer.histograms]
    largest = max((layer.share or 0.0 for layer in found.layers), default=0.0) or 1.0
    rows = [
        [
            Cell(str(rank), rank),
            Cell(one_line(layer.node), kind="mono"),
            Cell(one_line(layer.op_type)),
            Cell(share_text(layer), layer.share or 0.0, 100 * (layer.share or 0.0) / largest, str(layer.cause)),
            Cell(str(layer.cause), kind=f"cause {layer.cause}"),
            *(
                Cell(decibels(value), _sortable(value))
                for value in (layer.own_db, *([layer.own_there_db] if found.without_vnni else []), layer.weight_db,
                              layer.clip_db, layer.round_db, layer.inherited_db, layer.total_db)
            ),
            Cell(percent(layer.clipped), layer.clipped or 0.0),
            Cell(ABSENT if layer.levels is None else f"{layer.levels_used} / {layer.levels}", layer.levels_used),
            Cell(one_line(layer.suggestion or ABSENT), kind="command"),
        ]
        for rank, layer in enumerate(found.layers, 1)
    ]  # fmt: skip
    there = ("without VNNI",) if found.without_vnni else ()
    columns = ("#", "node", "operator", "share", "cause", "own", *there, "weight", "clipping", "rounding", "inherited",
               "total", "clipped", "codes", "suggestion")  # fmt: skip
    measured = f"{found.samples} sample{'' if found.samples == 1 else 's'}"
    return {
        "count": len(found.layers),
        "charted": len(charted),
        "samples": measured,
        "share": _charts.share_chart(charted),
        "decibels": _charts.decibel_chart(charted, without_vnni=found.without_vnni),
        "without_vnni": found.without_vnni,
        "table": Figures("All quantized operators, in decibels", columns, rows, left=3),
        "cards": cards,
        "left_out": [(one_line(node), one_line(reason)) for node, reason in found.left_out],
        "notes": [one_line(note) for note in found.notes],
        "causes": sorted({str(layer.cause) for layer in found.layers}),
    }


def _card(rank: int, layer: LayerReport) -> dict[str, Any]:
    return {
        "rank": rank,
        "node": one_line(layer.node),
        "op_type": one_line(layer.op_type),
        "cause": str(layer.cause),
        "share": share_text(layer),
        "own": decibels(layer.own_db),
        "weight": one_line(layer.weight or ""),
        "histograms": [
            {
                "tensor": one_line(histogram.tensor),
                "svg": _charts.histogram_chart(histogram, f"{rank}.{index}"),
                "text": _charts.describe(histogram),
            }
            for index, histogram in enumerate(layer.histograms)
        ],
    }


def _sortable(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _sensitivity(report: Report) -> Figures:
    found = report.sensitivity
    assert found is not None, "Bug: no sensitivity"
    most = max((unit.gain_db for unit in found.units if math.isfinite(unit.gain_db)), default=0.0)
    rows = [
        [
            Cell(one_line(unit.node), kind="mono"),
            Cell(one_line(unit.op_type)),
            Cell(f"{unit.sqnr_db:.2f}", _sortable(unit.sqnr_db)),
            Cell(
                f"{unit.gain_db:+.2f}",
                _sortable(unit.gain_db),
                100 * unit.gain_db / most if most > 0 and 0 < unit.gain_db <= most else 0.0,
                "accent",
            ),
        ]
        for unit in found.units
    ]
    caption = f"Decibels of the outputs with one operator in float; {found.sqnr_db:.2f} dB as it is"
    return Figures(caption, ("node", "operator", "dB", "gain"), rows, left=2)


def _describe(view: View, details: Details, names: list[str]) -> None:
    quantized = details.quantized_model
    largest = max((tensor.nbytes for tensor in details.tensors), default=1) or 1
    rows = [
        [
            Cell(one_line(tensor.name), kind="mono"),
            Cell(tensor.dtype),
            Cell("×".join(map(str, tensor.shape)) or "scalar"),
            Cell(format_bytes(tensor.nbytes), tensor.nbytes, 100 * tensor.nbytes / largest,
                 _charts.type_color(tensor.dtype)),
        ]
        for tensor in details.tensors
    ]  # fmt: skip
    others = ""
    if details.other_tensors:
        others = f"{details.other_tensors} smaller tensors take {format_bytes(details.other_bytes)} together."
    view.sizes = {
        "chart": _charts.size_chart(details.float_model, quantized),
        "table": Figures(
            "The largest tensors of the quantized model", ("tensor", "type", "shape", "size"), rows, left=3
        ),
        "others": others,
    }
    view.hashes = [
        ("float model", names[1], details.float_model.sha256),
        ("quantized model", names[0], quantized.sha256),
        *view.hashes,
    ]
    view.settings = _settings(details)
    recorded = [("float model as recorded", "", text) for text in _hashes(quantized.metadata.get("source.sha256"))]
    view.hashes += [] if details.made_from_float else recorded
    view.hashes += [("calibration data", "", text) for text in _hashes(quantized.metadata.get("calibration.sha256"))]
    view.origin = {
        None: "The quantized model does not say which float model it was made from.",
        True: "The quantized model was made from this very float model: the hashes agree.",
        False: "The quantized model was made from another file than this float model: the hashes differ.",
    }[details.made_from_float]
    view.version = details.version


def _settings(details: Details) -> list[tuple[str, str]]:
    """The recorded settings, those of the config one by one."""
    quantized = details.quantized_model
    rows = [("opset", str(quantized.opset or ABSENT)), ("IR version", str(quantized.ir_version or ABSENT))]
    for key, value in quantized.metadata.items():
        if key.endswith("sha256"):
            continue
        config = _mapping(value) if key == "config" else None
        if config is None:
            rows.append(("qtool version" if key == "version" else key.replace(".", " "), one_line(value)))
        else:
            rows += [(one_line(name), one_line(_shown(item))) for name, item in config.items()]
    return rows


def _hashes(text: str | None) -> list[str]:
    """One hash, or a JSON list of them."""
    if text is None:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return [one_line(str(item)) for item in (value if isinstance(value, list) else [text])]


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _shown(value: object) -> str:
    if value is None or value in ([], {}):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
