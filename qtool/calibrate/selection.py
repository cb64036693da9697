"""Which samples are fed, and in which order: all, the first ones, a stretch of them, or a shuffle.

A selection is a table of stretches of neighbours, so that it is small for whole files and costs some tens of bytes per
sample after a shuffle. Samples that the data puts into one batch of its own (an item with several rows) stay together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.calibrate.layout import Shape
from qtool.errors import ConfigError

_SINGLE, _WHOLE = -1, -2  # keys of samples that are fed one by one, and of items that are fed as they are

Range: TypeAlias = tuple[int, int]


def pieces(ranges: Iterable[Range], size: int) -> Iterator[Range]:
    """The ranges cut into pieces of at most ``size``."""
    for start, stop in ranges:
        for first in range(start, stop, size):
            yield first, min(first + size, stop)


@dataclass(frozen=True)
class Run:
    """Samples that follow each other: how many, and what must be equal for them to share a batch with neighbours.

    Attributes:
        rows: Number of samples.
        key: Shapes without the batch axis; ``None`` if the samples are fed exactly as they are.
        whole: Whether they are one item of the data, which is never cut.
    """

    rows: int
    key: tuple[Shape, ...] | None
    whole: bool = False


@dataclass(frozen=True)
class Selection:
    """Samples in the order in which they are fed.

    Attributes:
        table: int64 of shape ``(stretches, 4)``: source, first sample, one past the last sample, key.
    """

    table: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sources: Sequence[Sequence[Run]]) -> Selection:
        """Everything, from the runs of each source."""
        keys: dict[tuple[Shape, ...], int] = {}
        rows = []
        for number, runs in enumerate(sources):
            start = 0
            for run in runs:
                single = _WHOLE if run.whole else _SINGLE
                key = single if run.key is None else keys.setdefault(run.key, len(keys))
                rows.append((number, start, start + run.rows, key))
                start += run.rows
        return cls(np.array(rows, np.int64).reshape(-1, 4))

    @property
    def count(self) -> int:
        """Number of samples."""
        return int((self.table[:, 2] - self.table[:, 1]).sum())

    @property
    def batchable(self) -> bool:
        """Whether some of the samples can share a batch with others."""
        return bool((self.table[:, 3] >= 0).any())

    @property
    def sources(self) -> list[int]:
        """The sources that samples are taken from, in the order of the sources."""
        return sorted(set(self.table[:, 0].tolist()))  # np.unique imports numpy.ma, which takes a while

    @property
    def ordered(self) -> bool:
        """Whether the samples are in the order of the data, so that one walk over it meets them."""
        source, start = self.table[:-1, 0], self.table[:-1, 1]
        later = (self.table[1:, 0] > source) | ((self.table[1:, 0] == source) & (self.table[1:, 1] > start))
        return bool(later.all())

    def ranges(self) -> Iterator[tuple[int, list[Range]]]:
        """The samples in the order of the data: for each source, ranges that ascend and do not touch."""
        table = self.table[np.lexsort((self.table[:, 1], self.table[:, 0]))]
        for number in self.sources:
            found: list[Range] = []
            for _, start, stop, _ in table[table[:, 0] == number].tolist():
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
            yield number, found

    def of_source(self, number: int) -> Selection:
        """Those of one source, in the order of the data."""
        table = self.table[self.table[:, 0] == number]
        return Selection(table[np.argsort(table[:, 1], kind="stable")])

    def shuffled(self, seed: int) -> Selection:
        """The same samples in an order that depends on the seed and their number alone."""
        lengths = np.where(self.table[:, 3] == _WHOLE, 1, self.table[:, 2] - self.table[:, 1])
        units = np.repeat(self.table, lengths, axis=0)
        units[:, 1] += np.arange(len(units)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        single = units[:, 3] != _WHOLE
        units[single, 2] = units[single, 1] + 1
        # NumPy keeps the stream of a bit generator for good, but not that of Generator.permutation
        return Selection(units[np.argsort(np.random.PCG64(seed).random_raw(len(units)), kind="stable")])

    def first(self, count: int) -> Selection:
        """The first ``count`` samples, or a few less where an item would have to be cut.

        Raises:
            ConfigError: If the first item alone holds more.
        """
        ends = np.cumsum(self.table[:, 2] - self.table[:, 1])
        at = int(np.searchsorted(ends, count))
        if at < len(ends) and self.table[at, 3] == _WHOLE and ends[at] > count:
            if at == 0:
                raise ConfigError(
                    f"{count} samples are wanted, but the first item holds {ends[0]}, which are fed together; "
                    f"expected at least {ends[0]}."
                )
            count = int(ends[at - 1])
        return self.between(0, count)

    def between(self, start: int, stop: int | None) -> Selection:
        """The samples from ``start`` up to ``stop``, as a slice of a list.

        Raises:
            ConfigError: If a limit is negative, or falls into an item that is fed as it is.
        """
        stop = self.count if stop is None else min(stop, self.count)
        if start < 0 or stop < 0:
            raise ConfigError(f"Samples {start} to {stop} are wanted; expected positions of 0 or more.")
        ends = np.cumsum(self.table[:, 2] - self.table[:, 1])
        begins = ends - (self.table[:, 2] - self.table[:, 1])
        inside = (begins < stop) & (ends > start)
        cut = inside & (self.table[:, 3] == _WHOLE) & ((begins < start) | (ends > stop))
        if cut.any():
            at = int(np.argmax(cut))
            raise ConfigError(
                f"Samples {start} to {stop} are wanted, but {begins[at]} to {ends[at]} are one item of the data, which "
                "is fed as it is.",
                hint="Cut between the items.",
            )
        table = self.table[inside].copy()
        table[:, 1] += np.maximum(start - begins[inside], 0)
        table[:, 2] -= np.maximum(ends[inside] - stop, 0)
        return Selection(table)

    def at(self, numbers: Sequence[int]) -> Selection:
        """The samples at some positions, which ascend; of an item that is fed as it is, all positions.

        Raises:
            ConfigError: See :meth:`between`.
        """
        runs = np.split(np.asarray(numbers, np.int64), np.flatnonzero(np.diff(numbers) != 1) + 1)
        tables = [self.between(int(run[0]), int(run[-1]) + 1).table for run in runs if len(run)]
        return Selection(np.concatenate(tables)) if tables else self.between(0, 0)

    def in_batches_of(self, batch: int) -> Selection:
        """What a model of a fixed batch size can be fed: neighbours of equal shape, up to the last whole batch."""
        if not len(self.table):
            return self
        table = self.table.copy()
        lengths, keys = table[:, 2] - table[:, 1], table[:, 3]
        opens = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
        for first, end in zip(opens, [*opens[1:], len(table)], strict=True):
            if keys[first] < 0:
                continue
            spare, at = int(lengths[first:end].sum() % batch), end
            while spare:
                at -= 1
                drop = min(spare, int(lengths[at]))
                table[at, 2] -= drop
                spare -= drop
        return Selection(table[table[:, 2] > table[:, 1]])

    def positions(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Where the samples are in the concatenation of all sources, which hold ``sizes`` samples."""
        offsets = np.cumsum([0, *sizes], dtype=np.int64)[self.table[:, 0]] + self.table[:, 1]
        lengths = self.table[:, 2] - self.table[:, 1]
        within = np.arange(self.count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        found: npt.NDArray[np.int64] = np.repeat(offsets, lengths) + within
        return found
