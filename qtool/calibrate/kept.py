"""Samples that a statistics file keeps, on which a result is run before it is put in place.

They are the first ones in an order that depends on the data alone: by the digest of their file and their place in it,
or by their own digest if they come from memory. So the order of files, the way the samples are split and the merging of
the parts change nothing: what a whole keeps is among what its parts keep. Two limits end the list, a number of samples
and a number of bytes; where bytes do, the sample that was too much is remembered, so that merging ends there as well.
A few samples may be large; beyond those there are more as long as all of them are small, because a row of a table or a
short text says little about the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.calibrate.coverage import Coverage, combined, file_use, memory_use, plain_text, sample_sha256
from qtool.calibrate.samples import Samples

FEW_SAMPLES = 4
MAX_BYTES = 32 << 20
"""Of a few samples."""
MAX_SAMPLES = 64
SMALL_BYTES = 1 << 20
"""Of more than a few samples."""

Place = tuple[str, int]  # SHA-256, place in the file


@dataclass(frozen=True, eq=False)
class KeptBatch:
    """The smallest batch that the model can be run on.

    Attributes:
        source: SHA-256 of the data file that it is from; its own if it was in memory.
        index: Place of its first sample in the file; 0 if it was in memory.
        samples: Number of samples.
        feeds: Inputs by name.
    """

    source: str
    index: int
    samples: int
    feeds: Mapping[str, npt.NDArray[Any]]

    @property
    def place(self) -> Place:
        """What the order goes by."""
        return self.source, self.index

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(array.nbytes for array in self.feeds.values())


@dataclass(frozen=True, eq=False)
class Kept:
    """The first batches of some samples.

    Attributes:
        batches: In order.
        cut: Place of the batch that would have come next, had it not been too large; ``None`` if nothing was.
    """

    batches: tuple[KeptBatch, ...] = ()
    cut: Place | None = None

    @classmethod
    def of(cls, candidates: Iterable[KeptBatch], cut: Place | None = None) -> Kept:
        """The first of some batches, ``cut`` being the first place that is known to be missing among them."""
        chosen: list[KeptBatch] = []
        samples = nbytes = 0
        for _, batch in sorted({batch.place: batch for batch in candidates}.items()):
            if samples >= MAX_SAMPLES:
                return cls(tuple(chosen))
            if cut is not None and batch.place >= cut:
                break
            nbytes += batch.nbytes
            if nbytes > _most_bytes(samples):
                return cls(tuple(chosen), batch.place)
            chosen.append(batch)
            samples += batch.samples
        return cls(tuple(chosen), None if samples >= MAX_SAMPLES else cut)

    @classmethod
    def merged(cls, parts: Iterable[Kept]) -> Kept:
        """What the samples of all parts together keep."""
        parts = list(parts)
        cuts = [part.cut for part in parts if part.cut is not None]
        return cls.of((batch for part in parts for batch in part.batches), min(cuts, default=None))

    @property
    def samples(self) -> int:
        """Number of samples in all batches."""
        return sum(batch.samples for batch in self.batches)


def _most_bytes(before: int) -> int:
    """Bytes that a list may have with one more batch, after a number of samples."""
    return MAX_BYTES if before < FEW_SAMPLES else min(SMALL_BYTES, MAX_BYTES)


def survey(samples: Samples, *, keep: bool = True) -> tuple[Coverage, Kept]:
    """What samples cover, and the ones to keep of them; memory holds no more than those.

    Args:
        samples: Samples; those in memory are read once, of files the first ones.
        keep: Whether the ones to keep are wanted.
    """
    coverages: list[Coverage] = []
    kept = Kept()
    for source, ranges, part in samples.by_source():
        info = source.info
        if info.path is None:  # then there is no other source
            digests, found = _from_memory(samples, keep=keep)
            coverages.append((memory_use(digests),))
        else:
            coverages.append((file_use(info.sha256, source.count, ranges, [one.sha256 for one in source.infos]),))
            found = _from_file(part, info.sha256, ranges) if keep else Kept()
        kept = Kept.merged([kept, found])
    return combined(coverages, repeats=True), kept


def _from_memory(samples: Samples, *, keep: bool) -> tuple[list[str], Kept]:
    """Digests of all samples, and the batches with the smallest ones."""
    digests: list[str] = []
    kept = Kept()
    for rows, feeds in samples.counted_batches(None):
        whole = sample_sha256(feeds)
        if samples.fixed_batch is None or rows == 1:
            digests.append(whole)
            digests += [whole] * (rows - 1)  # an item of several samples, which has one digest
        else:
            digests += [sample_sha256({name: a[row : row + 1] for name, a in feeds.items()}) for row in range(rows)]
        if keep and (kept.cut is None or (whole, 0) < kept.cut):
            candidate = KeptBatch(whole, 0, rows, feeds)
            if kept.samples < MAX_SAMPLES or candidate.place < kept.batches[-1].place:
                candidate = KeptBatch(whole, 0, rows, _copied(feeds))
                kept = Kept.of([*kept.batches, candidate], kept.cut)
    return digests, kept


def _from_file(samples: Samples, sha256: str, ranges: Iterable[tuple[int, int]]) -> Kept:
    places = (place for start, stop in ranges for place in range(start, stop))
    chosen: list[KeptBatch] = []
    count = nbytes = 0
    for rows, feeds in samples.counted_batches(None):
        place = next(places)
        for _ in range(rows - 1):
            next(places)
        nbytes += sum(array.nbytes for array in feeds.values())
        if nbytes > _most_bytes(count):
            return Kept(tuple(chosen), (sha256, place))
        chosen.append(KeptBatch(sha256, place, rows, _copied(feeds)))
        count += rows
        if count >= MAX_SAMPLES:
            break
    return Kept(tuple(chosen))


def _copied(feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.array(plain_text(array), order="C") for name, array in feeds.items()}
