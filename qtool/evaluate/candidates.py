"""Several quantized forms of one model side by side, and which of them nobody has a reason to pass over.

A candidate is Pareto-best if no other one is at least as good in accuracy, size and latency, and better in one of them.
A difference within ``LATENCY_NOISE`` or ``SIZE_NOISE`` counts as none, else two copies of one file would beat each
other by chance, and two calibrations of one model by the length of a number in the file's metadata.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qtool.errors import ConfigError
from qtool.evaluate.json_form import Json, encode
from qtool.evaluate.report import Report

SCHEMA_VERSION = 1
"""Of the JSON form; raised as that of a report is."""
LATENCY_NOISE = 0.05
"""Share of a latency within which another one is the same."""
SIZE_NOISE = 0.001
"""Share of a size within which another one is the same."""
DEFAULT_ACCURACY = "sqnr"


@dataclass(frozen=True)
class Comparison:
    """Candidates beside each other.

    Attributes:
        reports: One per candidate, all on the same samples and with the same float model.
        accuracy: The metric that stands for accuracy.
        best: Which candidates are Pareto-best, in the order of ``reports``.
    """

    reports: tuple[Report, ...]
    accuracy: str
    best: tuple[bool, ...]

    @property
    def float_model(self) -> str | None:
        """Path of the reference as given, or None for a model in memory."""
        return self.reports[0].float_model

    def name(self, index: int) -> str:
        """What a candidate is called: its path as given, or its number from 1 on for a model in memory."""
        return self.reports[index].quantized_model or f"candidate {index + 1}"

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see :mod:`qtool.evaluate.report`."""
        first = self.reports[0]
        shared = {
            key: value
            for key, value in first.to_dict().items()
            if key in ("float_model", "engine", "samples", "sources", "metrics")
        }
        return {
            "schema_version": SCHEMA_VERSION,
            **shared,
            "accuracy": self.accuracy,
            "candidates": [
                {
                    "model": report.quantized_model,
                    "pareto_best": best,
                    "accuracy": encode(accuracy_of(report, self.accuracy)),
                    **{
                        key: value
                        for key, value in report.to_dict().items()
                        if key not in shared and key not in ("schema_version", "quantized_model")
                    },
                }
                for report, best in zip(self.reports, self.best, strict=True)
            ],
        }


def choose_accuracy(report: Report, wanted: str | None) -> str:
    """The metric that stands for accuracy.

    Args:
        report: An evaluation.
        wanted: What the caller asks for.

    Returns:
        What is wanted; else the one that stands for the labels, else the SQNR, else the first one there is.

    Raises:
        ConfigError: If what is wanted is not computed or has no direction, or nothing else is there.
    """
    ranking = [name for name in report.metrics if report.metric(name).higher_is_better is not None]
    if wanted is not None and wanted not in ranking:
        raise ConfigError(
            f"Candidates cannot be ranked by '{wanted}'; expected one of the metrics computed, of which it is known "
            f"whether more is better: {', '.join(ranking) or 'none'}."
        )
    if not ranking:
        raise ConfigError("No metric is computed that candidates could be ranked by.")
    for name in (wanted, report.primary, DEFAULT_ACCURACY):
        if name is not None and name in ranking:
            return name
    return ranking[0]


def compare_reports(reports: Sequence[Report], accuracy: str | None = None) -> Comparison:
    """Mark the best of several reports.

    Args:
        reports: Evaluations of the candidates, at least one.
        accuracy: The metric to rank by; see :func:`choose_accuracy`.

    Raises:
        ConfigError: If the metric is none of the reports'.
    """
    chosen = choose_accuracy(reports[0], accuracy)
    usable = [is_usable(report, chosen) for report in reports]
    best = tuple(
        mine
        and not any(theirs and dominates(other, report, chosen) for other, theirs in zip(reports, usable, strict=True))
        for report, mine in zip(reports, usable, strict=True)
    )
    return Comparison(tuple(reports), chosen, best)


def accuracy_of(report: Report, metric: str) -> float | None:
    """The value of the worst output; None if the metric is not defined for any."""
    worst = report.worst(metric)
    return None if worst is None else worst[1]


def is_usable(report: Report, metric: str) -> bool:
    """Whether a candidate is in the race: it has not failed, and has an accuracy that is a number."""
    value = accuracy_of(report, metric)
    return not report.failures and value is not None and not math.isnan(value)


def dominates(one: Report, other: Report, metric: str) -> bool:
    """Whether one usable candidate is as good as another one in everything, and better in something."""
    sign = 1.0 if one.metric(metric).higher_is_better else -1.0
    accuracies = [sign * (accuracy_of(report, metric) or 0.0) for report in (one, other)]
    sizes = [float(report.sizes.quantized_bytes) for report in (one, other)]
    times = [0.0 if report.latency is None else report.latency.quantized_ms for report in (one, other)]
    costs = ((*sizes, 1 + SIZE_NOISE), (*times, 1 + LATENCY_NOISE))
    as_good = accuracies[0] >= accuracies[1] and all(mine <= theirs * noise for mine, theirs, noise in costs)
    better = accuracies[0] > accuracies[1] or any(mine * noise < theirs for mine, theirs, noise in costs)
    return as_good and better
