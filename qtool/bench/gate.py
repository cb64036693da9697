"""Floors and goals: how fast a kernel must be, and should be, on a processor with AMX.

A row says: in cases whose name matches, qtool is at least ``floor`` times as fast as ``against``. A peak of the machine
counts like an engine: 0.36 is 36 % of it. First match wins, per opponent. To change what is expected, change the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from qtool.bench.cases.case import NUMPY, ONEDNN, ORT, REFERENCE, Case
from qtool.bench.cases.elementwise import COPY
from qtool.bench.run import Result
from qtool.kernels import IsaInfo

ISA = "amx_int8"
"""The instruction set that the floors were set for."""

AGAIN = 2
"""Times that a case is measured again if it is short of a floor; the rounds of all times count.

Another guest of the machine that takes its memory or a processor for the seconds of one case does not make the half of
three times as many rounds slow, and a kernel that is slow stays so.
"""


@dataclass(frozen=True)
class Floor:
    """What is expected of one kernel against one opponent."""

    pattern: str
    against: str
    floor: float
    goal: float


def _floors(group: str, sizes: Iterable[str], against: str, floor: float, goal: float) -> list[Floor]:
    return [Floor(f"{group}/{size}", against, floor, goal) for size in sizes]


_CUBES = ("512x512x512", "1024x1024x1024", "2048x2048x2048", "4096x4096x4096")
_FLAT = ("128x768x768", "128x3072x768", "512x4096x4096")  # M >= 128, N and K >= 512
_LARGE = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "512x4096x4096")
_UP_TO_1024 = ("256x256x256", "512x512x512", "1024x1024x1024", "128x768x768", "128x3072x768")

FLOORS: tuple[Floor, ...] = (
    *_floors("qlinear_matmul_packed", _CUBES + _FLAT, ORT, 1.4, 1.8),
    *_floors("qlinear_matmul_packed", _CUBES + _FLAT, ONEDNN, 1.1, 1.3),
    *_floors("qlinear_matmul_packed", (*_CUBES, "512x4096x4096"), "amx peak", 0.36, 0.45),
    *_floors("matmul_integer_packed", _UP_TO_1024, ORT, 1.0, 1.3),
    Floor("matmul_integer_packed/*", ORT, 1.0, 1.1),
    Floor("matmul_integer/*", ORT, 1.3, 1.6),
    Floor("qlinear_matmul/*", ORT, 1.7, 2.2),
    Floor("matmul_integer_packed_u8u8/*", ORT, 6, 9),
    Floor("matmul_integer_packed_s8s8/*", ORT, 25, 45),
    Floor("gemv_packed/*", ORT, 1.1, 1.3),
    Floor("gemv/*", ORT, 6, 10),
    Floor("forced_avx512vnni/*", "vnni peak", 0.60, 0.72),
    Floor("forced_avx2/*", ORT, 0, 3),
    *_floors("two_threads", _LARGE, "one thread", 1.7, 1.9),
    Floor("two_threads/*", ORT, 1.0, 1.0),
    Floor("qlinear_conv/*", ORT, 1.0, 1.2),
    Floor("depthwise_conv/*", ORT, 0.8, 1.0),
    Floor("quantize_tensor/float8e4m3fn/*", ORT, 12, 18),
    Floor("quantize_tensor/*", ORT, 1.3, 1.5),
    Floor("quantize_axis0/*", ORT, 1.3, 1.5),
    Floor("quantize_last_axis/*", ORT, 30, 45),
    Floor("quantize_block32/int4/*", ORT, 2.4, 3),
    Floor("quantize_tensor/int8/*", COPY, 0.8, 0.95),
    Floor("dequantize_tensor/int8/1M", ORT, 1.0, 1.2),
    Floor("dequantize_tensor/int8/*", ORT, 2.0, 2.7),
    Floor("histogram/*", NUMPY, 7, 9),
    Floor("min_max/*", NUMPY, 1.4, 1.7),
    Floor("spec_engine/*", REFERENCE, 0, 100),
)

Status = Literal["short", "floor", "goal"]


@dataclass(frozen=True)
class Verdict:
    """One ratio against what is expected of it."""

    case: str
    against: str
    value: float
    floor: float
    goal: float

    @property
    def status(self) -> Status:
        """``short`` of the floor, above the ``floor``, or at the ``goal``."""
        if self.value < self.floor:
            return "short"
        return "goal" if self.value >= self.goal else "floor"

    def sentence(self) -> str:
        """What to say of it, in one line."""
        text = f"{self.case}: {self.value:.2f} times {self.against}, floor {self.floor:g}, goal {self.goal:g}"
        return f"{text}: {'too slow' if self.status == 'short' else 'goal missed'}" if self.status != "goal" else text


def expected(name: str, against: str) -> Floor | None:
    """The row for a case and an opponent."""
    return next((row for row in FLOORS if row.against == against and fnmatchcase(name, row.pattern)), None)


def judge(results: Iterable[Result]) -> list[Verdict]:
    """A verdict on every ratio that something is expected of."""
    verdicts: list[Verdict] = []
    for result in results:
        for against in result.others:
            row = expected(result.case.name, against)
            if row is not None:
                value = result.ratio(against)
                verdicts.append(Verdict(result.case.name, against, value, row.floor, row.goal))
    return verdicts


def short_cases(verdicts: Iterable[Verdict]) -> frozenset[str]:
    """Names of the cases that a ratio of is short of its floor."""
    return frozenset(verdict.case for verdict in verdicts if verdict.status == "short")


def needed(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases that some floor is about."""
    return tuple(case for case in cases if any(fnmatchcase(case.name, row.pattern) for row in FLOORS))


def why_not_judged(info: IsaInfo, threads: int) -> str | None:
    """Why the floors do not apply here; None if they do."""
    if ISA not in info.supported:
        return f"the floors are for {ISA}, which this processor lacks"
    if info.cap not in ("auto", ISA):
        return f"the floors are for {ISA}, and QTOOL_ISA={info.cap} is in force"
    if threads != 1:
        return f"the floors are for one thread, and there are {threads}"
    return None
