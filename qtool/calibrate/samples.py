"""Samples: what the user gives, as feeds for the model, batch by batch and as often as needed.

Memory holds one batch at a time; the order is that of the data, always; a pass can be repeated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.calibrate.layout import Shape, listed
from qtool.calibrate.readers import open_files, supported
from qtool.calibrate.selection import Range, Run, Selection
from qtool.calibrate.sources import Feeds, ItemsSource, Source, SourceInfo, mapping_source
from qtool.calibrate.spool import Picker
from qtool.errors import ConfigError, DataError
from qtool.runtime import TensorInfo

__all__ = ["Samples", "SourceInfo", "open_samples", "random_samples"]

Data: TypeAlias = (
    str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | Mapping[str, npt.NDArray[Any] | os.PathLike[str]]
    | Iterable[Mapping[str, npt.NDArray[Any]]]
)


class Samples:
    """Checked, re-iterable samples for one model.

    Attributes:
        count: Samples of one pass.
        inputs: What the model wants.
        names: Names of those.
        sources: Where the samples come from, with SHA-256.
        notes: What was ignored, cast or left out, a sentence each.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        inputs: Sequence[TensorInfo],
        notes: Sequence[str] = (),
        *,
        limit: int | None = None,
        shuffle_seed: int | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self.inputs = tuple(inputs)
        self.names = tuple(info.name for info in inputs)
        self._batch = next((source.batch for source in sources if source.batch is not None), None)
        selection = Selection.of([source.runs for source in sources])
        every = dict.fromkeys([*notes, *(note for source in sources for note in source.notes), *_ignored(sources)])
        if shuffle_seed is not None:
            selection = selection.shuffled(shuffle_seed)
        if limit is not None:
            total, selection = selection.count, selection.first(limit)
            if selection.count < limit:
                held = f"the data holds {total}" if total < limit else "the next ones are fed together"
                every[f"{selection.count} of {limit} samples that were asked for are used: {held}."] = None
        if self._batch is not None:
            total, selection = selection.count, selection.in_batches_of(self._batch)
            if not selection.count:
                raise DataError(
                    f"Sample data holds {total} samples; the model's batch size is fixed at {self._batch}.",
                    hint=f"Give at least {self._batch} samples.",
                )
            if selection.count < total:
                left = f"{total - selection.count} samples were left out"
                every[f"{left}: the model's batch size is fixed at {self._batch}."] = None
        self.notes = tuple(every)
        self._picker = Picker(self._sources, selection)
        self._select(selection)

    def _select(self, selection: Selection) -> None:
        self._selection = selection
        self.count = selection.count
        self.sources: tuple[SourceInfo, ...] = tuple(
            info for number in selection.sources for info in self._sources[number].infos
        )

    def slice(self, start: int, stop: int | None = None) -> Samples:
        """The samples from ``start`` up to ``stop`` of a pass, as a slice of a list; none are read.

        Slices that follow each other yield together what the whole does, and share what it keeps for a shuffle. An
        empty one yields nothing.

        Raises:
            ConfigError: If a limit is negative, or falls into a batch that the model or the data fixes.
        """
        selection = self._selection.between(start, stop)
        if self._batch is not None and selection.in_batches_of(self._batch).count < selection.count:
            raise ConfigError(
                f"Samples {start} to {'the last' if stop is None else stop} are wanted; expected multiples of "
                f"{self._batch}, the model's fixed batch size."
            )
        sliced = copy(self)
        sliced._select(selection)
        return sliced

    def pick(self, numbers: Sequence[int]) -> Samples:
        """Some of the samples of a pass; none are read.

        Args:
            numbers: Positions, ascending; those of whole batches where the model or the data fixes batches.
        """
        picked = copy(self)
        picked._select(self._selection.at(numbers))
        return picked

    def by_source(self) -> Iterator[tuple[Source, list[Range], Samples]]:
        """The samples apart by source, each in the order of the data whatever the order of a pass.

        Yields:
            A source, which of its samples are used, and these as samples of their own: less than a batch that the model
            fixes is left out of them.
        """
        for number, ranges in self._selection.ranges():
            selection = self._selection.of_source(number)
            part = copy(self)
            part._select(selection if self._batch is None else selection.in_batches_of(self._batch))
            yield self._sources[number], ranges, part

    @property
    def fixed_batch(self) -> int | None:
        """Batch size that the model fixes; ``None`` if it takes any."""
        return self._batch

    @property
    def batchable(self) -> bool:
        """Whether several samples can share a run in a batch of the caller's choice."""
        return self._batch is None and self._selection.batchable

    def batches(self, batch_size: int | None = None) -> Iterator[Feeds]:
        """One pass over all samples, in order.

        Args:
            batch_size: Largest number of samples in one batch. Samples share a batch only if their shapes are equal
                and the model takes any batch size; otherwise each is fed as it is (or in the model's fixed batch).
                ``None``: the smallest batches there are.

        Yields:
            Input name -> C-contiguous array of the input's dtype.

        Raises:
            DataError: If the data turns out damaged, or a value does not survive its cast.
            ConfigError: If ``batch_size`` is not positive.
        """
        return (feeds for _, feeds in self.counted_batches(batch_size))

    def counted_batches(self, batch_size: int | None = None) -> Iterator[tuple[int, Feeds]]:
        """:meth:`batches`, each with the number of samples in it."""
        return ((rows, feeds) for rows, feeds, _ in self.separable_batches(batch_size))

    def separable_batches(self, batch_size: int | None = None) -> Iterator[tuple[int, Feeds, bool]]:
        """:meth:`counted_batches`, each with whether its samples could as well be fed one by one, cut on axis 0."""
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"Batch size is {batch_size}; expected 1 or more.")
        size = self._batch or batch_size or 1
        free = self._batch is None
        return ((rows, feeds, free and merged) for rows, feeds, merged in _merged(self._parts(size), size))

    def _parts(self, size: int) -> Iterator[tuple[Run, Feeds]]:
        if not self._selection.ordered:
            yield from self._picker.parts(self._selection)
            return
        for number, ranges in self._selection.ranges():
            yield from self._sources[number].parts(size, ranges)

    def labels(self, key: str) -> npt.NDArray[Any]:
        """An array beside the inputs, whole, one entry for each of ``count`` samples.

        Raises:
            DataError: If there is no such array, or not one entry per sample.
        """
        pieces = [source.labels(key) for source in self._sources]
        if len({piece.shape[1:] for piece in pieces}) > 1:
            raise DataError(f"Labels '{key}' differ in shape between the files; expected the same for all.")
        whole = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        if self._selection.ordered and self.count == len(whole):
            return whole
        kept: npt.NDArray[Any] = whole[self._selection.positions([source.count for source in self._sources])]
        return kept


