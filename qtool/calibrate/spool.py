"""Samples in an order that the data cannot be read in.

A compressed file can only be read from its front. Shuffling it costs one walk over the file, in which the chosen
samples are written to a temporary file as the model takes them, and that much space on the disk of temporary files
(``TMPDIR``); memory holds one sample. Every later pass reads from there. Sources that can be read anywhere need none.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.calibrate.selection import Run, Selection
from qtool.errors import DataError

if TYPE_CHECKING:
    from qtool.calibrate.sources import Feeds, Source


class Spool:
    """Samples in a temporary file, which goes when the object does."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by the finalizer
        self._close = weakref.finalize(self, self._file.close)
        self._index: dict[int, tuple[int, Run, list[tuple[str, np.dtype[Any], tuple[int, ...]]]]] = {}
        self._end = 0
        self._lock = Lock()  # position and read belong together

    def add(self, position: int, run: Run, feeds: Feeds) -> None:
        """Keep the sample that is found at ``position``."""
        self._index[position] = (self._end, run, [(name, a.dtype, a.shape) for name, a in feeds.items()])
        for array in feeds.values():
            self._end += self._file.write(np.ascontiguousarray(array).tobytes())

    def read(self, position: int) -> tuple[Run, Feeds]:
        """The sample again, in arrays of its own."""
        offset, run, arrays = self._index[position]
        feeds: Feeds = {}
        with self._lock:
            self._file.seek(offset)
            for name, dtype, shape in arrays:
                array: npt.NDArray[Any] = np.empty(shape, dtype)
                if array.nbytes and self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                    raise EOFError("the temporary file is too short")
                feeds[name] = array
        return run, feeds


class Picker:
    """Gives the samples of a selection in any order, as often as asked for.

    Args:
        sources: Where they come from.
        selection: All that will be asked for.
    """

    def __init__(self, sources: Sequence[Source], selection: Selection) -> None:
        self._sources = sources
        self._selection = selection
        self._spools: dict[int, Spool] | None = None

    def parts(self, selection: Selection) -> Iterator[tuple[Run, Feeds]]:
        """The samples one by one, in the order of the selection.

        Raises:
            DataError: If data cannot be read, a value does not survive its cast, or the temporary file cannot be
                written.
        """
        if self._spools is None:
            self._spools = self._spooled()
        for number, start, stop, _ in selection.table.tolist():
            if number in self._spools:
                with _reported():
                    part = self._spools[number].read(start)
                yield part
            else:
                yield from self._sources[number].parts(stop - start, [(start, stop)])

    def _spooled(self) -> dict[int, Spool]:
        spools = {}
        for number, ranges in self._selection.ranges():
            if self._sources[number].seekable:
                continue
            positions = (position for start, stop in ranges for position in range(start, stop))
            with _reported():
                spool = Spool()
            for run, feeds in self._sources[number].parts(1, ranges):
                with _reported():
                    spool.add(next(positions), run, feeds)
                for _ in range(run.rows - 1):  # an item of several samples is asked for by its first
                    next(positions)
            spools[number] = spool
        return spools


@contextmanager
def _reported() -> Iterator[None]:
    """Failures of the temporary file as one line."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise DataError(
            f"Samples cannot be shuffled: their copy in a temporary file failed: "
            f"{getattr(error, 'strerror', None) or error}.",
            hint="Set TMPDIR to a folder with room for the chosen samples, or leave out the shuffle.",
        ) from error
