"""The registry of metrics. To add one: a module here that ends in ``METRIC = Metric(...)``, and its name below."""

from __future__ import annotations

from collections.abc import Sequence

from qtool.errors import ConfigError
from qtool.evaluate.metrics import cosine, max_abs, mean_abs, sqnr, top1, top1_agreement, top5
from qtool.evaluate.metrics.base import Accumulator, Metric

METRICS: dict[str, Metric] = {
    module.METRIC.name: module.METRIC for module in (sqnr, cosine, max_abs, mean_abs, top1_agreement, top1, top5)
}
"""Every metric by name, in the order of a report's columns."""


def select_metrics(names: Sequence[str] | None, *, labels: bool) -> tuple[Metric, ...]:
    """The metrics of an evaluation, in registry order.

    Args:
        names: Wanted names; None for every metric that the data allow.
        labels: Whether labels are at hand.

    Raises:
        ConfigError: If a name is unknown, or needs labels and there are none.
    """
    if names is None:
        return tuple(metric for metric in METRICS.values() if labels or not metric.needs_labels)
    for name in names:
        metric = METRICS.get(name)
        if metric is None:
            raise ConfigError(f"Unknown metric '{name}'; expected one of: {', '.join(METRICS)}.")
        if metric.needs_labels and not labels:
            raise ConfigError(
                f"Metric '{name}' compares with labels, and there are none.",
                hint="Name the array of labels in the data with --labels KEY.",
            )
    return tuple(metric for metric in METRICS.values() if metric.name in names)


__all__ = ["METRICS", "Accumulator", "Metric", "select_metrics"]