def open_samples(
    data: Data,
    inputs: Sequence[TensorInfo],
    *,
    labels: Sequence[str] = (),
    limit: int | None = None,
    shuffle_seed: int | None = None,
) -> Samples:
    """Open samples and check them against a model.

    Args:
        data: A path or several (one after the other), a mapping of arrays whose leading axis counts samples, or an
            iterable of mappings, one per sample (sizes may differ). A path is a file, folder or glob of a kind for
            which there is a reader (``.npz``, ``.npy``, ONNX test data sets); a ``.npy`` file may be given with the
            name of its input, as ``"name=path"`` or in a mapping of names to :class:`pathlib.Path`.
        inputs: What the model wants.
        labels: Keys that :meth:`Samples.labels` will be asked for.
        limit: Use this many samples, the first in order; ``None``: all.
        shuffle_seed: Put all samples into an order that depends on this number and on how many there are, before the
            limit is applied. Data that can only be read from the front is copied to a temporary file, as far as it is
            chosen.

    Raises:
        DataError: If the data cannot be read, is empty, or does not fit the model.
        ConfigError: If the limit is not positive, or the seed is negative.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"Number of samples is {limit}; expected 1 or more.")
    if shuffle_seed is not None and shuffle_seed < 0:
        raise ConfigError(f"Seed of the shuffle is {shuffle_seed}; expected 0 or more.")
    if isinstance(data, Iterator) and limit is not None and shuffle_seed is None:
        data = list(islice(data, limit))  # it may have no end
    sources, notes = _sources(data, inputs, labels)
    return Samples(sources, inputs, notes, limit=limit, shuffle_seed=shuffle_seed)


def _sources(data: Data, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> tuple[Sequence[Source], list[str]]:
    """Sources, and notes about what was ignored beside them."""
    if isinstance(data, (str, os.PathLike)):
        return open_files([data], inputs, labels)
    if isinstance(data, Mapping):
        if isinstance(data, dict):  # what numpy.load returns would read every array
            paths = {name: value for name, value in data.items() if isinstance(value, os.PathLike)}
            if paths and len(paths) == len(data):
                return open_files(paths, inputs, labels)
        return [mapping_source(data, inputs, labels)], []
    if isinstance(data, (np.ndarray, bytes)) or not isinstance(data, Iterable):
        raise DataError(f"Sample data is {type(data).__name__}.", hint=supported())
    if isinstance(data, Sequence) and any(isinstance(item, (str, os.PathLike)) for item in data):
        items = [item for item in data if isinstance(item, (str, os.PathLike))]
        if len(items) != len(data):
            raise DataError("Sample data mixes file paths with something else.", hint=supported())
        return open_files(items, inputs, labels)
    return [ItemsSource(data, inputs, labels)], []


def _ignored(sources: Iterable[Source]) -> Iterator[str]:
    """One sentence for all sources that hold the same arrays beside the inputs."""
    subjects: dict[tuple[str, ...], list[str]] = {}
    for source in sources:
        if source.ignored:
            subjects.setdefault(source.ignored, []).append(source.subject)
    for names, (first, *others) in subjects.items():
        more = f" and {len(others)} more" if others else ""
        yield f"{first}{more}: ignored {listed(names, 10)}: not among the model's inputs."


def random_samples(inputs: Sequence[TensorInfo], count: int, seed: int = 0) -> Samples:
    """Samples without meaning, for trying a model out: normal floats, integers 0 and 1.

    Sample i depends on the seed and i alone. Only the leading dimension may be open (it becomes 1).

    Raises:
        DataError: If another dimension has no size, or an input is text.
        ConfigError: If ``count`` is not positive.
    """
    if count < 1:
        raise ConfigError(f"Number of random samples is {count}; expected 1 or more.")
    for info in inputs:
        for axis, size in enumerate(info.shape):
            if axis and not isinstance(size, int):
                raise DataError(
                    f"Input '{info.name}': dimension {axis} has no fixed size, so random samples cannot be made up.",
                    hint="Give real samples.",
                )
        if info.dtype.kind == "U":
            raise DataError(
                f"Input '{info.name}' is text: random samples cannot be made up.", hint="Give real samples."
            )
    batch = ItemsSource.fixed_batch(inputs)
    if batch is not None:
        count = -(-count // batch) * batch  # whole batches: none is left out
    note = f"{count} random samples (seed {seed}) instead of data: ranges say nothing about real inputs."
    return Samples([ItemsSource(_RandomItems(inputs, count, seed), inputs, ())], inputs, [note])


class _RandomItems:
    """Re-iterable mappings, made when they are asked for."""

    def __init__(self, inputs: Sequence[TensorInfo], count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        merged = ItemsSource.fixed_batch(inputs) is not None
        self._inputs = [
            (info, tuple(s if isinstance(s, int) and (axis or not merged) else 1 for axis, s in enumerate(info.shape)))
            for info in inputs
        ]

    def __iter__(self) -> Iterator[Feeds]:
        for index in range(self._count):
            random = np.random.default_rng([self._seed, index])
            yield {info.name: _random_array(random, shape, info.dtype) for info, shape in self._inputs}


def _random_array(random: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind in "iub":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    return np.asarray(random.standard_normal(shape, dtype=np.float32)).astype(dtype)


def _merged(parts: Iterable[tuple[Run, Feeds]], size: int) -> Iterator[tuple[int, Feeds, bool]]:
    """Put neighbouring parts of equal shapes together to batches of ``size``, as far as they go.

    Yields:
        Samples in the batch, the batch, and False if it is a part that is fed as it is.
    """
    pending: list[Feeds] = []
    held, key = 0, None

    def flush() -> Iterator[tuple[int, Feeds, bool]]:
        nonlocal held
        if held:
            yield held, _joined(pending), True
        pending.clear()
        held = 0

    for run, feeds in parts:
        if run.key is None:
            yield from flush()
            yield run.rows, feeds, False
            continue
        if run.key != key:
            yield from flush()
            key = run.key
        start = 0
        while start < run.rows:
            take = min(run.rows - start, size - held)
            whole = take == run.rows
            pending.append(feeds if whole else {name: a[start : start + take] for name, a in feeds.items()})
            held += take
            start += take
            if held == size:
                yield from flush()
    yield from flush()


def _joined(pieces: list[Feeds]) -> Feeds:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
