"""How much memory collection may take, and what is done about it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from qtool.calibrate.samples import Samples
from qtool.calibrate.segments import SegmentedModel
from qtool.errors import ConfigError

STATISTICS_BYTES = 3 << 17  # of a tensor with a histogram: counts, those of a batch, the merged ones and their file
_MEGABYTE = 1_000_000
# Of the room for arrays, this much is left to what a runtime needs inside a segment and to holes between arrays.
_SPARE = 2.0
_MARGIN = 1.05  # two runs of a process do not take the same to the byte
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Cost:
    """What a sample takes.

    Attributes:
        alive: Most bytes of arrays that exist at one time.
        observed: Bytes of all wanted tensors and of the inputs.
        growth: How much the process grew by running it.
    """

    alive: float
    observed: float
    growth: float


class Budget:
    """A limit to the memory of the process.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def require(self) -> None:
        """Check that the process has kept the limit.

        Raises:
            ConfigError: If not; the hint has the least value that is enough for what was done so far.
        """
        self._refuse_above(peak_memory())

    def _refuse_above(self, need: float) -> None:
        if need > self._limit:
            least = int(need * _MARGIN) // _MEGABYTE + 1
            raise ConfigError(
                f"The limit of {self._limit // _MEGABYTE} MB of memory cannot be kept: one sample at a time needs "
                f"{least} MB.",
                hint=f"Give --max-memory {least}M or more.",
            )

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
        need = max(cost.alive * _SPARE, cost.growth)
        used = current_memory() - cost.growth  # what the first run left behind serves the next one
        self._refuse_above(max(peak_memory(), used + statistics + need))
        room = self._limit - used
        workers = max(1, min(workers, int(room / (statistics + need))))
        return workers, max(1, min(size, int((room / workers - statistics) / max(need, 1.0))))


def measure(model: SegmentedModel, samples: Samples) -> Cost:
    """Run one sample and see what it takes."""
    before = peak_memory()
    rows, feeds = next(samples.counted_batches(None))
    observed = sum(array.nbytes for array in feeds.values())
    most = observed
    for arrays, alive in model.steps(feeds):
        most = max(most, alive)
        observed += sum(array.nbytes for array in arrays.values())
        arrays.clear()
    return Cost(most / rows, observed / rows, (peak_memory() - before) / rows)


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
    """Resident memory of this process, in bytes; its peak where the system does not say."""
    return _status("VmRSS") or peak_memory()


def _status(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)
