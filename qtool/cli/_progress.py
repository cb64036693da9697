"""Progress bars with the time left, on stderr, for a person who watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qtool.cli._output import Output

if TYPE_CHECKING:
    from rich.progress import TaskID

_WIDE = 50  # columns that hold all of a line, and a bar worth looking at

ProgressCallback = Callable[[str, int, int], None]


def wants_bars(out: Output) -> bool:
    """Whether somebody watches: stderr is a terminal that can redraw a line, and this is no CI job."""
    if out.quiet or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def progress_bars(out: Output) -> Iterator[ProgressCallback | None]:
    """Bars for the duration of a block, one per stage; they vanish at its end, whatever ends it.

    Yields:
        A callback ``(stage, done, total)`` for the api, ``total`` 0 where it is not known; None where nobody watches.
    """
    if not wants_bars(out):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, no_color=True if out.color is False else None)
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), MofNCompleteColumn()]
    if console.width >= _WIDE:  # else there is no room for them, and the time that is left says more
        columns[1:] = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TextColumn("left"), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield update
