"""Run a float model and its quantized form on the same samples and report what the quantization cost and gained.

Both models see the same batches, one after the other, and every batch is dropped once it is added up: memory does not
grow with the number of samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.errors import ConfigError, ModelError
from qtool.evaluate.labels import kinds_of, misfit, require_numbers
from qtool.evaluate.latency import Timings, measure_all
from qtool.evaluate.metrics import PRIMARY, applying, select_metrics, unknown
from qtool.evaluate.metrics.base import Array, LabelKind, Metric
from qtool.evaluate.paired import limit, statistics
from qtool.evaluate.report import Latency, OutputReport, Report, Sizes, Source
from qtool.evaluate.sizes import model_bytes
from qtool.evaluate.tally import OutputTally
from qtool.evaluate.turns import TURN, Turns

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples
    from qtool.runtime import Session, TensorInfo

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"

BATCH_BYTES = 4 << 20
"""Bytes of inputs and outputs of one batch; activations in between take some ten times as much."""
HEAVY_BYTES = 4 << 20
"""Of a float model that takes some milliseconds for a sample, so that batches save no time."""
FEWEST_BATCHES = 24
"""Of a heavy model, where samples are enough: the pass over them is then a measurement of latency as well."""
MAX_BATCH = 8  # activations of more cost memory and, measured on the zoo, save no time
LATENCY_SECONDS = 0.02
"""About the longest run that is timed: a median wants many runs more than large ones."""
LATENCY_BUDGET = (0.1, 1.0)
"""Seconds of timing for each model at least and at most; in between, half of what the models ran on the samples. Where
that pass itself takes half of the least or more, it is the measurement: it does without runs to warm up, and hardly
any of it is lost."""


def compare(
    float_model: ModelLike,
    quant_model: ModelLike,
    samples: Samples,
    *,
    engine: str = "ort",
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    ctc_blank: int | None = None,
    word_separator: int | None = None,
    num_threads: int | None = None,
    batch_size: int | None = None,
    latency: bool = True,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[Mapping[str, Array]], None] | None = None,
) -> Report:
    """Compare two models on samples.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The candidate, with the same inputs and outputs.
        samples: Inputs of the float model; opened with ``labels=[labels]`` if labels are wanted.
        engine: What runs the quantized model; the float model runs in onnxruntime.
        labels: Key of the labels, over all samples; what they are is told by their dtype and shape, see
            ``evaluate.labels``. They belong to the first output that they fit. None: no metric against labels.
        metrics: Names of metrics, see ``METRICS`` and ``SPECIAL``, or ``module:name`` for one of the user's own; None:
            what is computed unasked.
        outputs: Names of the outputs to compare; None: all.
        ctc_blank: The output that the labels belong to holds CTC scores, in which this class is the blank, and the
            labels are sequences of ids.
        word_separator: Id that stands between words in such sequences.
        num_threads: Threads of each session; None: the runtime's own choice.
        batch_size: Samples per run, where the model leaves it open; None: some megabytes worth, at most 8.
        latency: Whether to time both models, on the first samples; not done for an engine other than ``ort``, whose
            time says nothing about a runtime.
        progress: Called with (samples done, samples in all) after each batch.
        watch: Called with the inputs of each batch once both models have run on it, for what else wants to see them.

    Raises:
        ConfigError: If the engine, a metric or an output is unknown, or a metric needs labels and ``labels`` is None,
            or a number is not positive.
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
        outputs=outputs,
        ctc_blank=ctc_blank,
        word_separator=word_separator,
        num_threads=num_threads,
        batch_size=batch_size,
        latency=latency,
        progress=progress,
        watch=watch,
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
    outputs: Sequence[str] | None = None,
    ctc_blank: int | None = None,
    word_separator: int | None = None,
    num_threads: int | None = None,
    batch_size: int | None = None,
    latency: bool = True,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[Mapping[str, Array]], None] | None = None,
) -> tuple[Report, ...]:
    """Compare a model with each of several on samples; the outputs of the float model are computed once.

    Args:
        float_model: See :func:`compare`, as for all that follow.
        quant_models: The candidates.
        samples: Inputs.
        engine: What runs the candidates.
        labels: Key of the labels.
        metrics: Names of metrics.
        outputs: Names of outputs.
        ctc_blank: Class of CTC scores.
        word_separator: Id between words.
        num_threads: Threads of each session.
        batch_size: Samples per run.
        latency: Whether to time the models, all in turn.
        progress: Called with (samples done, samples in all) after each batch.
        watch: Called with the inputs of each batch.

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
    _check_ids(ctc_blank, word_separator, labels)
    selected = select_metrics(metrics, labels=labels is not None, separator=word_separator, blank=ctc_blank)
    float_source, quant_sources = _source(float_model), [_source(model) for model in quant_models]
    float_bytes = model_bytes(float_source)
    sizes = [Sizes(float_bytes, model_bytes(source)) for source in quant_sources]
    reference = create_session(float_source, num_threads=num_threads)
    candidates = []
    for model, source in zip(quant_models, quant_sources, strict=True):
        with _blamed_on(model if len(quant_models) > 1 else None):
            candidates.append(_candidate(source, engine, num_threads))
            require_same_interface(reference, candidates[-1])
    compared = _selected(outputs, reference)
    wanted = None if outputs is None else [info.name for info in compared]
    answers = None if labels is None else samples.labels(labels)
    if labels is not None and answers is not None:
        require_numbers(answers, labels)

    tallies: list[list[OutputTally]] = []
    chosen: tuple[Metric, ...] = ()
    notes = [
        *samples.notes,
        *(
            f"Output '{n}' is {t}; it was not compared."
            for n, t in reference.opaque_outputs.items()
            if outputs is None or n in outputs
        ),
    ]
    first = 0
    labelled: tuple[str, LabelKind] | None = None
    done = 0
    if batch_size is None:
        batch_size = automatic_batch_size(samples, reference)
        if float_bytes >= HEAVY_BYTES:
            batch_size = min(batch_size, max(1, samples.count // FEWEST_BATCHES))
    named = quant_models if len(quant_models) > 1 else [None] * len(candidates)
    timed = latency and engine == "ort"
    turns = Turns(
        [
            partial(_run, reference, None, wanted),
            *(partial(_run, session, model, wanted) for model, session in zip(named, candidates, strict=True)),
        ],
        turn=TURN if timed else 1,
    )
    for step in turns.over(samples.counted_batches(batch_size)):
        count, (expected, *others) = step.count, step.outputs
        batch_labels = None if answers is None else answers[done : done + count]
        if labels is not None and answers is not None and batch_labels is not None:
            fitting = kinds_of(
                {info.name: expected[info.name] for info in compared}, batch_labels, ctc=ctc_blank is not None
            )
            if not done and fitting:
                labelled = next(iter(fitting.items()))
                if len(fitting) > 1:
                    names = ", ".join(fitting)
                    notes.append(f"Labels '{labels}' fit {names}; they are taken as those of {labelled[0]}.")
            if labelled is None or fitting.get(labelled[0]) is not labelled[1]:
                shown = {info.name: expected[info.name] for info in compared}
                raise misfit(labels, answers, shown, count, ctc=ctc_blank is not None)
        if not done:
            first = count
            name, kind = labelled or ("", None)
            chosen = applying(selected, kind, metrics, labels or "")
            tallies = [
                [OutputTally(info, chosen, kind if info.name == name else None) for info in compared]
                for _ in candidates
            ]
        for found, own in zip(others, tallies, strict=True):
            for tally in own:
                name = tally.info.name
                theirs = batch_labels if labelled is not None and name == labelled[0] else None
                tally.update(expected[name], found[name], theirs, count, fixed_batch=samples.fixed_batch is not None)
        done += count
        if watch is not None:
            watch(step.feeds)
        if progress is not None:
            progress(done, samples.count)

    timings: Sequence[Latency | None] = [None] * len(candidates)
    if timed:
        least, most = (limit * (1 + len(candidates)) for limit in LATENCY_BUDGET)
        timing, size = turns.timings(least / 2), first
        if timing is None:
            size = latency_batch_size(first, turns.seconds / ((1 + len(candidates)) * done))
            budget = min(max(least, turns.seconds / 2), most)
            timing, size = _measure_latency([reference, *candidates], samples, size, budget)
        timings = _latencies(timing, size, num_threads)
    found_outputs = [_reports(own, done) for own in tallies]
    return tuple(
        Report(
            float_model=_name(float_model),
            quantized_model=_name(model),
            metrics=tuple(metric.name for metric in chosen),
            outputs=reports,
            samples=done,
            sources=tuple(Source(source.path, source.sha256) for source in samples.sources),
            sizes=size_pair,
            latency=timing,
            engine=engine,
            notes=(
                *notes,
                *chain.from_iterable(tally.notes() for tally in own),
                *_limits(reports, chosen, None if labelled is None else labelled[1]),
            ),
            failures=tuple(chain.from_iterable(tally.failures() for tally in own)),
            custom=tuple(metric for metric in chosen if metric.own),
            labels=labels,
            label_kind=None if labelled is None else labelled[1].value,
        )
        for model, own, reports, size_pair, timing in zip(
            quant_models, tallies, found_outputs, sizes, timings, strict=True
        )
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


def _check_ids(blank: int | None, separator: int | None, labels: str | None) -> None:
    """What ids mean is only asked where labels hold some."""
    for name, value in (("CTC blank", blank), ("word separator", separator)):
        if value is not None and labels is None:
            raise ConfigError(f"A {name} is given without labels.", hint="Name the array of labels with --labels KEY.")
        if value is not None and value < 0:
            raise ConfigError(f"The {name} is {value}; expected an id from 0 on.")


def _selected(names: Sequence[str] | None, reference: Session) -> list[TensorInfo]:
    """The outputs to compare, in the model's order."""
    known = [info.name for info in reference.outputs]
    for name in names or ():
        if name in reference.opaque_outputs:
            raise ConfigError(f"Output '{name}' is {reference.opaque_outputs[name]}; expected a tensor to compare.")
        if name not in known:
            raise ConfigError(f"The model has no output '{name}'; {unknown(name, known)}")
    if names is not None and not names:
        raise ConfigError("No output is selected; expected at least one, or none named for all.")
    return [info for info in reference.outputs if names is None or info.name in names]


