"""A comparison of candidates as its HTML template reads it: ready text, and numbers only to sort by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from qtool.evaluate.candidates import Comparison, accuracy_of
from qtool.evaluate.report import Report
from qtool.evaluate.writers._cells import ABSENT, format_bytes, heading
from qtool.evaluate.writers._scatter import Axis, Point, scatter_chart
from qtool.evaluate.writers._text import one_line
from qtool.evaluate.writers._view import Cell, Figures, percent_or_value, quality_table
from qtool.evaluate.writers.comparison import BEST, comparison_table

OUTPUTS = 6
"""Of each candidate."""


@dataclass(frozen=True)
class ComparisonView:
    """All of a page."""

    title: str
    reference: str
    subject: str
    verdict: str
    tone: str
    hint: str
    best: list[tuple[int, str, str]]
    failures: list[tuple[str, str]]
    charts: list[dict[str, str]]
    undrawn: list[str]
    table: Figures
    candidates: list[dict[str, Any]]
    hashes: list[tuple[str, str]]
    notes: list[str]


def view_of_comparison(comparison: Comparison) -> ComparisonView:
    """Everything that the template needs, every name on one line and without control characters."""
    first = comparison.reports[0]
    names = [one_line(comparison.name(index)) for index in range(len(comparison.reports))]
    count = f"{first.samples} sample{'' if first.samples == 1 else 's'}"
    engine = "" if first.engine == "ort" else f" · engine {one_line(first.engine)}"
    marked = sum(comparison.best)
    shown = comparison_table(comparison)
    drawn = [index for index, report in enumerate(comparison.reports) if _is_drawn(comparison, report)]
    noted = dict.fromkeys(note for report in comparison.reports for note in report.notes)
    return ComparisonView(
        title=f"{len(names)} candidate{'' if len(names) == 1 else 's'}",
        reference=PurePath(one_line(comparison.float_model or "model in memory")).name,
        subject=f"{count}{engine}",
        verdict=f"{marked} of {len(names)} {'is' if marked == 1 else 'are'} Pareto-best"
        if marked
        else "none is usable",
        tone="good" if marked else "bad",
        hint=f"{shown.title.partition('. ')[2]}.",
        best=[
            (index + 1, names[index], _figures(comparison, report))
            for index, report in enumerate(comparison.reports)
            if comparison.best[index]
        ],
        failures=[
            (names[index], one_line(line))
            for index, report in enumerate(comparison.reports)
            for line in report.failures
        ],
        charts=_charts(comparison, drawn, names),
        undrawn=[name for index, name in enumerate(names) if index not in drawn],
        table=_table(comparison, names),
        candidates=[
            {
                "number": index + 1,
                "name": names[index],
                "quality": [quality_table(report, output) for output in report.outputs[:OUTPUTS]],
                "more": max(0, len(report.outputs) - OUTPUTS),
            }
            for index, report in enumerate(comparison.reports)
        ],
        hashes=[(one_line(source.path or "arrays in memory"), source.sha256) for source in first.sources],
        notes=[one_line(note) for note in noted],
    )


def _is_drawn(comparison: Comparison, report: Report) -> bool:
    value = accuracy_of(report, comparison.accuracy)
    return not report.failures and value is not None and not math.isnan(value)


def _figures(comparison: Comparison, report: Report) -> str:
    """Accuracy, size and latency of one candidate."""
    value = accuracy_of(report, comparison.accuracy)
    parts = [] if value is None else [percent_or_value(value, comparison.accuracy, report)]
    parts.append(f"{format_bytes(report.sizes.quantized_bytes)} ({report.sizes.ratio:.2f}×)")
    if report.latency is not None:
        parts.append(f"{report.latency.quantized_ms:.4g} ms ({report.latency.ratio:.2f}×)")
    return ", ".join(parts)


def _charts(comparison: Comparison, drawn: list[int], names: list[str]) -> list[dict[str, str]]:
    """Accuracy against size, and against latency where it was measured."""
    if not drawn:
        return []
    reports = comparison.reports
    metric = reports[0].metric(comparison.accuracy)
    up = Axis(heading(metric), lambda value: f"{value:.4g}", metric.bounds)
    costs: list[tuple[Axis, list[float]]] = [
        (
            Axis("size", lambda value: format_bytes(round(value))),
            [float(reports[i].sizes.quantized_bytes) for i in drawn],
        )
    ]
    times = [report.latency.quantized_ms for report in (reports[i] for i in drawn) if report.latency is not None]
    if len(times) == len(drawn):
        costs.append((Axis("latency in ms", lambda value: f"{value:.3g}"), times))
    charts = []
    for across, values in costs:
        points = [
            Point(index + 1, value, accuracy_of(reports[index], comparison.accuracy) or 0.0, comparison.best[index])
            for index, value in zip(drawn, values, strict=True)
        ]
        best = [f"{names[i]} ({_figures(comparison, reports[i])})" for i in drawn if comparison.best[i]]
        label = (
            f"Scatter chart of {len(points)} candidates, {metric.title} against {across.title}. "
            f"Pareto-best: {'; '.join(best)}. The table below has all figures."
        )
        title = f"{metric.title} against {across.title.partition(' ')[0]}"
        charts.append({"title": title, "svg": scatter_chart(points, across, up, label)})
    return charts


def _table(comparison: Comparison, names: list[str]) -> Figures:
    """The rows of the table on the screen, with numbers to sort by."""
    shown = comparison_table(comparison)
    first = comparison.reports[0]
    values = [_floats(first), *(_numbers(report, first) for report in comparison.reports)]
    rows = []
    for number, (texts, numbers) in enumerate(zip(shown.rows, values, strict=True)):
        mark = texts[-1]
        kind = "strong" if mark == BEST else "bad" if mark != ABSENT else ""
        rows.append(
            [
                Cell(str(number) if number else "float", number),
                Cell(names[number - 1] if number else one_line(texts[0]), kind="mono"),
                *(Cell(text, value) for text, value in zip(texts[1:-1], numbers, strict=True)),
                Cell(mark, float(mark == BEST), kind=kind),
            ]
        )
    return Figures("All candidates; of several outputs, the worst one counts", ("#", *shown.columns), rows, left=2)


def _floats(report: Report) -> list[float]:
    """What the row of the float model is sorted by; its own accuracies stand at the end."""
    times = [] if report.latency is None else [report.latency.float_ms, 1.0]
    return [*([math.inf] * len(report.metrics)), report.sizes.float_bytes, 1.0, *times]


def _numbers(report: Report, first: Report) -> list[float]:
    """The same of a candidate; what has no value stands at the end."""
    worst = [report.worst(name) for name in first.metrics]
    times = [] if report.latency is None else [report.latency.quantized_ms, report.latency.ratio]
    return [
        *(math.inf if found is None else found[1] for found in worst),
        report.sizes.quantized_bytes,
        report.sizes.ratio,
        *times,
    ]
