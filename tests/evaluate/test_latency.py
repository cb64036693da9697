from __future__ import annotations

import pytest

from qtool.evaluate.latency import (
    LONG_SECONDS,
    MAX_INNER,
    MAX_ROUNDS,
    MIN_ROUNDS,
    ROUND_SECONDS,
    Timing,
    Timings,
    measure,
    measure_all,
    median_interval,
)
from tests.planted_clock import PlantedClock


def test_slow_models_run_three_rounds_in_turned_order() -> None:
    machine = PlantedClock()
    times = {"a": [9.0, 1.0, 1.0, 5.0, 2.0], "b": [9.0, 1.0, 4.0, 3.0, 8.0]}
    runs = [machine.model(name, lambda i, t=t: t[i]) for name, t in times.items()]  # type: ignore[misc]
    assert measure(*runs, budget=0.0, clock=machine.clock) == Timing(2.0, 4.0, 3, 3)
    # warm-up, estimate, then a b / b a / a b
    assert "".join(machine.log) == "ab" + "ab" + "ab" + "ba" + "ab"


def test_quick_models_repeat_inside_a_round_after_an_untimed_run() -> None:
    machine = PlantedClock()
    first, second = machine.model("a", lambda _: 0.25e-2), machine.model("b", lambda _: 0.5e-2)
    timing = measure(first, second, budget=0.0, clock=machine.clock)
    inner = int(ROUND_SECONDS / 0.5e-2)
    assert (timing.rounds, timing.runs) == (MIN_ROUNDS, MIN_ROUNDS * inner)
    assert abs(timing.first - 0.25e-2) < 1e-12
    assert abs(timing.second - 0.5e-2) < 1e-12
    assert machine.log.count("a") == 2 + MIN_ROUNDS * (inner + 1)


def test_the_budget_ends_the_rounds() -> None:
    machine = PlantedClock()
    run = machine.model("a", lambda _: 1.0)
    assert measure(run, run, budget=7.0, clock=machine.clock).rounds == 4
    uneven = machine.model("b", lambda i: 1.0 if i % 4 < 2 else 1.1)
    assert measure(run, uneven, budget=1e9, clock=machine.clock).rounds == MAX_ROUNDS


def test_rounds_end_where_more_of_them_would_say_the_same() -> None:
    machine = PlantedClock()
    fast, slow = machine.model("a", lambda i: 1.0 + 0.01 * (i % 2)), machine.model("b", lambda i: 2.0 + 0.02 * (i % 2))
    timing = measure(fast, slow, budget=1e9, clock=machine.clock)
    assert (timing.rounds, timing.runs) == (6, 6)  # the fewest that have an interval
    assert measure(fast, slow, budget=9.0, clock=machine.clock).rounds == MIN_ROUNDS  # the budget is over before


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([1.0] * 5, None),  # 2 * 2^-5 is more than 5 %
        ([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], (1.0, 6.0)),
        ([*range(1, 9)], (1, 8)),  # 9 / 256 heads or tails is more than 2.5 %
        ([*range(1, 10)], (2, 8)),  # 10 / 512 is less
        ([*range(31, 0, -1)], (10, 22)),
    ],
)
def test_the_interval_of_the_sign_test(values: list[float], interval: tuple[float, float] | None) -> None:
    assert median_interval(values) == interval


def test_runs_that_take_long_are_timed_at_once() -> None:
    machine = PlantedClock()
    first, second = machine.model("a", lambda _: LONG_SECONDS), machine.model("b", lambda _: 0.1)
    measure(first, second, budget=0.0, clock=machine.clock)
    assert "".join(machine.log) == "ab" + "ab" + "ab" + "ba" + "ab"
    machine.log.clear()
    measure(second, second, budget=0.0, clock=machine.clock)
    assert machine.log.count("b") == 4 + 2 * 2 * MIN_ROUNDS


def test_a_model_below_the_clock_resolution() -> None:
    machine = PlantedClock()
    run = machine.model("a", lambda _: 0.0)
    assert measure(run, run, budget=1.0, clock=machine.clock) == Timing(0.0, 0.0, MAX_ROUNDS, MAX_ROUNDS * MAX_INNER)


def test_three_models_take_turns_in_who_is_first() -> None:
    machine = PlantedClock()
    runs = [machine.model(name, lambda _, s=s: s) for name, s in (("a", 3.0), ("b", 1.0), ("c", 2.0))]  # type: ignore[misc]
    assert measure_all(runs, budget=0.0, clock=machine.clock) == Timings((3.0, 1.0, 2.0), 3, 3)
    assert "".join(machine.log) == "abc" + "abc" + "abc" + "bca" + "cab"
