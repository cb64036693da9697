"""Interleaved rounds with pauses, and medians.

All engines of a case take part in every round, so that a change of clock or load meets all of them. Before each stands
a pause: thread pools spin for a while after a call and would steal the core of whoever comes next. A round's sample is
the median of some calls, of which the first is not counted: it finds the caches full of another engine's data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

PAUSE = 0.04
"""Seconds before each sample: onnxruntime's and OpenMP's threads have stopped spinning by then."""
BUDGET = 0.02
"""Seconds of counted calls in a sample."""
FEWEST_ROUNDS = 3
SLOW = 0.25
"""Seconds from which a call is its own warm-up."""

Sampler = Callable[[], float]
"""Takes one sample: seconds."""


def timed(call: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> Sampler:
    """A sampler that returns the median time of some calls.

    Args:
        call: What is measured.
        clock: Seconds.
    """

    def sample() -> float:
        start = clock()
        call()
        first = clock() - start
        if first > SLOW:
            return first
        times: list[float] = []
        end = clock() + BUDGET
        while not times or clock() < end:
            start = clock()
            call()
            times.append(clock() - start)
        return statistics.median(times)

    return sample


def interleave(
    samplers: Mapping[str, Sampler],
    rounds: int,
    *,
    pause: float = PAUSE,
    at_most: float = 20.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Samples of each engine, round by round.

    Args:
        samplers: Engine -> sampler; each is run once before the first round, uncounted.
        rounds: How many rounds.
        pause: Seconds before each sample.
        at_most: Seconds after which no new round begins, once there are three.
        sleep: Waits.
        clock: Seconds.

    Returns:
        Engine -> one sample per round.
    """
    for sample in samplers.values():
        sample()
    found: dict[str, list[float]] = {name: [] for name in samplers}
    start = clock()
    for done in range(rounds):
        if done >= FEWEST_ROUNDS and clock() - start > at_most:
            break
        for name, sample in samplers.items():
            sleep(pause)
            found[name].append(sample())
    return {name: tuple(times) for name, times in found.items()}
