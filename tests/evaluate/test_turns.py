"""Models in turn: who runs when, what is timed, and when that is a measurement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from qtool.evaluate import turns
from qtool.evaluate.latency import Timings
from qtool.evaluate.metrics.base import Array
from qtool.evaluate.turns import Turns
from tests.planted_clock import PlantedClock


def model(machine: PlantedClock, name: str, seconds: float):  # type: ignore[no-untyped-def]
    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        """A run after one of the other model takes ten times as long."""
        again = bool(machine.log) and machine.log[-1][0] == name
        machine.run(f"{name}{int(feeds['x'][0])}", seconds if again else 10 * seconds)
        return {"y": feeds["x"] * (2 if name == "a" else 3)}

    return run


def batches(*counts: int) -> list[tuple[int, dict[str, Array]]]:
    return [(count, {"x": np.full(count, at, np.float32)}) for at, count in enumerate(counts)]


def made(machine: PlantedClock) -> Turns:
    return Turns([model(machine, "a", 1.0), model(machine, "b", 2.0)], clock=machine.clock)


def test_batches_come_in_order_with_the_outputs_of_all() -> None:
    machine = PlantedClock()
    steps = list(made(machine).over(batches(2, 2, 2, 2, 2, 1)))
    assert " ".join(machine.log) == "a0 a1 a2 a3 b0 b1 b2 b3 b4 b5 a4 a5"
    assert [step.count for step in steps] == [2, 2, 2, 2, 2, 1]
    for at, step in enumerate(steps):
        assert [float(outputs["y"][0]) for outputs in step.outputs] == [2.0 * at, 3.0 * at]


def test_the_first_run_of_a_turn_and_smaller_batches_are_not_timed() -> None:
    machine = PlantedClock()
    pass_ = made(machine)
    list(pass_.over(batches(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1)))
    # 3 + 3 + 1 runs of each; the last batch is another one
    assert pass_.seconds == machine.now
    assert pass_.timings(machine.now) == Timings((1.0, 2.0), 3, 7)
    assert pass_.timings(machine.now + 0.1) is None  # too short


@pytest.mark.parametrize("counts", [(1,) * 8, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (1,)])
def test_too_few_rounds_are_no_measurement(counts: tuple[int, ...]) -> None:
    pass_ = made(PlantedClock())
    assert len(list(pass_.over(batches(*counts)))) == len(counts)
    assert pass_.timings(0.0) is None


def test_large_arrays_end_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_BYTES", 2 * 3 * 4)  # two batches of one float, each with two outputs
    machine = PlantedClock()
    list(made(machine).over(batches(1, 1, 1, 1)))
    assert " ".join(machine.log) == "a0 a1 b0 b1 b2 b3 a2 a3"
