"""A report as tables of ready text: the command line draws them, ``write`` prints them plainly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from qtool.evaluate.metrics.base import Metric
from qtool.evaluate.report import Report
from qtool.evaluate.writers._cells import ABSENT, Table, cell, format_bytes, format_value, heading
from qtool.evaluate.writers.checks import check_tables
from qtool.evaluate.writers.layers import layer_tables

MAX_COLUMNS = 8
"""With more metrics than these, metrics are rows and outputs are columns."""


def tables(report: Report) -> tuple[Table, ...]:
    """The tables of a report: a row per output, a row per metric with an interval, the gates, then size and latency."""
    metrics = [report.metric(name) for name in report.metrics]
    engine = "" if report.engine == "ort" else f", quantized model in engine {report.engine}"
    title = f"Outputs, {report.samples} sample{'' if report.samples == 1 else 's'}{engine}"
    if len(metrics) > MAX_COLUMNS:
        outputs = Table(
            title,
            ("metric", *(output.name for output in report.outputs)),
            tuple((heading(metric), *(cell(output, metric) for output in report.outputs)) for metric in metrics),
        )
    else:
        outputs = Table(
            title,
            ("output", *(heading(metric) for metric in metrics)),
            tuple((output.name, *(cell(output, metric) for metric in metrics)) for output in report.outputs),
        )
    sizes = report.sizes
    rows = [("size", format_bytes(sizes.float_bytes), format_bytes(sizes.quantized_bytes), f"{sizes.ratio:.2f}×")]
    latency = report.latency
    if latency is not None:
        threads = "" if latency.threads is None else f", {latency.threads} thread{'' if latency.threads == 1 else 's'}"
        rows.append(
            (
                f"latency (batch {latency.batch_size}{threads})",
                f"{latency.float_ms:.4g} ms",
                f"{latency.quantized_ms:.4g} ms",
                f"{latency.ratio:.2f}×",
            )
        )
    intervals = statistics(report)
    shown = (outputs, intervals) if intervals.rows else (outputs,)
    gates = Table(
        "Gates",
        ("gate", "outcome", "found"),
        tuple((gate.option, "passed" if gate.passed else "FAILED", gate.line) for gate in report.gates),
        figures=False,
    )
    return (
        *shown,
        *([gates] if gates.rows else []),
        Table("Cost", ("", "float", "quantized", "float / quantized"), tuple(rows)),
        *check_tables(report.checks),
        *layer_tables(report.layers, report.sensitivity),
    )


def statistics(report: Report) -> Table:
    """How far figures can be trusted: for each metric that has an interval, its worst output."""
    rows = []
    for name in report.metrics:
        metric = report.metric(name)
        worst = report.worst(name)
        output = next((output for output in report.outputs if worst is not None and output.name == worst[0]), None)
        found = None if output is None else output.statistics.get(name)
        if output is None or found is None or (found.interval is None and found.delta is None):
            continue
        interval = ABSENT
        if found.interval is not None:
            interval = " to ".join(_number(end, metric, signed=found.delta is not None) for end in found.interval)
        rows.append(
            (
                f"{metric.title} of {output.name}",
                str(found.n),
                ABSENT if found.float_value is None else format_value(found.float_value, metric),
                ABSENT if found.quantized_value is None else format_value(found.quantized_value, metric),
                ABSENT if found.delta is None else _number(found.delta, metric, signed=True),
                interval,
                ABSENT if found.p_value is None else f"{found.p_value:.3g}",
            )
        )
    return Table(
        "Worst output of each metric, intervals of 95 % (of the difference where there is one)",
        ("metric", "n", "float", "quantized", "difference", "interval", "p (McNemar)"),
        tuple(rows),
    )


def _number(value: float, metric: Metric, *, signed: bool) -> str:
    text = format_value(value, metric)
    return f"+{text}" if signed and value > 0 else text


def write(report: Report, stream: TextIO) -> None:
    """Print the tables in aligned columns, then notes and failures, without colour."""
    for number, table in enumerate(tables(report)):
        if number:
            stream.write("\n")
        stream.write(f"{table.title}\n")
        for line in aligned(table):
            stream.write(f"  {line}\n")
    for kind, lines in (("note", report.notes), ("failed", report.failures)):
        for line in lines:
            stream.write(f"{kind}: {line}\n")


def aligned(table: Table) -> Iterator[str]:
    """Heading and rows of a table, text to the left, figures to the right."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *figures in lines:
        flush = str.rjust if table.figures else str.ljust
        cells = [first.ljust(widths[0]), *(flush(text, w) for text, w in zip(figures, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
