"""Which samples statistics are of, so that overlapping parts are noticed and merged parts equal the whole.

A data file is named by the SHA-256 of its bytes, with the stretches of it that were observed. Samples in memory have no
file: together they are named by the sum, modulo 2^256, of the SHA-256 of each sample, which no order and no way of
handing them over changes. Coverage of parts that were observed apart adds up to the coverage of one run over all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Stretch = tuple[int, int, int]  # first sample, one past the last, how often they were observed
_MODULUS = 1 << 256


@dataclass(frozen=True)
class SourceUse:
    """A data file, or all samples that were in memory, and which samples of it were observed.

    Attributes:
        sha256: Of the file's bytes; of several files that hold the inputs of the same samples, a digest of theirs; of
            samples in memory the sum of the samples' own.
        held: Samples that the file holds; ``None`` for samples in memory.
        used: Stretches in ascending order, as long as they can be.
        files: SHA-256 of each of several files; empty if there is one, or none.
    """

    sha256: str
    held: int | None
    used: tuple[Stretch, ...]
    files: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Observed samples, each as often as it was observed."""
        return sum((stop - start) * times for start, stop, times in self.used)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        used = [list(stretch) for stretch in self.used]
        return {"sha256": self.sha256, "files": list(self.files), "held": self.held, "used": used}


Coverage = tuple[SourceUse, ...]


class OverlapError(ValueError):
    """Samples that are in both of two coverages."""


def file_use(sha256: str, held: int, ranges: Iterable[tuple[int, int]], files: Sequence[str] = ()) -> SourceUse:
    """Ranges of the samples of one file, or of several that belong together."""
    used = _joined([(start, stop, 1) for start, stop in ranges])
    return SourceUse(sha256, held, used, tuple(files) if len(files) > 1 else ())


def memory_use(digests: Sequence[str]) -> SourceUse:
    """Samples in memory, by the SHA-256 of each."""
    return _memory(sum(int(digest, 16) for digest in digests), len(digests))


def sample_sha256(feeds: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over name, type, shape and values of a sample's inputs, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(feeds):
        array = plain_text(feeds[name])
        digest.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def plain_text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Text in the narrowest type that holds it: NumPy's is as wide as the longest text of the array it came from."""
    if array.dtype.kind not in "US" or array.size == 0:
        return array
    width = max(1, int(np.char.str_len(array).max()))
    return array.astype(f"{array.dtype.kind}{width}")


def combined(coverages: Iterable[Coverage], *, repeats: bool = False) -> Coverage:
    """What all of them cover, sorted.

    Args:
        coverages: Any number, in any order.
        repeats: Whether samples may be in several of them.

    Raises:
        OverlapError: If a sample is in two of them; of samples in memory only those are noticed that are the same ones
            altogether.
        ValueError: If they disagree on how many samples a file holds.
    """
    by_source: dict[tuple[bool, str], list[SourceUse]] = {}
    memory: list[SourceUse] = []
    for use in (use for coverage in coverages for use in coverage):
        if use.held is not None:
            by_source.setdefault((False, use.sha256), []).append(use)
        elif not repeats and use in memory:
            raise OverlapError(f"the {use.samples} samples in memory with digest {use.sha256[:12]}")
        else:
            memory.append(use)
    result = [_one(uses, repeats=repeats) for _, uses in sorted(by_source.items())]
    if memory:
        result.append(_memory(sum(int(use.sha256, 16) for use in memory), sum(use.samples for use in memory)))
    return tuple(result)


def _one(uses: Sequence[SourceUse], *, repeats: bool) -> SourceUse:
    first = uses[0]
    if any((use.held, use.files) != (first.held, first.files) for use in uses):
        raise ValueError(f"they disagree on how many samples data file {first.sha256[:12]} holds")
    if not repeats:
        end = 0
        for start, stop, _ in sorted(stretch for use in uses for stretch in use.used):
            if start < end:
                last = min(end, stop) - 1
                which = f"sample {start}" if last == start else f"samples {start} to {last}"
                raise OverlapError(f"{which} of the data file with SHA-256 {first.sha256[:12]}")
            end = stop
    return SourceUse(first.sha256, first.held, _joined([s for use in uses for s in use.used]), first.files)


def _memory(total: int, samples: int) -> SourceUse:
    return SourceUse(f"{total % _MODULUS:064x}", None, ((0, samples, 1),))


def _joined(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Disjoint stretches, neighbours of equal count as one; what is in several counts as often as in all of them."""
    changes: dict[int, int] = {}
    for start, stop, times in stretches:
        changes[start] = changes.get(start, 0) + times
        changes[stop] = changes.get(stop, 0) - times
    return tuple(_levels(sorted(changes.items())))


def _levels(changes: Sequence[tuple[int, int]]) -> Iterator[Stretch]:
    begin = level = 0
    for place, change in changes:
        if change:
            if level:
                yield begin, place, level
            begin, level = place, level + change
