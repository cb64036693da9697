"""Latency of two models side by side.

Rounds are interleaved (float, quantized, quantized, float, ...), so that a slower or faster machine in the middle of
the measurement touches both alike, and the result of each model is the median over rounds. A round runs a quick model
several times and divides: one run of some microseconds says more about the clock and the cache than about the model.
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
        first: Seconds of one run of the first model.
        second: Seconds of one run of the second model.
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
    slower = max(_time(first, 1, clock), _time(second, 1, clock))
    inner = max(1, min(MAX_INNER, int(ROUND_SECONDS / slower))) if slower > 0 else MAX_INNER
    times: dict[bool, list[float]] = {False: [], True: []}
    start = clock()
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and clock() - start >= budget:
            break
        # turn the order around in each round: whoever runs second finds the caches the other one left
        for is_second in (done % 2 == 1, done % 2 == 0):
            run = second if is_second else first
            if inner > 1:
                # the other session's threads may still spin, and its weights fill the cache
                run()
            times[is_second].append(_time(run, inner, clock))
    rounds = len(times[False])
    return Timing(statistics.median(times[False]), statistics.median(times[True]), rounds, rounds * inner)


def _time(run: Callable[[], object], inner: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(inner):
        run()
    return (clock() - start) / inner
