"""The registry of metrics. To add one: a module here that ends in ``METRIC = Metric(...)``, and its name below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from qtool.errors import ConfigError, DataError
from qtool.evaluate.metrics import (
    cer,
    cosine,
    custom,
    f1,
    flip_margin,
    js,
    kl,
    mae,
    mask_iou,
    max_abs,
    mcc,
    mean_abs,
    miou,
    mse,
    nmse,
    pearson,
    perplexity,
    r2,
    spearman,
    sqnr,
    sqnr_p5,
    top1,
    top1_agreement,
    top5,
    top5_agreement,
    wer,
)
from qtool.evaluate.metrics._edits import ErrorRateAccumulator
from qtool.evaluate.metrics.base import Accumulator, LabelKind, Metric

METRICS: dict[str, Metric] = {
    module.METRIC.name: module.METRIC
    for module in (
        sqnr,
        cosine,
        max_abs,
        mean_abs,
        top1_agreement,
        sqnr_p5,
        nmse,
        kl,
        js,
        top5_agreement,
        flip_margin,
        mask_iou,
        top1,
        top5,
        f1,
        mcc,
        miou,
        perplexity,
        cer,
        wer,
        mse,
        mae,
        r2,
        pearson,
        spearman,
    )
}
"""Every metric by name, in the order of a report's columns."""

ALL = "all"

PRIMARY = {
    LabelKind.CLASSES: "top1",
    LabelKind.TOKENS: "top1",
    LabelKind.MAP: "miou",
    LabelKind.TARGETS: "r2",
    LabelKind.SEQUENCES: "cer",
}
"""The metric that stands for accuracy, by what labels are: what a drop is a drop of."""

SPECIAL = {
    ALL: "every metric that the data allow",
    "default": "what is computed unasked",
    "primary": "the one that stands for accuracy, by what the labels are",
}
"""Names that stand for others."""


def find_metric(name: str) -> Metric | None:
    """The metric of a name, one of the user's own if it is ``module:name``; None if there is none.

    Raises:
        ConfigError: If one of the user's own cannot be loaded.
    """
    return custom.load(name) if ":" in name else METRICS.get(name)


def unknown(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that does not exist: all that do, and the nearest one."""
    near = get_close_matches(name, known, 1)
    guess = f"; did you mean '{near[0]}'?" if near else "."
    return f"expected one of: {', '.join(known)}{guess}"


def select_metrics(
    names: Sequence[str] | None, *, labels: bool, separator: int | None = None, blank: int | None = None
) -> tuple[Metric, ...]:
    """The metrics that an evaluation may compute, in registry order, then the user's own.

    Args:
        names: Wanted names, those of ``SPECIAL`` among them; None for ``default``.
        labels: Whether labels are at hand.
        separator: Id between words, which ``wer`` needs.
        blank: Blank of CTC scores, for ``cer`` and ``wer``.

    Raises:
        ConfigError: If a name is unknown, or needs labels or a separator and there are none.
    """
    names = ["default"] if names is None else list(dict.fromkeys(names))
    own: list[Metric] = []
    for name in names:
        metric = find_metric(name)
        if metric is None and name not in SPECIAL:
            raise ConfigError(f"Unknown metric '{name}'; {unknown(name, [*METRICS, *SPECIAL])}")
        if not labels and (name == "primary" or (metric is not None and metric.needs_labels)):
            raise ConfigError(
                f"Metric '{name}' compares with labels, and there are none.",
                hint="Name the array of labels in the data with --labels KEY.",
            )
        if name == "wer" and separator is None:
            raise ConfigError(
                "Metric 'wer' compares words, and nothing says where they end.",
                hint="Name the id between words with --word-separator ID.",
            )
        if metric is not None and metric.own:
            own.append(metric)

    def chosen(metric: Metric) -> bool:
        if metric.name in names:
            return True
        if (metric.needs_labels and not labels) or (metric.name == "wer" and separator is None):
            return False
        unasked = bool(metric.default_for) if metric.needs_labels else metric.default
        return (
            ALL in names or ("default" in names and unasked) or ("primary" in names and metric.name in PRIMARY.values())
        )

    return (*(_with_ids(metric, separator, blank) for metric in METRICS.values() if chosen(metric)), *own)


def _with_ids(metric: Metric, separator: int | None, blank: int | None) -> Metric:
    """Error rates, told what the ids mean."""
    if metric.name not in ("cer", "wer"):
        return metric
    return replace(metric, start=partial(ErrorRateAccumulator, blank, separator if metric.name == "wer" else None))


def applying(
    metrics: Sequence[Metric], kind: LabelKind | None, names: Sequence[str] | None, key: str
) -> tuple[Metric, ...]:
    """Those of the selected metrics that can read labels of a kind.

    Args:
        metrics: What :func:`select_metrics` chose.
        kind: What the labels turned out to be; None: there are none.
        names: Wanted names, as given there.
        key: Name of the labels, for the message.

    Raises:
        DataError: If one that was asked for by its name cannot.
    """
    if kind is None:
        return tuple(metric for metric in metrics if not metric.needs_labels)
    wanted = ["default"] if names is None else names
    kept = []
    for metric in metrics:
        if metric.needs_labels and metric.name in wanted and kind not in metric.kinds:
            kinds = " or ".join(one.value for one in LabelKind if one in metric.kinds)
            fitting = ", ".join(m.name for m in METRICS.values() if kind in m.kinds)
            raise DataError(
                f"Metric '{metric.name}' compares with {kinds}; labels '{key}' are {kind.value}.",
                hint=f"Metrics for these labels: {fitting}.",
            )
        if (
            not metric.needs_labels
            or metric.name in wanted
            or (ALL in wanted and kind in metric.kinds)
            or ("default" in wanted and kind in metric.default_for)
            or ("primary" in wanted and metric.name == PRIMARY[kind])
        ):
            kept.append(metric)
    return tuple(kept)


__all__ = [
    "METRICS",
    "PRIMARY",
    "SPECIAL",
    "Accumulator",
    "Metric",
    "applying",
    "find_metric",
    "select_metrics",
    "unknown",
]
