"""Running a model over samples and observing its tensors as they stream by.

A worker thread takes a batch, runs the model on it segment by segment, and counts the arrays of a segment before it
runs the next one, while they are in the cache. Each worker counts for itself, and the statistics are merged at the end,
which is exact. Memory depends on what one segment makes of one batch, never on the number of samples.

The result does not depend on the number of threads, because every operator runs on one thread; nor on the batches,
because a batch is only counted if it gives its samples the bits that they have alone (:mod:`qtool.calibrate.rowwise`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeAlias

from qtool.calibrate.blocked import BlockedModel, Run, open_run
from qtool.calibrate.budget import STATISTICS_BYTES, Budget, measure, observed_bytes
from qtool.calibrate.footprint import live_bytes
from qtool.calibrate.nonfinite import refuse
from qtool.calibrate.rowwise import Array, Feeds, Shapes, find_shared, shapes_of, single
from qtool.calibrate.samples import Samples
from qtool.calibrate.segments import TENSORS_PER_SEGMENT, read_graph
from qtool.calibrate.statistics import Arrival, Statistics, TensorStatistics, merge, update_all
from qtool.calibrate.wanted import Wanted
from qtool.errors import ConfigError
from qtool.runtime.arena import release_arena
from qtool.runtime.lean import lean_memory

if TYPE_CHECKING:
    import onnx

# Samples share a batch where a run costs little beside its call. Measured on the zoo: with one thread an operator,
# larger batches than this are slower, because their arrays leave the cache before they are counted.
MAX_BATCH_BYTES = 8 << 20
_MANY = 256
_BATCHES_PER_WORKER = 4


def collect(
    model: onnx.ModelProto | str | PathLike[str],
    tensors: Sequence[str | Wanted],
    samples: Samples,
    *,
    histograms: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    batch_size: int | None = None,
    on_nan: Literal["raise", "skip"] = "raise",
    allow_inf: Collection[str] = (),
    initial: Statistics | None = None,
    checkpoint: Callable[[Statistics], None] | None = None,
    checkpoint_every: int | None = None,
    max_memory: int | Budget | None = None,
    ready: Callable[[], None] | None = None,
) -> Statistics:
    """Observe tensors of a model.

    Args:
        model: A file or a proto; it is not changed. Inputs that are wanted are observed as they are fed.
        tensors: Float tensors of the top graph, by name or with what is wanted of them: inputs, node outputs, or
            initializers.
        samples: What to run it on.
        histograms: Whether to fill histograms, for range methods that need them.
        num_threads: Batches that are run at once. The result does not depend on it.
        progress: Called with (samples done, samples in all) after every batch.
        max_batch_bytes: Bytes of observed arrays of one batch to aim at; one sample is always run.
        batch_size: Largest number of samples in a batch; by default as many as ``max_batch_bytes`` allows. The result
            does not depend on it.
        on_nan: ``skip`` counts NaNs and infinities instead of raising.
        allow_inf: Tensors in which infinities are expected (attention masks); they are counted, not part of the range.
        initial: Statistics of samples that were run before; the result is that of these and of ``samples``.
        checkpoint: Called with the statistics so far whenever at least ``checkpoint_every`` samples have been run
            since the last call.
        checkpoint_every: A number of samples.
        max_memory: Bytes that the process may reach, or the budget of the whole call: the number of batches at once
            and their size are chosen by what is left of it. The result does not depend on it.
        ready: Called when the model is loaded and the size of batches is chosen, before the first of them is counted.

    Returns:
        Statistics in the order of ``tensors``. Its notes say what kept samples from sharing batches.

    Raises:
        ConfigError: If a tensor does not exist in the top graph, ``max_memory`` is not enough, or ``num_threads`` is
            not positive.
        ModelError: If the model does not load, or a wanted tensor is not of a float type.
        DataError: If the model does not run on a sample, or a tensor holds NaN or (unless allowed) an infinity.
    """
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"Number of threads is {num_threads}; expected 1 or more.")
    wanted = {one.name: one for one in (Wanted(t) if isinstance(t, str) else t for t in tensors)}
    source = read_graph(model)
    budget = Budget(max_memory) if isinstance(max_memory, int) else max_memory
    per_segment = TENSORS_PER_SEGMENT if budget is None else 1
    with nullcontext() if budget is None else lean_memory():
        run = open_run(source, list(wanted), per_segment=per_segment)
    collector = _Collector(run, wanted, histograms)
    workers = num_threads or available_cores()
    size = batch_size or _MANY
    fair = -(-samples.count // (workers * _BATCHES_PER_WORKER))  # all workers end at about the same time
    if budget is not None and not run.is_empty:
        counters = STATISTICS_BYTES * len(wanted) if histograms else 0
        _, feeds = next(samples.counted_batches(None))
        budget.foresee(live_bytes(source, run.computed, feeds), counters)
        del feeds
        cost = measure(run, samples)
        workers, size = budget.share(cost, workers, size, counters)
        if batch_size is None:
            fair = -(-samples.count // (workers * _BATCHES_PER_WORKER))  # of as many as the budget allows
            size = max(1, min(int(max_batch_bytes / max(cost.observed, 1.0)), fair, size))
    elif batch_size is None and samples.batchable and fair > 1 and not run.is_empty:
        size = max(1, min(int(max_batch_bytes / max(observed_bytes(run, samples), 1.0)), fair, size))
    elif batch_size is None and samples.batchable and not run.is_empty:
        size = 1
    if ready is not None:
        ready()
    done = saved = 0
    pause = checkpoint_every if checkpoint is not None else None
    batches: Iterator[_Batch] = ((*one, False) for one in samples.separable_batches(size))
    if budget is not None:
        batches = _within(budget, batches, lambda feeds: live_bytes(source, run.computed, feeds))
    for rows, found in _in_order(collector, batches, workers, pause):
        bad = {name: n for name, n in found.items() if n[0] or name not in allow_inf}
        if bad and on_nan == "raise":
            refuse(source, samples, done, bad, allow_inf)
        done += rows
        if budget is not None:
            budget.require()
        if progress is not None:
            progress(done, samples.count)
        if checkpoint is not None and pause and done - saved >= pause and done < samples.count:
            saved = done
            checkpoint(collector.result(done, initial))
    release_arena()  # what comes next, such as a verification, has sessions of its own
    return collector.result(done, initial)


@dataclass
class _Slot:
    """The statistics of one worker."""

    tensors: dict[str, TensorStatistics]


class _Collector:
    """Counts batches; any number of threads may call it at once."""

    def __init__(self, model: Run, wanted: dict[str, Wanted], histograms: bool) -> None:
        self._model = model
        self._channels = model.channels if isinstance(model, BlockedModel) else {}
        self._wanted = wanted
        self._histograms = histograms
        self._lock = Lock()
        self._slots: list[_Slot] = []
        self._free: list[_Slot] = []
        self._shared: dict[Shapes, frozenset[str]] = {}
        self._dependent: str | None = None  # a tensor whose bits depend on the batch

    def count(self, rows: int, feeds: Feeds, separable: bool) -> dict[str, tuple[int, int]]:
        """Run a batch and count it.

        Returns:
            The tensors that hold NaN or infinities: (NaNs, infinities).
        """
        with self._lock:
            slot = self._free.pop() if self._free else None
            if slot is None:
                slot = _Slot(self._empty())
                self._slots.append(slot)
        try:
            return self._count(slot, rows, feeds, separable)
        finally:
            with self._lock:
                self._free.append(slot)

    def _count(self, slot: _Slot, rows: int, feeds: Feeds, separable: bool) -> dict[str, tuple[int, int]]:
        bad: dict[str, tuple[int, int]] = {}
        if rows == 1 or not separable:
            self._observe(slot, rows, feeds, None, bad)
            return bad
        shapes = shapes_of(feeds)
        if self._dependent is None and shapes not in self._shared:
            found = find_shared(self._model, rows, feeds)
            if isinstance(found, str):
                self._dependent = found
            else:
                self._shared[shapes] = found
        if shapes in self._shared:
            self._observe(slot, rows, feeds, self._shared[shapes], bad)
        else:
            for row in range(rows):
                self._observe(slot, 1, single(feeds, row), None, bad)
        return bad

    def _observe(
        self, slot: _Slot, rows: int, feeds: Feeds, shared: frozenset[str] | None, bad: dict[str, tuple[int, int]]
    ) -> None:
        """Run and count.

        Args:
            slot: The caller's own.
            rows: Samples in the batch.
            feeds: The batch.
            shared: Tensors without a sample axis; None if the batch cannot be cut, so that only shapes can tell.
            bad: Gets what holds NaN or infinities.
        """
        for arrays, _ in self._model.steps(feeds):
            arrivals, before = [], []
            for name, array in arrays.items():
                if not array.size:  # a branch that was not taken hands out nothing, of another rank than its values
                    continue
                one = slot.tensors[name]
                same = _lacks_rows(array, rows) if shared is None else name in shared
                arrivals.append(Arrival(one, array, rows, same and rows > 1, self._channels.get(name)))
                before.append((name, one, one.nan, one.pos_inf + one.neg_inf))
            update_all(arrivals)
            for name, one, nan, infinite in before:
                new = one.nan - nan, one.pos_inf + one.neg_inf - infinite
                if any(new):
                    known = bad.get(name, (0, 0))
                    bad[name] = (known[0] + new[0], known[1] + new[1])
            del array, arrivals
            arrays.clear()  # before the next segment is run, not after

    def result(self, samples: int, initial: Statistics | None) -> Statistics:
        """All that was counted; no thread may be counting."""
        tensors = self._empty()
        for slot in self._slots:
            tensors = {name: merge(one, slot.tensors[name]) for name, one in tensors.items()}
        for name in self._model.constants if samples else ():
            tensors[name].update(self._model.constant(name), rows=samples, shared=True)
        notes = []
        if self._dependent is not None:
            name = self._dependent
            notes.append(f"Samples were run one at a time: in a batch, onnxruntime gives '{name}' other bits.")
        new = Statistics(tensors, samples, tuple(notes))
        return new if initial is None else initial.merged(new)

    def _empty(self) -> dict[str, TensorStatistics]:
        return {
            name: TensorStatistics.empty(histogram=self._histograms, wanted=one) for name, one in self._wanted.items()
        }


def _lacks_rows(array: Array, rows: int) -> bool:
    return array.ndim == 0 or array.shape[0] % rows > 0


def _within(budget: Budget, batches: Iterator[_Batch], live: Callable[[Feeds], int | None]) -> Iterator[_Batch]:
    """Batches that are larger than the measured sample let expect: one sample after the other, and nothing beside it.

    Raises:
        ConfigError: If one does not fit even so, before it is run.
    """
    largest = 0
    for rows, feeds, separable, _ in batches:
        fed = sum(array.nbytes for array in feeds.values())
        if not budget.is_larger(fed):
            yield rows, feeds, separable, False
            continue
        for row in range(rows if separable else 1):
            one = single(feeds, row) if separable else feeds
            if fed > largest:
                largest = fed
                budget.foresee(live(one), 0)
            yield 1 if separable else rows, one, separable, True


def _in_order(
    collector: _Collector, batches: Iterator[_Batch], workers: int, pause: int | None
) -> Iterator[tuple[int, dict[str, tuple[int, int]]]]:
    """Count all samples; yield the size and the trouble of each batch, in their order.

    Each time ``pause`` samples have been handed out, all of them are counted, and yielded, before the next ones: then
    the collector has counted exactly what was yielded.
    """
    if workers == 1:
        for rows, feeds, separable, _ in batches:
            yield rows, collector.count(rows, feeds, separable)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[_Pending] = deque()
        try:
            handed_out = 0
            for rows, feeds, separable, alone in batches:
                while alone and pending:
                    yield _done(pending.popleft())
                pending.append((rows, pool.submit(collector.count, rows, feeds, separable)))
                del feeds
                handed_out += rows
                full = pause is not None and handed_out >= pause
                while pending and (full or alone or len(pending) > workers):
                    yield _done(pending.popleft())
                handed_out = 0 if full else handed_out
            while pending:
                yield _done(pending.popleft())
        finally:
            for _, future in pending:
                future.cancel()


# samples in the batch, the batch, whether it can be cut, and whether nothing else is to run beside it
_Batch: TypeAlias = tuple[int, Feeds, bool, bool]
_Pending: TypeAlias = tuple[int, "Future[dict[str, tuple[int, int]]]"]


def _done(one: _Pending) -> tuple[int, dict[str, tuple[int, int]]]:
    rows, future = one
    return rows, future.result()


def available_cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
