"""Wall time and progress of the stages, and the memory they took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qtool.api.settings import Progress


class Clock:
    """Wall time of each stage, and the caller's progress function."""

    def __init__(self, progress: Progress | None, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {} if seconds is None else seconds
        self._progress = progress

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time of a ``with`` block as that of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def beginning(self, stage: str, of: str) -> Callable[[], None]:
        """A function to be called inside a block of the stage ``of``: the time until then is that of ``stage``."""
        start = time.perf_counter()

        def ended() -> None:
            taken = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + taken
            self.seconds[of] = self.seconds.get(of, 0.0) - taken

        return ended

    def progress(self, stage: str) -> Callable[[int, int], None] | None:
        """The part of the progress function that a stage calls with (done, total)."""
        report = self._progress
        return None if report is None else lambda done, total: report(stage, done, total)


def peak_rss() -> int:
    """Peak resident memory of this process so far, in bytes."""
    from qtool.calibrate.budget import peak_memory

    return peak_memory()
