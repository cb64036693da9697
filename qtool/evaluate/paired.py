"""From accumulators to statistics: which interval a metric has, and what the samples cannot show."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qtool.evaluate.intervals import bootstrap, detectable_share, mcnemar, score_interval, share_interval
from qtool.evaluate.metrics.base import Accumulator, Floats, Metric, Resampling
from qtool.evaluate.report import Statistic

Key = TypeVar("Key", bound=Hashable)


def statistics(
    judged: Mapping[Key, tuple[Metric, Accumulator]], samples: int, *, intervals: bool = True
) -> dict[Key, Statistic]:
    """Statistics of every metric that has a value and is a function of its samples, or has a float model's value.

    Args:
        judged: Metrics with what they added up.
        samples: Number of samples in all.
        intervals: Whether to resample; otherwise only paired answers get an interval.
    """
    found: dict[Key, Statistic] = {}
    waiting: dict[int, dict[Key, Callable[[Floats], Floats]]] = {}
    for key, (metric, accumulator) in judged.items():
        value = accumulator.result()
        resampling = accumulator.resampling()
        if value is None or (resampling is None and not metric.needs_labels):
            continue
        baseline = accumulator.baseline()
        delta = None if baseline is None else value - baseline
        count = samples if resampling is None else resampling.samples
        found[key] = Statistic(count, baseline, value, delta)
        if resampling is None:
            continue
        if resampling.hits is not None:
            found[key] = _paired(*resampling.hits, baseline, value, delta)
        elif intervals and not math.isnan(value):
            waiting.setdefault(count, {})[key] = _estimate(resampling)
    for count, estimates in waiting.items():
        for key, interval in zip(estimates, bootstrap(count, list(estimates.values())), strict=True):
            if interval is not None:
                found[key] = _with_interval(judged[key][0], found[key], interval)
    return {key: found[key] for key in judged if key in found}


def _estimate(resampling: Resampling) -> Callable[[Floats], Floats]:
    """The value of each draw; where there is a baseline, what it is above it."""
    if resampling.baseline is None:
        return resampling.value
    value, baseline = resampling.value, resampling.baseline

    def delta(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return value(weights) - baseline(weights)

    return delta


def _paired(
    ours: npt.NDArray[np.bool_],
    theirs: npt.NDArray[np.bool_],
    baseline: float | None,
    value: float,
    delta: float | None,
) -> Statistic:
    n = len(ours)
    lost, gained = int(np.count_nonzero(ours & ~theirs)), int(np.count_nonzero(theirs & ~ours))
    return Statistic(
        n,
        baseline,
        value,
        delta,
        interval=score_interval(lost, gained, n),
        method="score",
        p_value=mcnemar(lost, gained),
        lost=lost,
        gained=gained,
        detectable=detectable_share(lost, gained, n),
    )


def _with_interval(metric: Metric, statistic: Statistic, interval: tuple[float, float]) -> Statistic:
    low, high = interval
    width = (high - low) / 2 if statistic.delta is not None else math.nan
    detectable = width if math.isfinite(width) else None
    method = "bootstrap"
    if metric.bounds == (0.0, 1.0) and low == high and not statistic.delta:
        # samples that are all alike resample to themselves, which does not mean that all there are would be like them
        method = "score"
        if statistic.delta is None:
            interval = share_interval(low, statistic.n)
        else:
            interval, detectable = score_interval(0, 0, statistic.n), detectable_share(0, 0, statistic.n)
    return replace(statistic, interval=interval, method=method, detectable=detectable)


def shows_nothing(statistic: Statistic) -> bool:
    """Whether the samples leave it open which model is better."""
    return statistic.interval is not None and statistic.interval[0] <= 0.0 <= statistic.interval[1]


def limit(metric: Metric, output: str, statistic: Statistic) -> str | None:
    """The sentence that says what so few samples cannot show; None if they do show a difference, or nothing is known.

    Args:
        metric: A metric against labels.
        output: Name of the output.
        statistic: What it came to.
    """
    if statistic.detectable is None or not shows_nothing(statistic) or statistic.delta is None:
        return None
    worse = "drop" if metric.higher_is_better else "rise"
    subject = f"{metric.name} of output '{output}': n={statistic.n}"
    if metric.share and statistic.detectable > 1:
        return f"{subject} cannot show any {worse}."
    return f"{subject} cannot show a {worse} below {amount(metric, statistic.detectable)}."


def amount(metric: Metric, difference: float) -> str:
    """A difference of two values of a metric: in points for shares."""
    if not metric.share:
        return f"{difference:.3g}"
    points = f"{difference * 100:.2g}"
    return f"{points} point{'' if points == '1' else 's'}"
