"""Samples: what the user gives, as feeds for the model, batch by batch and as often as needed.

Memory holds one batch at a time; the order is that of the data, always; a pass can be repeated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.calibrate.layout import Shape
from qtool.calibrate.npz import SUPPORTED
from qtool.calibrate.sources import Feeds, ItemsSource, Run, Source, SourceInfo, mapping_source, npz_source
from qtool.errors import ConfigError, DataError
from qtool.runtime import TensorInfo

__all__ = ["Samples", "SourceInfo", "open_samples", "random_samples"]

Data: TypeAlias = (
    str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | Mapping[str, npt.NDArray[Any]]
    | Iterable[Mapping[str, npt.NDArray[Any]]]
)


class Samples:
    """Checked, re-iterable samples for one model.

    Attributes:
        count: Samples of one pass.
        names: Names of the model's inputs.
        sources: Where the samples come from, with SHA-256.
        notes: What was ignored, cast or left out, a sentence each.
    """

    def __init__(self, sources: Sequence[Source], inputs: Sequence[TensorInfo], notes: Sequence[str] = ()) -> None:
        self._sources = tuple(sources)
        self.names = tuple(info.name for info in inputs)
        self.sources: tuple[SourceInfo, ...] = tuple(source.info for source in sources)
        self._batch = next((source.batch for source in sources if source.batch is not None), None)
        self._groups = _groups([run for source in sources for run in source.runs], self._batch)
        total = sum(rows for rows, _ in self._groups)
        self.count = sum(used for _, used in self._groups)
        every = dict.fromkeys([*notes, *(note for source in sources for note in source.notes)])
        if self.count < total:
            if self.count == 0:
                raise DataError(
                    f"Sample data holds {total} samples; the model's batch size is fixed at {self._batch}.",
                    hint=f"Give at least {self._batch} samples.",
                )
            every[f"{total - self.count} samples were left out: the model's batch size is fixed at {self._batch}."] = (
                None
            )
        self.notes = tuple(every)

    @property
    def fixed_batch(self) -> int | None:
        """Batch size that the model fixes; ``None`` if it takes any."""
        return self._batch

    @property
    def batchable(self) -> bool:
        """Whether several samples can share a run in a batch of the caller's choice."""
        return self._batch is None and any(run.key is not None for source in self._sources for run in source.runs)

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
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"Batch size is {batch_size}; expected 1 or more.")
        size = self._batch or batch_size or 1
        parts = (part for source in self._sources for part in source.parts(size))
        return _merged(parts, size, exact=self._batch is not None)

    def labels(self, key: str) -> npt.NDArray[Any]:
        """An array beside the inputs, whole, one entry for each of ``count`` samples.

        Raises:
            DataError: If there is no such array, or not one entry per sample.
        """
        pieces = [source.labels(key) for source in self._sources]
        if len({piece.shape[1:] for piece in pieces}) > 1:
            raise DataError(f"Labels '{key}' differ in shape between the files; expected the same for all.")
        whole = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        if self.count == len(whole):
            return whole
        keep = [row < used for rows, used in self._groups for row in range(rows)]
        kept: npt.NDArray[Any] = whole[np.array(keep)]
        return kept


def open_samples(data: Data, inputs: Sequence[TensorInfo], *, labels: Sequence[str] = ()) -> Samples:
    """Open samples and check them against a model.

    Args:
        data: An ``.npz`` path or several (one after the other), a mapping of arrays whose leading axis counts samples,
            or an iterable of mappings, one per sample (sizes may differ).
        inputs: What the model wants.
        labels: Keys that :meth:`Samples.labels` will be asked for.

    Raises:
        DataError: If the data cannot be read, is empty, or does not fit the model.
    """
    if isinstance(data, (str, os.PathLike)):
        return Samples([npz_source(os.fspath(data), inputs, labels)], inputs)
    if isinstance(data, Mapping):
        return Samples([mapping_source(data, inputs, labels)], inputs)
    if isinstance(data, (np.ndarray, bytes)) or not isinstance(data, Iterable):
        raise DataError(f"Sample data is {type(data).__name__}.", hint=SUPPORTED)
    if isinstance(data, Sequence) and any(isinstance(item, (str, os.PathLike)) for item in data):
        paths = [os.fspath(item) for item in data if isinstance(item, (str, os.PathLike))]
        if len(paths) != len(data):
            raise DataError("Sample data mixes file paths with something else.", hint=SUPPORTED)
        return Samples([npz_source(path, inputs, labels) for path in paths], inputs)
    return Samples([ItemsSource(data, inputs, labels)], inputs)


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


def _merged(parts: Iterable[tuple[Run, Feeds]], size: int, *, exact: bool) -> Iterator[tuple[int, Feeds]]:
    """Put neighbouring parts of equal shapes together to batches of ``size``; with ``exact``, drop shorter ones."""
    pending: list[Feeds] = []
    held, key = 0, None

    def flush() -> Iterator[tuple[int, Feeds]]:
        nonlocal held
        if held and (held == size or not exact):
            yield held, _joined(pending)
        pending.clear()
        held = 0

    for run, feeds in parts:
        if run.key is None:
            yield from flush()
            yield run.rows, feeds
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


def _groups(runs: Iterable[Run], batch: int | None) -> list[tuple[int, int]]:
    """(samples, samples that are used) of each stretch of neighbours that may share batches.

    A stretch is used up to the last whole batch of the model's size; samples that are fed as they are stand alone.
    """
    groups: list[tuple[int, int]] = []
    previous: tuple[Shape, ...] | None = None
    for run in runs:
        merges = run.key is not None and run.key == previous
        rows = groups.pop()[0] + run.rows if merges else run.rows
        groups.append((rows, rows if batch is None or run.key is None else rows - rows % batch))
        previous = run.key
    return groups