def _reports(tallies: Sequence[OutputTally], samples: int) -> tuple[OutputReport, ...]:
    """The values of every output with their statistics; all are resampled alike."""
    judged = {(tally.info.name, name): pair for tally in tallies for name, pair in tally.judged().items()}
    found = statistics(judged, samples)
    return tuple(
        tally.report({metric: one for (output, metric), one in found.items() if output == tally.info.name})
        for tally in tallies
    )


def _limits(reports: Sequence[OutputReport], metrics: Sequence[Metric], kind: LabelKind | None) -> list[str]:
    """What so few samples cannot show about accuracy: of the metric that stands for it, else of all."""
    primary = [metric for metric in metrics if kind is not None and metric.name == PRIMARY[kind]]
    metrics = primary or metrics
    found = [
        limit(metric, report.name, report.statistics[metric.name])
        for report in reports
        for metric in metrics
        if metric.needs_labels and metric.name in report.statistics
    ]
    return [line for line in found if line is not None]


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
        All of the batch if that takes no longer than LATENCY_SECONDS, else a power of two that does not, else 1.
    """
    affordable = int(LATENCY_SECONDS / seconds) if seconds > 0 else largest
    return largest if affordable >= largest else 1 << max(0, affordable.bit_length() - 1)


def _measure_latency(
    sessions: Sequence[Session], samples: Samples, batch_size: int, budget: float
) -> tuple[Timings, int]:
    """Latency of each model on the first samples, and how many they are."""
    count, feeds = next(samples.counted_batches(batch_size))
    return measure_all([partial(session.run, feeds) for session in sessions], budget=budget), count


def _latencies(timing: Timings, batch_size: int, threads: int | None) -> tuple[Latency, ...]:
    float_seconds, *seconds = timing.medians
    return tuple(
        Latency(
            float_ms=float_seconds * 1e3,
            quantized_ms=each * 1e3,
            rounds=timing.rounds,
            runs=timing.runs,
            batch_size=batch_size,
            threads=threads,
        )
        for each in seconds
    )


def _run(
    session: Session, model: ModelLike | None, wanted: Sequence[str] | None, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    with _blamed_on(model):
        return session.run(feeds, wanted)


def _source(model: ModelLike) -> Path | bytes | onnx.ModelProto:
    return Path(model) if isinstance(model, (str, os.PathLike)) else model


def _name(model: ModelLike) -> str | None:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
