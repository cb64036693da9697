"""Run a float model and its quantized form on the same samples and report what the quantization cost and gained.

Both models see the same batches, one after the other, and every batch is dropped once it is added up: memory does not
grow with the number of samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.errors import ConfigError, DataError, ModelError
from qtool.evaluate.latency import measure_all
from qtool.evaluate.metrics import select_metrics
from qtool.evaluate.metrics.base import Array
from qtool.evaluate.report import Latency, Report, Sizes, Source
from qtool.evaluate.sizes import model_bytes
from qtool.evaluate.tally import OutputTally

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples
    from qtool.runtime import Session

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"

BATCH_BYTES = 4 << 20
"""Bytes of inputs and outputs of one batch; activations in between take some ten times as much."""
MAX_BATCH = 32
LATENCY_SECONDS = 0.1
"""About the longest run that is timed: a median wants many runs more than large ones."""


def compare(
    float_model: ModelLike,
    quant_model: ModelLike,
    samples: Samples,
    *,
    engine: str = "ort",
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    num_threads: int | None = None,
    batch_size: int | None = None,
    latency: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compare two models on samples.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The candidate, with the same inputs and outputs.
        samples: Inputs of the float model; opened with ``labels=[labels]`` if labels are wanted.
        engine: What runs the quantized model; the float model runs in onnxruntime.
        labels: Key of the labels: class indices of shape ``output.shape[:-1]`` over all samples, -100 where a position
            has no answer. They belong to the first output of that shape. None: no metric against labels.
        metrics: Names of metrics, see ``METRICS``; None: all that the data allow.
        num_threads: Threads of each session; None: the runtime's own choice.
        batch_size: Samples per run, where the model leaves it open; None: some megabytes worth, at most 32.
        latency: Whether to time both models, on the first samples; not done for an engine other than ``ort``, whose
            time says nothing about a runtime.
        progress: Called with (samples done, samples in all) after each batch.

    Raises:
        ConfigError: If the engine or a metric is unknown, or a metric needs labels and ``labels`` is None, or a number
            is not positive.
        ModelError: If a model cannot be read or run, or the two differ in their inputs or outputs.
        DataError: If the samples or the labels do not fit.
    """
    (report,) = compare_all(
        float_model,
        [quant_model],
        samples,
        engine=engine,
        labels=labels,
        metrics=metrics,
        num_threads=num_threads,
        batch_size=batch_size,
        latency=latency,
        progress=progress,
    )
    return report


def compare_all(
    float_model: ModelLike,
    quant_models: Sequence[ModelLike],
    samples: Samples,
    *,
    engine: str = "ort",
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    num_threads: int | None = None,
    batch_size: int | None = None,
    latency: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Report, ...]:
    """Compare a model with each of several on samples; the outputs of the float model are computed once.

    Args:
        float_model: See :func:`compare`, as for all that follow.
        quant_models: The candidates.
        samples: Inputs.
        engine: What runs the candidates.
        labels: Key of the labels.
        metrics: Names of metrics.
        num_threads: Threads of each session.
        batch_size: Samples per run.
        latency: Whether to time the models, all in turn.
        progress: Called with (samples done, samples in all) after each batch.

    Returns:
        A report per candidate, in their order.

    Raises:
        ConfigError: See :func:`compare`.
        ModelError: If a model cannot be read or run, or one differs from the float model in its inputs or outputs.
        DataError: See :func:`compare`.
    """
    from qtool.runtime import create_session, require_engine

    require_engine(engine)
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"Batch size is {batch_size}; expected 1 or more.")
    chosen = select_metrics(metrics, labels=labels is not None)
    float_source, quant_sources = _source(float_model), [_source(model) for model in quant_models]
    float_bytes = model_bytes(float_source)
    sizes = [Sizes(float_bytes, model_bytes(source)) for source in quant_sources]
    reference = create_session(float_source, num_threads=num_threads)
    candidates = []
    for model, source in zip(quant_models, quant_sources, strict=True):
        with _blamed_on(model if len(quant_models) > 1 else None):
            candidates.append(_candidate(source, engine, num_threads))
            require_same_interface(reference, candidates[-1])
    answers = None if labels is None else samples.labels(labels)

    tallies = [[OutputTally(info, chosen) for info in reference.outputs] for _ in candidates]
    notes = [
        *samples.notes,
        *(f"Output '{n}' is {t}; it was not compared." for n, t in reference.opaque_outputs.items()),
    ]
    first = 0
    seconds = 0.0
    labelled: str | None = None
    done = 0
    if batch_size is None:
        batch_size = automatic_batch_size(samples, reference)
    for count, feeds in samples.counted_batches(batch_size):
        start = time.perf_counter()
        expected = reference.run(feeds)
        seconds += time.perf_counter() - start
        batch_labels = None if answers is None else answers[done : done + count]
        if not done:
            first = count
        if labels is not None and answers is not None and batch_labels is not None:
            fitting = outputs_of_labels(expected, batch_labels)
            if not done and fitting:
                labelled = fitting[0]
                if len(fitting) > 1:
                    notes.append(f"Labels '{labels}' fit {', '.join(fitting)}; they are taken as those of {labelled}.")
            if labelled not in fitting:
                raise _misfit(labels, answers, expected, count)
        for model, candidate, outputs in zip(quant_models, candidates, tallies, strict=True):
            with _blamed_on(model if len(quant_models) > 1 else None):
                start = time.perf_counter()
                found = candidate.run(feeds)
                seconds += time.perf_counter() - start
            for tally in outputs:
                name = tally.info.name
                tally.update(expected[name], found[name], batch_labels if name == labelled else None)
        done += count
        if progress is not None:
            progress(done, samples.count)

    timings: Sequence[Latency | None] = [None] * len(candidates)
    if latency and engine == "ort":
        size = latency_batch_size(first, seconds / ((1 + len(candidates)) * done))
        timings = _measure_latency(reference, candidates, samples, size, num_threads)
    return tuple(
        Report(
            float_model=_name(float_model),
            quantized_model=_name(model),
            metrics=tuple(metric.name for metric in chosen),
            outputs=tuple(tally.report() for tally in outputs),
            samples=done,
            sources=tuple(Source(source.path, source.sha256) for source in samples.sources),
            sizes=size_pair,
            latency=timing,
            engine=engine,
            notes=(*notes, *chain.from_iterable(tally.notes() for tally in outputs)),
            failures=tuple(chain.from_iterable(tally.failures() for tally in outputs)),
        )
        for model, outputs, size_pair, timing in zip(quant_models, tallies, sizes, timings, strict=True)
    )


@contextmanager
def _blamed_on(model: ModelLike | None) -> Iterator[None]:
    """Name the model that an error is about, where there are several."""
    try:
        yield
    except ModelError as error:
        name = None if model is None else _name(model)
        if name is None or name in error.message:
            raise
        raise ModelError(f"{name}: {error.message}", hint=error.hint) from error


def _candidate(model: Path | bytes | onnx.ModelProto, engine: str, num_threads: int | None) -> Session:
    """The quantized model in an engine; where onnxruntime refuses what the spec engine takes, the error says so."""
    from qtool.runtime import create_session

    try:
        return create_session(model, engine=engine, num_threads=num_threads)
    except ModelError as error:
        if engine != "spec" and _loads(model, "spec"):
            error.hint = "The model is valid ONNX that the spec engine runs: --engine spec, or engine='spec' in Python."
        raise


def _loads(model: Path | bytes | onnx.ModelProto, engine: str) -> bool:
    from qtool.runtime import create_session

    try:
        create_session(model, engine=engine)
    except ModelError:
        return False
    return True


def require_same_interface(reference: Session, candidate: Session) -> None:
    """Check that both models take the same inputs and give outputs of the same names, in whatever order.

    Raises:
        ModelError: If a name is on one side only, or an input differs in its element type.
    """
    for kind, ours, theirs in (
        ("inputs", reference.inputs, candidate.inputs),
        ("outputs", reference.outputs, candidate.outputs),
    ):
        if {info.name for info in ours} != {info.name for info in theirs}:
            found, expected = (", ".join(info.name for info in side) or "none" for side in (theirs, ours))
            raise ModelError(
                f"The quantized model's {kind} are {found}; expected those of the float model: {expected}.",
                hint="Are both files made from one model, and in the order FLOAT QUANTIZED?",
            )
    types = {info.name: info.dtype for info in candidate.inputs}
    for info in reference.inputs:
        if types[info.name] != info.dtype:
            raise ModelError(
                f"Input '{info.name}' of the quantized model is {types[info.name]}; "
                f"expected {info.dtype}, as in the float model.",
                hint="Compare models that take the same data.",
            )


def outputs_of_labels(outputs: Mapping[str, Array], labels: Array) -> list[str]:
    """Names of the outputs that labels can be about: the labels' shape and a last axis of at least two classes."""
    return [
        name
        for name, array in outputs.items()
        if array.ndim and array.shape[-1] > 1 and array.shape[:-1] == labels.shape
    ]


def _misfit(key: str, labels: Array, outputs: Mapping[str, Array], batch: int) -> DataError:
    """What to say where no output has the labels' shape."""
    shapes = ", ".join(f"'{name}' {array.shape}" for name, array in outputs.items())
    return DataError(
        f"Labels '{key}' of shape {labels.shape} fit no output; expected the shape of an output without its last axis, "
        f"which holds the scores of at least 2 classes. In a batch of {batch} the outputs are {shapes}.",
        hint="Leave out --labels, or name an array with one class index per decision.",
    )


def automatic_batch_size(samples: Samples, reference: Session) -> int:
    """As many samples as keep inputs and outputs of one batch within some megabytes, from a run of the first one."""
    feeds = next(iter(samples.batches(1)))
    arrays = chain(feeds.values(), reference.run(feeds).values())
    return max(1, min(MAX_BATCH, BATCH_BYTES // max(1, sum(array.nbytes for array in arrays))))


def latency_batch_size(largest: int, seconds: float) -> int:
    """How many samples to time a run with.

    Args:
        largest: Samples of a batch of the evaluation.
        seconds: What one sample took there.

    Returns:
        All of the batch if that takes a tenth of a second, else a power of two that does, else 1.
    """
    affordable = int(LATENCY_SECONDS / seconds) if seconds > 0 else largest
    return largest if affordable >= largest else 1 << max(0, affordable.bit_length() - 1)


def _measure_latency(
    reference: Session, candidates: Sequence[Session], samples: Samples, batch_size: int, threads: int | None
) -> tuple[Latency, ...]:
    count, feeds = next(samples.counted_batches(batch_size))
    timing = measure_all([partial(session.run, feeds) for session in (reference, *candidates)])
    float_seconds, *seconds = timing.medians
    return tuple(
        Latency(
            float_ms=float_seconds * 1e3,
            quantized_ms=each * 1e3,
            rounds=timing.rounds,
            runs=timing.runs,
            batch_size=count,
            threads=threads,
        )
        for each in seconds
    )


def _source(model: ModelLike) -> Path | bytes | onnx.ModelProto:
    return Path(model) if isinstance(model, (str, os.PathLike)) else model


def _name(model: ModelLike) -> str | None:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
