"""A case: one kernel on one size, and the engines it is compared with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from qtool import kernels
from qtool.bench.timing import Sampler, timed

QTOOL = "qtool"
ORT = "onnxruntime"
ONEDNN = "oneDNN"
NUMPY = "NumPy"
REFERENCE = "onnx.reference"
GOPS = "GOPS"
GBS = "GB/s"


@dataclass(frozen=True)
class Engine:
    """Somebody who can do the work of a case.

    Attributes:
        name: Whose it is.
        sample: Seconds for the work of the case.
        isa: Cap of qtool's instruction set while it runs.
        result: The output as an array, where it can be compared with qtool's.
    """

    name: str
    sample: Sampler
    isa: str = "auto"
    result: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    Attributes:
        name: ``kernel/detail/size``; what ``--only`` and the floors match.
        unit: GOPS or GB/s.
        work: Operations or bytes of one call.
        build: Number of threads -> engines, qtool's first. Allocates; called just before the case is run.
        quick: Whether ``--quick`` runs it.
        isa: Cap under which qtool runs.
        threads: Number of threads, where the case is about that.
        missing: Why the case cannot be built here; None if it can.
    """

    name: str
    unit: str
    work: float
    build: Callable[[int], list[Engine]] = field(repr=False)
    quick: bool = False
    isa: str = "auto"
    threads: int | None = None
    missing: Callable[[], str | None] = field(default=lambda: None, repr=False)


def allowed_isas() -> tuple[str, ...]:
    """Instruction sets of this processor within the cap of the process, weakest first."""
    info = kernels.isa_info()
    return info.supported if info.cap == "auto" else info.supported[: info.supported.index(info.cap) + 1]


@contextmanager
def capped(name: str) -> Iterator[None]:
    """Cap qtool's dispatch, and put the cap back. ``auto`` leaves the cap of the process in force."""
    before = kernels.isa_info().cap
    if name != "auto":
        kernels.cap_isa(name)
    try:
        yield
    finally:
        kernels.cap_isa(before)


@contextmanager
def allowing(threads: int) -> Iterator[None]:
    """A user who allows some threads by QTOOL_NUM_THREADS, so that short work stays on one; 1 needs no leave.

    Users set the variable once, so that takes no time of a call.
    """
    if threads == 1:
        yield
        return
    before = os.environ.get("QTOOL_NUM_THREADS")
    os.environ["QTOOL_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ["QTOOL_NUM_THREADS"]
        else:
            os.environ["QTOOL_NUM_THREADS"] = before


def engine(
    name: str, call: Callable[[], Any], *, isa: str = "auto", comparable: bool = True, threads: int = 1
) -> Engine:
    """An engine that is timed call by call. With several ``threads``, ``call`` leaves their number to the variable."""
    sampler = timed(call)

    def sample() -> float:
        with allowing(threads):
            return sampler()

    def result() -> Any:
        with allowing(threads):
            return call()

    return Engine(name, sample, isa, result if comparable else None)


def peer(name: str, call: Callable[[], Any] | None, *, comparable: bool = True) -> list[Engine]:
    """An engine whose calls return an ``OrtValue`` or a tensor, both of which know ``numpy()``; none if not there."""
    if call is None:
        return []
    return [Engine(name, timed(call), result=(lambda: call().numpy()) if comparable else None)]


def ceiling(name: str, sample: Sampler | None) -> list[Engine]:
    """A limit of the machine; none where it has not that unit."""
    return [] if sample is None else [Engine(name, sample)]
