"""A clock that nothing moves but the models that are run by it."""

from __future__ import annotations

from collections.abc import Callable


class PlantedClock:
    """Time stands still between runs.

    Attributes:
        now: Seconds that all runs took so far.
        log: What :meth:`run` was called with, in order.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        """In place of ``time.perf_counter``."""
        return self.now

    def run(self, entry: str, seconds: float) -> None:
        """Something runs for so many seconds."""
        self.now += seconds
        self.log.append(entry)

    def model(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        """What logs its name, and whose n-th run (from 0 on) takes ``seconds(n)``."""
        return lambda: self.run(name, seconds(self.log.count(name)))
