"""compare_models(): several candidates beside one reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from qtool.api.arguments import checked_arguments
from qtool.api.clock import Clock
from qtool.api.models import comparable, interface_of, parsed
from qtool.api.settings import ModelLike, Progress
from qtool.deferred import later
from qtool.errors import ConfigError

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
    from qtool.evaluate.candidates import Comparison
else:
    Data = later("qtool.calibrate.samples", "Data")
    Comparison = later("qtool.evaluate.candidates", "Comparison")


@checked_arguments
def compare_models(
    float_model: ModelLike | bytes,
    candidates: Sequence[ModelLike | bytes],
    data: Data,
    *,
    rank: str | None = None,
    engine: str = "ort",
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    ctc_blank: int | None = None,
    word_separator: int | None = None,
    latency: bool = True,
    samples: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare several quantized forms of one model and mark the Pareto-best in accuracy, size and latency.

    Args:
        float_model: The reference; its outputs are computed once for all.
        candidates: Quantized forms of it.
        data: Samples of its inputs.
        rank: The metric that stands for accuracy; by default the one that belongs to the labels, else the SQNR.
        engine: What runs the candidates; see :func:`evaluate`. With another one than ``ort`` nothing is timed.
        labels: Key of the labels in the data.
        metrics: Names of metrics, as :func:`evaluate` takes them. That of ``rank`` is always among them.
        outputs: Names of the outputs to compare; by default all.
        ctc_blank: Class that is the blank, if the output of the labels holds CTC scores.
        word_separator: Id between words, for the word error rate.
        latency: Whether to time the models, all in turn.
        samples: Use this many samples, the first in order; by default all.
        shuffle: Seed of the order in which the samples are taken; by default that of the data.
        batch: Largest number of samples in a run; by default chosen by their size.
        num_threads: Threads of the runtime.
        progress: Called with ("evaluate", done, total).

    Returns:
        The reports, one per candidate, in their order, and which of them no other one beats.

    Raises:
        ConfigError: Without a candidate, or for an unknown engine or metric.
        ModelError: If a model cannot be read or run, or the interfaces differ.
        DataError: If samples or labels do not fit.
    """
    from qtool.calibrate.samples import open_samples
    from qtool.evaluate.candidates import compare_reports
    from qtool.evaluate.compare import compare_all
    from qtool.evaluate.gates import with_required
    from qtool.evaluate.metrics import select_metrics
    from qtool.runtime import require_engine

    if not candidates:
        raise ConfigError("No candidates to compare; expected at least one model.")
    require_engine(engine)
    names = with_required(metrics, [] if rank is None else [rank])
    select_metrics(names, labels=labels is not None, separator=word_separator, blank=ctc_blank)  # before the work
    reference = parsed(float_model)
    opened = open_samples(
        data,
        interface_of(reference),
        labels=[] if labels is None else [labels],
        limit=samples,
        shuffle_seed=shuffle,
    )
    with ExitStack() as cleanup:
        reports = compare_all(
            comparable(reference, cleanup),
            [comparable(parsed(model), cleanup) for model in candidates],
            opened,
            engine=engine,
            labels=labels,
            metrics=names,
            outputs=outputs,
            ctc_blank=ctc_blank,
            word_separator=word_separator,
            num_threads=num_threads,
            batch_size=batch,
            latency=latency,
            progress=Clock(progress).progress("evaluate"),
        )
    return compare_reports(reports, rank)
