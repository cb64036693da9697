"""Latency of models side by side.

Rounds are interleaved (float, quantized, quantized, float, ...), so that a slower or faster machine in the middle of
the measurement touches all alike. The first run after another model is not timed: it meets a cold cache, and threads of
the other session that still spin, which was seen to double it. Every run is timed by itself and the result is the
median over all of them: on a busy machine a run that was interrupted then counts as one slow run, where a mean over the
round would be wrong as a whole.

Rounds end with the budget, or before it where more of them would say the same: once the 95 % interval of how many times
faster one model is than the other, of the sign test over the rounds (H. A. David and H. N. Nagaraja, Order Statistics,
Wiley 2003, 7.1), is within two percent of its median.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUND_SECONDS = 0.02
LONG_SECONDS = 0.5
"""A run that takes this long is timed as it is: what the other model left is over long before its end."""
MIN_ROUNDS = 3
MAX_ROUNDS = 31
MAX_INNER = 1000
NARROW = 0.02
"""How far the interval of a ratio may reach beside its median for the rounds to be enough."""
_TAIL = 0.025  # of the sign test, on either side


@dataclass(frozen=True)
class Timing:
    """Medians of two models.

    Attributes:
        first: Median seconds of one run of the first model.
        second: Median seconds of one run of the second model.
        rounds: Number of rounds.
        runs: Timed runs of each model in all rounds.
    """

    first: float
    second: float
    rounds: int
    runs: int


@dataclass(frozen=True)
class Timings:
    """Medians of any number of models.

    Attributes:
        medians: Median seconds of one run of each model, in the order given.
        rounds: Number of rounds.
        runs: Timed runs of each model in all rounds.
    """

    medians: tuple[float, ...]
    rounds: int
    runs: int


def measure(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    budget: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time two callables in turn.

    Args:
        first: Runs the one model once.
        second: Runs the other model once, on the same data.
        budget: Seconds after which no further round starts, beyond the three that are always done.
        clock: Seconds; replaced in tests.
    """
    found = measure_all((first, second), budget=budget, clock=clock)
    return Timing(found.medians[0], found.medians[1], found.rounds, found.runs)


def measure_all(
    models: Sequence[Callable[[], object]],
    *,
    budget: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time callables in turn.

    Args:
        models: Each runs its model once, all on the same data.
        budget: Seconds after which no further round starts, beyond the three that are always done.
        clock: Seconds; replaced in tests.
    """
    for run in models:  # the first run allocates, and packs weights
        run()
    slowest = max(_time(run, 1, clock)[0] for run in models)
    inner = max(1, min(MAX_INNER, int(ROUND_SECONDS / slowest))) if slowest > 0 else MAX_INNER
    times: list[list[float]] = [[] for _ in models]
    medians: list[list[float]] = [[] for _ in models]  # of each round
    start = clock()
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and clock() - start < budget and not _settled(medians)):
        # each round starts with another model: whoever runs next finds the caches that the last one left
        for position in range(len(models)):
            index = (rounds + position) % len(models)
            run = models[index]
            if slowest < LONG_SECONDS:
                run()
            found = _time(run, inner, clock)
            times[index] += found
            medians[index].append(statistics.median(found))
        rounds += 1
    return Timings(tuple(statistics.median(each) for each in times), rounds, rounds * inner)


def _settled(medians: Sequence[Sequence[float]]) -> bool:
    """Whether further rounds would tell nothing new about any model beside the first."""
    first, *others = medians
    for other in others:
        if min(other) <= 0.0:  # below what the clock can tell
            return False
        ratios = [a / b for a, b in zip(first, other, strict=True)]
        interval, middle = median_interval(ratios), statistics.median(ratios)
        if interval is None or interval[0] < middle * (1 - NARROW) or interval[1] > middle * (1 + NARROW):
            return False
    return bool(others)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the sign test for the median of what the values were drawn from; None of fewer than 6.

    From the k-th smallest to the k-th largest value, k being the largest for which so few of n fair coins show heads
    (fewer than k) with a probability of at most 2.5 %.
    """
    n = len(values)
    k, tail = 0, 0.5**n
    while tail <= _TAIL:
        k += 1
        tail += math.comb(n, k) * 0.5**n
    if not k:
        return None
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]


def _time(run: Callable[[], object], count: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each of ``count`` runs."""
    seconds = []
    for _ in range(count):
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds
