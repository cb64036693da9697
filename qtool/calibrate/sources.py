"""Where samples come from: arrays whose leading axis counts samples, or an iterable of mappings.

Which files hold such arrays is the business of ``calibrate/readers``.

Each source checks everything that shapes and types can tell when it is made, and then yields *parts*: mappings that
the model could be run on, with the number of samples in each.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qtool.calibrate.layout import Layout, Shape, cast, cast_note, place_item, plan_layout, require_names
from qtool.calibrate.npy import Member
from qtool.calibrate.selection import Range, Run, pieces
from qtool.errors import DataError
from qtool.runtime import TensorInfo

FORMS = "a mapping of arrays, or an iterable of mappings (one per sample)"
_HINT = f"Supported: {FORMS}."
Feeds = dict[str, npt.NDArray[Any]]
Pieces = Generator[npt.NDArray[Any], None, None]


class SourceInfo:
    """Provenance of samples: a file and its hash, or the hash of arrays that were given in memory.

    Attributes:
        path: The file as it was named; ``None`` for arrays in memory.
    """

    def __init__(self, path: str | None, digest: Callable[[], str]) -> None:
        self.path = path
        self._digest = digest

    @cached_property
    def sha256(self) -> str:
        """SHA-256 in hexadecimal: of the file's bytes, or of names, types, shapes and values; computed when asked."""
        return self._digest()

    def to_dict(self) -> dict[str, str | None]:
        """JSON-ready."""
        return {"path": self.path, "sha256": self.sha256}


class Source(ABC):
    """Samples from one place, in a fixed order, as often as asked for.

    Attributes:
        subject: Start of messages about it, such as ``Sample data 'calib.npz'``.
        infos: Provenance: one file or several, or arrays in memory.
        notes: What was cast or done otherwise, a sentence each.
        ignored: Names of arrays that are no inputs.
        runs: All samples, in order.
        batch: Batch size that the model fixes; ``None`` if it takes any.
        seekable: Whether :meth:`parts` reaches samples far from the front as quickly as the first ones.
    """

    subject: str
    infos: tuple[SourceInfo, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    runs: tuple[Run, ...]
    batch: int | None
    seekable: bool = False

    @property
    def info(self) -> SourceInfo:
        """Provenance in one: that of the only file, or a digest of those of all files, in order."""
        if len(self.infos) == 1:
            return self.infos[0]
        return SourceInfo(
            ", ".join(info.path or "" for info in self.infos),
            lambda: hashlib.sha256("\n".join(info.sha256 for info in self.infos).encode()).hexdigest(),
        )

    @property
    def count(self) -> int:
        """Number of samples."""
        return sum(run.rows for run in self.runs)

    @abstractmethod
    def parts(self, size: int, ranges: Sequence[Range]) -> Iterator[tuple[Run, Feeds]]:
        """Samples in order, at most ``size`` in one part where the source can choose.

        Args:
            size: Largest number of samples in one part.
            ranges: Which ones: ascending (first, one past the last), never into an item that is fed as it is.

        Raises:
            DataError: If data cannot be read, or a value does not survive its cast.
        """

    @abstractmethod
    def labels(self, key: str) -> npt.NDArray[Any]:
        """An array that is no input, whole, its leading axis counting samples.

        Raises:
            DataError: If there is no such array, or not one entry per sample.
        """


# ----------------------------------------------------------------------------------------- arrays with a sample axis


class Store(Protocol):
    """Named arrays that can be read from the front."""

    @property
    def names(self) -> tuple[str, ...]:
        """Keys."""

    def member(self, name: str) -> Member:
        """Shape and type of an array."""

    def rows(self, member: Member, size: int, ranges: Sequence[Range]) -> Pieces:
        """Pieces of at most ``size`` entries of the leading axis, of ascending ranges of it."""

    def read(self, member: Member) -> npt.NDArray[Any]:
        """The whole array."""


class MappingStore:
    """A mapping of arrays in memory; pieces are views."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self.names = tuple(arrays)

    def member(self, name: str) -> Member:
        """Shape and type of an array."""
        array = self._array(name)
        return Member(name, array.shape, array.dtype, fortran_order=False, offset=0)

    def rows(self, member: Member, size: int, ranges: Sequence[Range]) -> Pieces:
        """Views of at most ``size`` entries of the leading axis."""
        array = self._array(member.name)
        for start, stop in pieces(ranges, size):
            yield array[start:stop]

    def read(self, member: Member) -> npt.NDArray[Any]:
        """The whole array."""
        return self._array(member.name)

    def _array(self, name: str) -> npt.NDArray[Any]:
        return entry("Sample data", self._arrays, name)


class ArraySource(Source):
    """Arrays whose leading axis counts samples.

    Args:
        subject: Start of error messages.
        infos: Provenance.
        open_store: Gives access to the arrays, from the start, each time it is called.
        inputs: What the model wants.
        labels: Further keys that will be asked for.
        seekable: Whether the arrays can be read anywhere at no cost.

    Raises:
        DataError: If an array is missing or does not fit.
    """

    def __init__(
        self,
        subject: str,
        infos: Sequence[SourceInfo],
        open_store: Callable[[], AbstractContextManager[Store]],
        inputs: Sequence[TensorInfo],
        labels: Sequence[str],
        *,
        seekable: bool = False,
    ) -> None:
        self.infos = tuple(infos)
        self.seekable = seekable
        self.subject = subject
        self._open = open_store
        self._inputs = tuple(inputs)
        with open_store() as store:
            require_names(subject, inputs, store.names)
            self._members = {i.name: store.member(i.name) for i in inputs}
            self._layout = plan_layout(subject, inputs, {name: m.shape for name, m in self._members.items()})
            for key in labels:
                self._label_member(store, key)
            self.ignored = tuple(n for n in store.names if n not in self._members and n not in labels)
        notes = [cast_note(subject, i, self._members[i.name].dtype) for i in inputs]
        self.notes = tuple(note for note in notes if note)
        self.batch = self._layout.batch
        self.runs = (Run(self._layout.count, self._key()),)

    def parts(self, size: int, ranges: Sequence[Range]) -> Iterator[tuple[Run, Feeds]]:
        """See :meth:`Source.parts`."""
        size = 1 if self._layout.one_by_one else size
        key = self._key()
        # a stream that is left open keeps its file open, and the traceback of an error keeps the stream
        with self._open() as store, ExitStack() as streams_end:
            constants = {i.name: store.read(self._members[i.name]) for i in self._inputs if self._is_constant(i)}
            streams = {
                i.name: streams_end.enter_context(closing(store.rows(self._members[i.name], size, ranges)))
                for i in self._inputs
                if not self._is_constant(i)
            }
            for start, stop in pieces(ranges, size):
                feeds = {}
                for info in self._inputs:
                    array = constants[info.name] if self._is_constant(info) else next(streams[info.name])
                    if info.name in self._layout.stacked:
                        array = array[0]
                    feeds[info.name] = cast(self.subject, info, np.asarray(array))
                yield Run(stop - start, key), feeds

    def labels(self, key: str) -> npt.NDArray[Any]:
        """See :meth:`Source.labels`."""
        with self._open() as store:
            return store.read(self._label_member(store, key))

    def _label_member(self, store: Store, key: str) -> Member:
        if key not in store.names:
            raise DataError(
                f"{self.subject} has no array '{key}' for the labels; given: {', '.join(store.names)}.",
                hint="Name the array that holds the labels.",
            )
        member, count = store.member(key), self._layout.count
        if not member.shape or member.shape[0] != count:
            raise DataError(
                f"{self.subject}: labels '{key}' have shape {list(member.shape)}; expected one entry for each of "
                f"{count} samples."
            )
        return member

    def _is_constant(self, info: TensorInfo) -> bool:
        return info.name in self._layout.constant

    def _key(self) -> tuple[Shape, ...] | None:
        if self._layout.one_by_one:
            return None
        return tuple(self._members[i.name].shape[1:] for i in self._inputs)

    @property
    def layout(self) -> Layout:
        """How the arrays are fed."""
        return self._layout


def mapping_source(arrays: Mapping[str, Any], inputs: Sequence[TensorInfo], labels: Sequence[str]) -> ArraySource:
    """Samples of arrays in memory."""
    names = [i.name for i in inputs]
    info = SourceInfo(None, lambda: arrays_sha256([{n: entry("Sample data", arrays, n) for n in names}]))
    # other mappings, such as what numpy.load returns, read an array each time they are asked for it
    return ArraySource(
        "Sample data",
        [info],
        lambda: nullcontext(MappingStore(arrays)),
        inputs,
        labels,
        seekable=isinstance(arrays, dict),
    )


# --------------------------------------------------------------------------------------------- one mapping per sample


class ItemsSource(Source):
    """An iterable of mappings, one for each sample; sizes may differ from sample to sample.

    An item carries the model's batch axis or leaves it out. Items without it, or of batch size 1, share a run with
    neighbours of the same shapes; larger ones are fed as they are, because a leading axis of a single item may as well
    be time. The iterable is walked once to check all items; an iterator, which can be walked only once, is kept in
    memory.

    Raises:
        DataError: If an item is no mapping, lacks an input, or does not fit.
    """

    def __init__(self, items: Iterable[Any], inputs: Sequence[TensorInfo], labels: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self.subject = "Sample data"
        notes: dict[str, None] = {}
        if isinstance(items, Iterator):
            items = list(items)
            notes[f"The iterator of samples was read into memory ({len(items)} samples)."] = None
        self._items = items
        self.seekable = isinstance(items, Sequence)
        self._batchable = _share_an_axis(inputs)
        self.batch = self.fixed_batch(inputs)
        runs = []
        for index, item in enumerate(items):
            subject = f"Sample {index}"
            run, feeds = self._part(subject, item, convert=False)
            runs.append(run)
            for info in inputs:
                notes[cast_note(subject, info, feeds[info.name].dtype) or ""] = None
            for key in labels:
                if key not in item:
                    raise DataError(f"{subject} has no '{key}' for the labels; given: {', '.join(map(str, item))}.")
            extra = [f"'{n}'" for n in item if n not in feeds and n not in labels]
            if extra:
                notes[f"Samples: ignored {', '.join(extra)}: not among the model's inputs."] = None
        if not runs:
            raise DataError("Sample data is empty: the iterable yields no samples.", hint=_HINT)
        self.runs = tuple(runs)
        self.notes = tuple(note for note in notes if note)
        starts = list(accumulate((run.rows for run in runs), initial=0))
        self._starts = starts[:-1]
        self.infos = (SourceInfo(None, lambda: arrays_sha256(feeds for _, feeds in self.parts(1, [(0, starts[-1])]))),)

    @staticmethod
    def fixed_batch(inputs: Sequence[TensorInfo]) -> int | None:
        """The one batch size that the model's inputs fix, if they do."""
        if not _share_an_axis(inputs):
            return None
        return next((i.shape[0] for i in inputs if isinstance(i.shape[0], int)), None)

    def parts(self, size: int, ranges: Sequence[Range]) -> Iterator[tuple[Run, Feeds]]:
        """See :meth:`Source.parts`; the source cannot choose the size."""
        del size
        wanted = [
            index
            for start, stop in ranges
            for index in range(bisect_left(self._starts, start), bisect_left(self._starts, stop))
        ]
        for index, item in self._pick(wanted):
            run, feeds = self._part(f"Sample {index}", item, convert=True)
            if run != self.runs[index]:
                raise DataError(f"Sample {index} changed its shape between two passes over the data.")
            yield run, feeds

    def _pick(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Items by index, which ascends."""
        if isinstance(self._items, Sequence):
            found = len(self._items)
            for index in wanted:
                if index >= found:
                    break
                yield index, self._items[index]
            else:
                return
        else:
            remaining = iter(wanted)
            index = next(remaining, -1)
            found = 0
            for item in self._items if wanted else ():
                found += 1
                if found - 1 == index:
                    yield index, item
                    index = next(remaining, -1)
                    if index < 0:
                        break
            if index < 0:
                return
        raise DataError(
            f"Sample data yields {found} samples in a later pass; the first pass had {len(self.runs)}.",
            hint="Give a list, or an iterable that starts over each time.",
        )

    def labels(self, key: str) -> npt.NDArray[Any]:
        """See :meth:`Source.labels`."""
        pieces = []
        for index, (item, run) in enumerate(zip(self._items, self.runs, strict=True)):
            value = entry(f"Sample {index}", item, key)
            has_axis = value.ndim > 0 and value.shape[0] == run.rows and (run.rows > 1 or value.ndim == 1)
            if not has_axis and run.rows > 1:
                raise DataError(
                    f"Sample {index}: labels '{key}' have shape {list(value.shape)}; expected one entry for each of "
                    f"{run.rows} samples."
                )
            pieces.append(value if has_axis else value[np.newaxis])
        if len({piece.shape[1:] for piece in pieces}) > 1:
            raise DataError(f"Labels '{key}' differ in shape from sample to sample; expected the same for all.")
        return np.concatenate(pieces)

    def _part(self, subject: str, item: Any, *, convert: bool) -> tuple[Run, Feeds]:
        if not isinstance(item, Mapping):
            raise DataError(f"{subject} is {type(item).__name__}; expected a mapping of arrays.", hint=_HINT)
        require_names(subject, self._inputs, item)
        feeds = {}
        for info in self._inputs:
            array = entry(subject, item, info.name)
            placed = self._place(subject, info, array)
            feeds[info.name] = cast(subject, info, placed) if convert else placed
        leading = {array.shape[0] if array.ndim else None for array in feeds.values()}
        rows = leading.pop() if len(leading) == 1 else None
        if not self._batchable or rows is None or rows == 0:
            return Run(1, None), feeds
        if rows == 1:
            return Run(1, tuple(array.shape[1:] for array in feeds.values())), feeds
        return Run(rows, None, whole=True), feeds

    def _place(self, subject: str, info: TensorInfo, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Samples of a model with a fixed batch come one at a time: leave that axis open until they are merged."""
        if self.batch is not None and (array.ndim < len(info.shape) or array.shape[:1] == (1,)):
            info = TensorInfo(info.name, info.dtype, (None, *info.shape[1:]))
        return place_item(subject, info, array)


# ------------------------------------------------------------------------------------------------------------ helpers


def _share_an_axis(inputs: Sequence[TensorInfo]) -> bool:
    """Whether the leading axis of every input is the batch: then items can be merged on it.

    An input that fixes it to more than 1 beside others that leave it open means something else by it: the layers of a
    recurrent state, say.
    """
    leading = {i.shape[0] if isinstance(i.shape[0], int) else None for i in inputs if i.shape}
    return bool(inputs) and all(i.shape for i in inputs) and (len(leading) == 1 or leading == {None, 1})


def entry(subject: str, item: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """An item's array, with whatever goes wrong as one line; Python objects are refused (text is fine)."""
    try:
        array = np.asarray(item[name])
    except Exception as error:  # ragged lists, __array__ of foreign types, mappings that load on access
        raise DataError(f"{subject}: '{name}' is no array: {' '.join(str(error).split())[:160]}.") from error
    if array.dtype.hasobject:
        raise DataError(f"{subject}: '{name}' holds Python objects; expected plain numbers.")
    return array


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes, streamed.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"Sample data '{path}' cannot be read: {error.strerror or error}.") from error


def arrays_sha256(items: Iterable[Mapping[str, npt.NDArray[Any]]]) -> str:
    """SHA-256 over name, type, shape and values of arrays, in order."""
    digest = hashlib.sha256()
    for item in items:
        for name, array in item.items():
            digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
