"""Order of the samples, pauses, medians. Time is planted."""

from __future__ import annotations

import pytest

from qtool.bench import timing
from qtool.bench.timing import interleave, timed


class Clock:
    """A clock that only moves when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_a_sample_is_the_median_of_its_calls_without_the_first():
    clock = Clock()
    durations = iter([0.1, 0.004, 0.002, 0.016, 9.0])
    assert timed(lambda: clock.work(next(durations)), clock=clock)() == pytest.approx(0.004)
    assert next(durations) == 9.0


def test_a_slow_call_is_called_once():
    clock = Clock()
    calls = []

    def call() -> None:
        calls.append(None)
        clock.work(timing.SLOW * 2)

    assert timed(call, clock=clock)() == timing.SLOW * 2
    assert len(calls) == 1


def test_engines_take_turns_with_a_pause_before_each():
    log: list[object] = []
    times = {"a": iter([100.0, 1.0, 2.0, 3.0]), "b": iter([100.0, 4.0, 5.0, 6.0])}

    def sampler(name: str):
        def sample() -> float:
            log.append(name)
            return next(times[name])

        return sample

    found = interleave({n: sampler(n) for n in times}, 3, pause=0.5, sleep=log.append, clock=Clock())
    assert found == {"a": (1.0, 2.0, 3.0), "b": (4.0, 5.0, 6.0)}  # the warm-up is not among them
    assert log == ["a", "b", *[0.5, "a", 0.5, "b"] * 3]


@pytest.mark.parametrize(("at_most", "rounds"), [(0.0, timing.FEWEST_ROUNDS), (4.5, 5), (100.0, 9)])
def test_a_case_that_takes_long_gets_fewer_rounds(at_most: float, rounds: int):
    clock = Clock()

    def sample() -> float:
        clock.work(1.0)
        return 1.0

    found = interleave({"a": sample}, 9, at_most=at_most, sleep=lambda _: None, clock=clock)
    assert len(found["a"]) == rounds
