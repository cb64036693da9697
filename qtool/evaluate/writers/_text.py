"""Text that writers share."""

from __future__ import annotations

import math

from qtool.evaluate.attribution.report import LayerReport
from qtool.evaluate.metrics.base import Metric
from qtool.evaluate.report import Statistic


def one_line(text: str) -> str:
    """Text whose control characters, line breaks among them, are spelled out: names may hold anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal; what is not zero is not shown as zero."""
    if share is None:
        return "-"
    if share == 0:
        return "0 %"
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %"


def share_text(layer: LayerReport) -> str:
    """An operator's share of the noise; one that is estimated has a tilde."""
    return percent(layer.share) if layer.share_measured or layer.share is None else f"~{percent(layer.share)}"


def decibels(value: float | None) -> str:
    """Decibels with one decimal; a dash where there are none."""
    if value is None:
        return "-"
    return "∞" if value == math.inf else f"{value:.1f}"


def change(value: float | None, metric: Metric) -> str:
    """A difference of two values of a metric with its sign; those of shares are in percentage points."""
    if value is None:
        return "-"
    if metric.share:
        return f"{100 * value:+.2f} pp"
    return f"{value:+.4g}{f' {metric.unit}' if metric.unit else ''}"


def interval(statistic: Statistic, metric: Metric) -> str:
    """The 95 % interval: of the difference where there is one, else of the value."""
    if statistic.interval is None:
        return "-"
    low, high = statistic.interval
    if statistic.delta is not None:
        return f"{change(low, metric)} … {change(high, metric)}"
    if metric.share:
        return f"{100 * low:.2f} … {100 * high:.2f} %"
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{low:.4g} … {high:.4g}{unit}"
