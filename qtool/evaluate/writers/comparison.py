"""Candidates side by side: as a table of ready text, and as markdown for a comment on a change."""

from __future__ import annotations

from typing import TextIO

from qtool.evaluate.candidates import Comparison
from qtool.evaluate.report import Latency, Report
from qtool.evaluate.writers import _markdown as md
from qtool.evaluate.writers._cells import ABSENT, Table, format_bytes, format_value, heading

BEST = "best"


def comparison_table(comparison: Comparison) -> Table:
    """One row per model, the float model first; of several outputs, the worst one counts."""
    first = comparison.reports[0]
    metrics = [first.metric(name) for name in first.metrics]
    count = first.samples
    columns = ["model", *(heading(metric) for metric in metrics), "size", "smaller"]
    floats = [comparison.float_model or "float model"]
    floats += [_float_value(first, metric.name) for metric in metrics]
    floats += [format_bytes(first.sizes.float_bytes), ABSENT]
    if first.latency is not None:
        columns += [_latency_heading(first.latency), "faster"]
        floats += [f"{first.latency.float_ms:.4g} ms", ABSENT]
    rows = [(*floats, ABSENT)]
    for index, report in enumerate(comparison.reports):
        row = [comparison.name(index), *(_worst_value(report, metric.name) for metric in metrics)]
        row += [format_bytes(report.sizes.quantized_bytes), f"{report.sizes.ratio:.2f}×"]
        if report.latency is not None:
            row += [f"{report.latency.quantized_ms:.4g} ms", f"{report.latency.ratio:.2f}×"]
        rows.append((*row, BEST if comparison.best[index] else "failed" if report.failures else ABSENT))
    ranked = first.metric(comparison.accuracy).title
    return Table(
        f"Candidates, {count} sample{'' if count == 1 else 's'}. Pareto-best: no other one is as good in {ranked}"
        f"{' and size' if first.latency is None else ', size and latency'}, and better in one of them",
        (*columns, "Pareto"),
        tuple(rows),
    )


def write_markdown(comparison: Comparison, stream: TextIO) -> None:
    """A heading, the table with the best in bold, and what failed."""
    shown = comparison_table(comparison)
    reference, *candidates = shown.rows
    rows = [[md.code(reference[0]), *map(md.plain, reference[1:])]]
    for row, best in zip(candidates, comparison.best, strict=True):
        name = md.code(row[0])
        rows.append([f"**{name}**" if best else name, *map(md.plain, row[1:-1]), f"**{row[-1]}**" if best else row[-1]])
    lines = ["## qtool compare", "", md.plain(f"{shown.title}."), ""]
    lines += md.table([md.plain(column) for column in shown.columns], rows)
    failures = [
        f"- {md.code(comparison.name(index))}: {md.plain(line)}"
        for index, report in enumerate(comparison.reports)
        for line in report.failures
    ]
    if failures:
        lines += ["", "Failed:", "", *failures]
    stream.write("\n".join(lines) + "\n")


def _worst_value(report: Report, name: str) -> str:
    worst = report.worst(name)
    return ABSENT if worst is None else format_value(worst[1], report.metric(name))


def _float_value(report: Report, name: str) -> str:
    """The float model's own value at the output that is the first candidate's worst."""
    worst = report.worst(name)
    if worst is None:
        return ABSENT
    values = [output.float_values.get(name) for output in report.outputs if output.name == worst[0]]
    return ABSENT if values[0] is None else format_value(values[0], report.metric(name))


def _latency_heading(latency: Latency) -> str:
    threads = "" if latency.threads is None else f", {latency.threads} thread{'' if latency.threads == 1 else 's'}"
    return f"latency (batch {latency.batch_size}{threads})"
