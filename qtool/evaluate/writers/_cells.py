"""What tables are made of: cells of text, and how a figure becomes one."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.evaluate.metrics.base import Metric
from qtool.evaluate.report import OutputReport

ABSENT = "-"


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
