"""Models in turn on all samples, so that the pass over them is a measurement of latency, too.

Each model runs on some batches before the next one runs on the same: the first run after another model meets a cold
cache, and threads of the other session that still spin, and is not timed; the others are what a user would see. Turns
begin with another model each, as rounds of :mod:`qtool.evaluate.latency` do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from qtool.evaluate.latency import MIN_ROUNDS, Timings
from qtool.evaluate.metrics.base import Array

Arrays: TypeAlias = "Mapping[str, Array]"

TURN = 4
"""Batches of a turn that is timed."""
TURN_BYTES = 16 << 20
"""Inputs and outputs of a turn, which are alive until all models had theirs."""


@dataclass
class Step:
    """A batch.

    Attributes:
        count: Its samples.
        feeds: Its inputs.
        outputs: Those of each model, in their order.
    """

    count: int
    feeds: Arrays
    outputs: list[Arrays] = field(default_factory=list)

    @property
    def form(self) -> object:
        """Equal for batches that take as long."""
        return self.count, {name: array.shape for name, array in self.feeds.items()}


class Turns:
    """Models in turn.

    Args:
        models: Each runs its model on a batch.
        turn: Batches of a turn, at most; with one, nothing is timed, and the first model is always first.
        clock: Seconds; replaced in tests.

    Attributes:
        seconds: What all runs took together.
    """

    def __init__(
        self,
        models: Sequence[Callable[[Arrays], Arrays]],
        *,
        turn: int = TURN,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._models = models
        self._turn_length = turn
        self._clock = clock
        self.seconds = 0.0
        self._times: list[list[float]] = [[] for _ in models]
        self._rounds = 0
        self._form: object = None

    def over(self, batches: Iterable[tuple[int, Arrays]]) -> Iterator[Step]:
        """Run all models on all batches.

        Args:
            batches: Samples and inputs of each.

        Yields:
            Each batch with the outputs of all models, in the order given.
        """
        waiting = iter(batches)
        number = 0
        while steps := self._turn(waiting, number % len(self._models)):
            number += self._turn_length > 1
            while steps:
                yield steps.pop(0)

    def _turn(self, batches: Iterator[tuple[int, Arrays]], leader: int) -> list[Step]:
        """The next batches, with the outputs of all models: as many as fit, which the first run tells."""
        steps: list[Step] = []
        found: list[list[Arrays]] = [[] for _ in self._models]
        seconds: list[list[float]] = [[] for _ in self._models]
        held = 0
        for count, feeds in islice(batches, self._turn_length):
            steps.append(Step(count, feeds))
            self._run(leader, feeds, found, seconds)
            outputs = sum(array.nbytes for array in found[leader][-1].values())
            held += sum(array.nbytes for array in feeds.values()) + outputs * len(self._models)
            if held >= TURN_BYTES:
                break
        for later in range(1, len(self._models)):
            for step in steps:
                self._run((leader + later) % len(self._models), step.feeds, found, seconds)
        for at, step in enumerate(steps):
            step.outputs = [outputs[at] for outputs in found]
        self._count(steps, seconds)
        return steps

    def _run(self, model: int, feeds: Arrays, found: list[list[Arrays]], seconds: list[list[float]]) -> None:
        start = self._clock()
        outputs = self._models[model](feeds)
        took = self._clock() - start
        found[model].append(outputs)
        seconds[model].append(took)
        self.seconds += took

    def _count(self, steps: Sequence[Step], seconds: Sequence[Sequence[float]]) -> None:
        """Keep the times of all but the first batch of a turn; the last one of all samples may be smaller."""
        if steps and self._form is None:
            self._form = steps[0].form
        timed = [at for at, step in enumerate(steps) if at and step.form == self._form]
        for times, took in zip(self._times, seconds, strict=True):
            times += [took[at] for at in timed]
        self._rounds += bool(timed)

    def timings(self, least: float) -> Timings | None:
        """Latency of each model on a batch like the first; None if the pass says too little.

        Args:
            least: Seconds that the pass has to take.
        """
        if self._rounds < MIN_ROUNDS or self.seconds < least:
            return None
        return Timings(tuple(statistics.median(each) for each in self._times), self._rounds, len(self._times[0]))
