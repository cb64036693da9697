"""How much memory collection may take, and what is done about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from qtool.calibrate.blocked import Run
from qtool.calibrate.samples import Samples
from qtool.errors import ConfigError
from qtool.runtime.lean import lean_memory, release

STATISTICS_BYTES = 1 << 17  # of a tensor with a histogram, in each worker and once more where they are merged
_MEGABYTE = 1_000_000
_MARGIN = 1.04  # two runs of a process do not take the same to the byte
_AT_ONCE = 1.15  # several runs at a time need more than several times one
_INSIDE = 1.5  # what a run takes over its activations: workspaces of operators, copies
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """What a sample takes.

    Attributes:
        alive: Most bytes of arrays that exist at one time.
        observed: Bytes of all wanted tensors and of the inputs.
        growth: How much the process grew while it ran; no more than this if an earlier peak hides it.
        fed: Bytes of the inputs.
    """

    alive: float
    observed: float
    growth: float
    fed: float


class Budget:
    """A limit to the memory of the process.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = self._live = 0
        self._foreseen = False
        self._fed = self._share = 0.0

    def reserve(self, nbytes: int) -> None:
        """Say what the last stage takes on top of what the process has now, beside the activations of one sample.

        It changes what is suggested, not what is refused.
        """
        self._reserved = current_memory() + nbytes

    @staticmethod
    def release() -> None:
        """Give back what is free."""
        release()

    def require(self, stage: str = "calibration") -> None:
        """Check that the process has kept the limit.

        Args:
            stage: What was done since the last check.

        Raises:
            ConfigError: If not; the hint has a value that is enough for what was done so far.
        """
        self.refuse_above(peak_memory(), stage)

    def refuse_above(self, need: float, stage: str, enough: float = 0.0) -> None:
        """Refuse if something needs more than the limit.

        Args:
            need: Bytes.
            stage: What needs it.
            enough: Bytes that are enough, where ``need`` is a lower bound.

        Raises:
            ConfigError: With a limit that suffices.
        """
        if need <= self._limit:
            return
        needed = int(need) // _MEGABYTE + 1
        later = self._reserved + _INSIDE * self._live if self._reserved else 0
        least = int(max(need, enough, later) * _MARGIN) // _MEGABYTE + 1
        raise ConfigError(
            f"The limit of {self._limit // _MEGABYTE} MB of memory cannot be kept: {stage} needs {needed} MB.",
            hint=f"Give --max-memory {least}M or more{'' if self._foreseen else '; stages that follow may need more'}.",
        )

    def foresee(self, live: int | None, statistics: int) -> None:
        """Check before a sample is run that its activations fit.

        Args:
            live: Most bytes of activations at one time; None if that is not known.
            statistics: Bytes of the statistics of one worker.

        Raises:
            ConfigError: If they do not.
        """
        self._foreseen = True
        used = current_memory()
        self._live = max(self._live, live or 0)
        least = max(peak_memory(), used + (live or 0), used + 2 * statistics)
        self.refuse_above(least, _ONE, used + statistics + _INSIDE * (live or 0))

    def share(self, cost: Cost, workers: int, size: int, statistics: int) -> tuple[int, int]:
        """The number of workers and of samples in a batch that the limit allows, after one sample was measured.

        Args:
            cost: Of a sample.
            workers: Most workers.
            size: Most samples in a batch.
            statistics: Bytes of the statistics of one worker.

        Raises:
            ConfigError: If one sample at a time is too much.
        """
        used = current_memory()
        need = max(cost.alive, cost.growth, 1.0)
        least = max(peak_memory(), used + statistics + need, used + 2 * statistics)
        self.refuse_above(least, _ONE)
        self._fed, self._share = cost.fed, need
        room = (self._limit - used) / _MARGIN
        need *= _AT_ONCE
        workers = max(1, min(workers, int((room - statistics) / (statistics + need))))
        size = max(1, min(size, int((room / workers - statistics) / need)))
        self._share = max(self._share, size * need)
        self._fed *= size
        return workers, size

    def is_larger(self, fed: int) -> bool:
        """Whether a batch has larger inputs than those that the room was shared out for: it is to be run alone."""
        return fed > self._fed


_ONE = "one sample at a time"


@contextmanager
def limited(limit: int | None) -> Iterator[Budget | None]:
    """A block in which the process keeps a limit, or none.

    Raises:
        ConfigError: If the process is above it already, once it has loaded its libraries.
    """
    if limit is None:
        yield None
        return
    with lean_memory():
        for library in ("onnx.checker", "onnx.shape_inference", "onnx_ir", "onnxruntime"):
            import_module(library)

        need = peak_memory() // _MEGABYTE + 1
        if need * _MEGABYTE > limit:
            raise ConfigError(
                f"The limit of {limit // _MEGABYTE} MB of memory cannot be kept: the process with its libraries takes "
                f"{need} MB.",
                hint=f"Give more than --max-memory {need}M: the model and its samples come on top.",
            )
        yield Budget(limit)


def measure(model: Run, samples: Samples) -> Cost:
    """Run one sample and see what it takes."""
    rows, feeds = next(samples.counted_batches(None))
    fed = observed = sum(array.nbytes for array in feeds.values())
    used, before = current_memory() - fed, peak_memory()
    most = observed
    for arrays, alive in model.steps(feeds):
        most = max(most, alive)
        observed += sum(array.nbytes for array in arrays.values())
        arrays.clear()
    growth = peak_memory() - used
    if peak_memory() == before:  # somewhere below an earlier peak
        growth = min(growth, int(_INSIDE * most))
    return Cost(most / rows, observed / rows, growth / rows, fed / rows)


def observed_bytes(model: Run, samples: Samples) -> float:
    """Bytes of all observed arrays of one sample, by running it."""
    rows, feeds = next(samples.counted_batches(None))
    observed = sum(array.nbytes for array in feeds.values())
    for arrays, _ in model.steps(feeds):
        observed += sum(array.nbytes for array in arrays.values())
        arrays.clear()
    return observed / rows


def peak_memory() -> int:
    """Peak resident memory of this process, in bytes; that of the process which started it does not count."""
    seen = _status("VmHWM")
    if seen is not None:
        return seen
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def current_memory() -> int:
    """Resident memory of this process, without what is free, in bytes; its peak where the system does not say."""
    release()
    return _status("VmRSS") or peak_memory()


def _status(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)
