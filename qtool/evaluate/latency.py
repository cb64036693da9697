"""Latency of two models side by side.

Rounds are interleaved (float, quantized, quantized, float, ...), so that a slower or faster machine in the middle of
the measurement touches both alike. A round runs a quick model several times, because the first run after the other
model meets a cold cache. Every run is timed by itself and the result is the median over all of them: on a busy machine
a run that was interrupted then counts as one slow run, where a mean over the round would be wrong as a whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUND_SECONDS = 0.02
MIN_ROUNDS = 3
MAX_ROUNDS = 31
MAX_INNER = 1000


@dataclass(frozen=True)
class Timing:
    """Medians of both models.

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
    for run in (first, second):  # the first run allocates, and packs weights
        run()
    slower = max(_time(first, 1, clock)[0], _time(second, 1, clock)[0])
    inner = max(1, min(MAX_INNER, int(ROUND_SECONDS / slower))) if slower > 0 else MAX_INNER
    times: dict[bool, list[float]] = {False: [], True: []}
    start = clock()
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and clock() - start < budget):
        # turn the order around in each round: whoever runs second finds the caches the other one left
        for is_second in (rounds % 2 == 1, rounds % 2 == 0):
            run = second if is_second else first
            if inner > 1:
                # the other session's threads may still spin, and its weights fill the cache
                run()
            times[is_second] += _time(run, inner, clock)
        rounds += 1
    return Timing(statistics.median(times[False]), statistics.median(times[True]), rounds, rounds * inner)


def _time(run: Callable[[], object], count: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each of ``count`` runs."""
    seconds = []
    for _ in range(count):
        start = clock()
        run()
        seconds.append(clock() - start)
    return seconds
