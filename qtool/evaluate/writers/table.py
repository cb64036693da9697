"""A report as tables of ready text: the command line draws them, ``write`` prints them plainly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from qtool.evaluate.metrics.base import Metric
from qtool.evaluate.report import OutputReport, Report

ABSENT = "-"
MAX_COLUMNS = 8
"""With more metrics than these, metrics are rows and outputs are columns."""


@dataclass(frozen=True)
class Table:
    """Cells of text.

    Attributes:
        title: Heading of the table.
        columns: Heading of each column; the first column is text.
        rows: Cells, as many per row as there are columns.
        figures: Whether the other columns are figures, flush right, or text as well.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: bool = True


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
    from qtool.evaluate.writers.checks import check_tables  # they are made of what is here
    from qtool.evaluate.writers.layers import layer_tables

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


def heading(metric: Metric) -> str:
    """Column heading with the unit."""
    return f"{metric.title} ({metric.unit})" if metric.unit else metric.title


def cell(output: OutputReport, metric: Metric) -> str:
    """One value; a metric against labels shows the float model's value too."""
    value = output.values.get(metric.name)
    if value is None:
        return ABSENT
    text = format_value(value, metric)
    baseline = output.float_values.get(metric.name)
    return text if baseline is None else f"{text} (float {format_value(baseline, metric)})"


def format_value(value: float, metric: Metric) -> str:
    """Digits that fit the metric: decibels and shares have a fixed scale, errors have not."""
    if metric.unit == "dB":
        return f"{value:.2f}"
    if metric.share:
        return f"{value:.4f}"
    return f"{value:.6g}"


def format_bytes(count: int) -> str:
    """Bytes with a decimal unit: 999 B, 1.0 kB, 86.7 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.95 or (unit == "B" and count < 1000):
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


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
