"""Runs cases one after the other."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qtool import kernels
from qtool.bench.cases.case import QTOOL, Case, Engine, allowed_isas, capped
from qtool.bench.timing import Sampler, interleave


@dataclass(frozen=True)
class Result:
    """What a case gave.

    Attributes:
        case: The case.
        threads: Threads that qtool and the peers had.
        samples: Engine -> seconds, one per round; qtool's first.
        differs: Peers whose output is not qtool's, bit for bit, among those that can be compared.
    """

    case: Case
    threads: int
    samples: dict[str, tuple[float, ...]]
    differs: tuple[str, ...] = ()

    def seconds(self, name: str = QTOOL) -> float:
        """Median time of an engine."""
        return statistics.median(self.samples[name])

    def rate(self, name: str = QTOOL) -> float:
        """Work per second of an engine, in the unit of the case."""
        return self.case.work / self.seconds(name) / 1e9

    def ratio(self, against: str) -> float:
        """How many times as fast qtool is: the ratio of medians."""
        return self.seconds(against) / self.seconds()

    @property
    def others(self) -> tuple[str, ...]:
        """Everybody but qtool."""
        return tuple(name for name in self.samples if name != QTOOL)

    def with_rounds_of(self, others: Iterable[Result]) -> Result:
        """The same with the rounds of other measurements of the case."""
        samples = dict(self.samples)
        for other in others:
            samples = {name: times + other.samples[name] for name, times in samples.items()}
        return replace(self, samples=samples)


@dataclass(frozen=True)
class Skipped:
    """A case that this machine cannot run, and why."""

    case: Case
    reason: str


def run(
    cases: Iterable[Case],
    *,
    rounds: int,
    threads: int,
    at_most: float = 20.0,
    before: Callable[[Case], object] | None = None,
) -> list[Result | Skipped]:
    """Measure cases.

    Args:
        cases: Which.
        rounds: Rounds of each.
        threads: Threads of qtool and its peers, where the case does not say.
        at_most: Seconds after which a case begins no new round.
        before: Called with each case before it is run.
    """
    found: list[Result | Skipped] = []
    for case in cases:
        reason = _missing(case)
        if reason is not None:
            found.append(Skipped(case, reason))
            continue
        if before is not None:
            before(case)
        found.append(_run_one(case, rounds, case.threads or threads, at_most))
        gc.collect()  # the arrays of a case go before those of the next come
    return found


def joined(results: Iterable[Result | Skipped], more: Iterable[Result | Skipped]) -> list[Result | Skipped]:
    """The results, with the rounds that other measurements of the same cases had."""
    again: dict[str, list[Result]] = {}
    for one in more:
        if isinstance(one, Result):
            again.setdefault(one.case.name, []).append(one)
    return [one.with_rounds_of(again.get(one.case.name, ())) if isinstance(one, Result) else one for one in results]


def _missing(case: Case) -> str | None:
    info = kernels.isa_info()
    if case.isa != "auto" and case.isa not in info.supported:
        return f"this processor has no {case.isa}"
    if case.isa not in ("auto", *allowed_isas()):
        return f"QTOOL_ISA={info.cap} is in force"
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if case.threads is not None and case.threads > cpus:
        return f"needs {case.threads} processors, there is {cpus}"
    return case.missing()


def _run_one(case: Case, rounds: int, threads: int, at_most: float) -> Result:
    engines = case.build(threads)
    differs = _differing(engines)
    samplers = {engine.name: _capped(engine) for engine in engines}
    return Result(case, threads, interleave(samplers, rounds, at_most=at_most), differs)


def _capped(engine: Engine) -> Sampler:
    if engine.isa == "auto":
        return engine.sample

    def sample() -> float:
        with capped(engine.isa):
            return engine.sample()

    return sample


def _differing(engines: list[Engine]) -> tuple[str, ...]:
    mine, *others = engines
    if mine.result is None:
        return ()
    with capped(mine.isa):
        expected = np.asarray(mine.result())
    found: list[str] = []
    for other in others:
        if other.result is not None:
            with capped(other.isa):
                given: Any = np.asarray(other.result())
            if given.dtype.itemsize != expected.dtype.itemsize or not np.array_equal(given, expected):
                found.append(other.name)
    return tuple(found)
