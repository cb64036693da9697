"""Latency of models side by side.

Rounds are interleaved (float, quantized, quantized, float, ...), so that a slower or faster machine in the middle of
the measurement touches all alike. A round runs a quick model several times, because the first run after another model
meets a cold cache. Every run is timed by itself and the result is the median over all of them: on a busy machine a run
that was interrupted then counts as one slow run, where a mean over the round would be wrong as a whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUND_SECONDS = 0.02
MIN_ROUNDS = 3
MAX_ROUNDS = 31
MAX_INNER = 1000


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
    start = clock()
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and clock() - start < budget):
        # each round starts with another model: whoever runs next finds the caches that the last one left
        for position in range(len(models)):
            index = (rounds + position) % len(models)
            run = models[index]
            if inner > 1:
                # the other session's threads may still spin, and its weights fill the cache
                run()
            times[index] += _time(run, inner, clock)
        rounds += 1
    return Timings(tuple(statistics.median(each) for each in times), rounds, rounds * inner)


def _time(run: Callable[[], object], count: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each of ``count`` runs."""
    seconds = []
    for _ in range(count):
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds
