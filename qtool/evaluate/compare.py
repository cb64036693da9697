"""Run a float model and its quantized form on the same samples and report what the quantization cost and gained.

Both models see the same batches, one after the other, and every batch is dropped once it is added up: memory does not
grow with the number of samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.errors import ConfigError, DataError, ModelError
from qtool.evaluate.latency import measure
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
    from qtool.runtime import create_session, require_engine

    require_engine(engine)
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"Batch size is {batch_size}; expected 1 or more.")
    chosen = select_metrics(metrics, labels=labels is not None)
    float_source, quant_source = _source(float_model), _source(quant_model)
    sizes = Sizes(model_bytes(float_source), model_bytes(quant_source))
    reference = create_session(float_source, num_threads=num_threads)
    candidate = _candidate(quant_source, engine, num_threads)
    require_same_interface(reference, candidate)
    answers = None if labels is None else samples.labels(labels)

    tallies = [OutputTally(info, chosen) for info in reference.outputs]
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
        expected, found = reference.run(feeds), candidate.run(feeds)
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
        for tally in tallies:
            name = tally.info.name
            tally.update(expected[name], found[name], batch_labels if name == labelled else None)
        done += count
        if progress is not None:
            progress(done, samples.count)

    timing = None
    if latency and engine == "ort":
        size = latency_batch_size(first, seconds / (2 * done))
        timing = _measure_latency(reference, candidate, samples, size, num_threads)
    return Report(
        float_model=_name(float_model),
        quantized_model=_name(quant_model),
        metrics=tuple(metric.name for metric in chosen),
        outputs=tuple(tally.report() for tally in tallies),
        samples=done,
        sources=tuple(Source(source.path, source.sha256) for source in samples.sources),
        sizes=sizes,
        latency=timing,
        engine=engine,
        notes=(*notes, *chain.from_iterable(tally.notes() for tally in tallies)),
        failures=tuple(chain.from_iterable(tally.failures() for tally in tallies)),
    )


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
    reference: Session, candidate: Session, samples: Samples, batch_size: int, threads: int | None
) -> Latency:
    count, feeds = next(samples.counted_batches(batch_size))
    timing = measure(lambda: reference.run(feeds), lambda: candidate.run(feeds))
    return Latency(
        float_ms=timing.first * 1e3,
        quantized_ms=timing.second * 1e3,
        rounds=timing.rounds,
        runs=timing.runs,
        batch_size=count,
        threads=threads,
    )


def _source(model: ModelLike) -> Path | bytes | onnx.ModelProto:
    return Path(model) if isinstance(model, (str, os.PathLike)) else model


def _name(model: ModelLike) -> str | None:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
