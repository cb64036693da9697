"""evaluate(): judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from qtool.api.arguments import checked_arguments
from qtool.api.clock import Clock
from qtool.api.layers import require_layers, with_layers
from qtool.api.models import comparable, interface_of, parsed
from qtool.api.settings import QUANTIZED_OPS, ModelLike, Progress
from qtool.deferred import later

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Data
    from qtool.evaluate.checks import Subject
    from qtool.evaluate.report import Report
else:
    Data = later("qtool.calibrate.samples", "Data")
    Report = later("qtool.evaluate.report", "Report")


@checked_arguments
def evaluate(
    float_model: ModelLike | bytes,
    quant_model: ModelLike | bytes,
    data: Data,
    *,
    engine: str = "ort",
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    ctc_blank: int | None = None,
    word_separator: int | None = None,
    fail_under: Mapping[str, float | str] | Sequence[str] = (),
    fail_over: Mapping[str, float | str] | Sequence[str] = (),
    min_agreement: float | None = None,
    latency: bool = True,
    details: bool = False,
    samples: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    num_threads: int | None = None,
    layers: bool = False,
    layer_samples: int | None = None,
    sensitivity: bool = False,
    checks: str | Sequence[str] = "quick",
    progress: Progress | None = None,
) -> Report:
    """Compare a float model and its quantized form on samples.

    Args:
        float_model: The reference.
        quant_model: The candidate.
        data: Samples of the float model's inputs.
        engine: What runs the quantized model: ``ort`` is onnxruntime; ``spec`` follows the ONNX documents to the bit
            and takes every element type; ``spec-avx2`` is that with the saturating products of a processor without
            VNNI. The float model always runs in onnxruntime.
        labels: Key of the labels in the data: class indices, label maps, regression targets or sequences of ids, told
            by their dtype and shape.
        metrics: Names of metrics; ``module:name`` is one of your own, ``all`` every one that the data allow; by default
            the usual ones.
        outputs: Names of the outputs to compare; by default all.
        ctc_blank: Class that is the blank, if the output of the labels holds CTC scores.
        word_separator: Id between words, for the word error rate.
        fail_under: Lower limits, ``{"sqnr": 30}`` or ``["sqnr=30"]``; the outcomes are ``Report.gates``.
        fail_over: Upper limits, ``{"kl": 0.01, "drop": "0.5pp"}``.
        min_agreement: Percent of decisions that must stay the same.
        latency: Whether to time both models; with another engine than ``ort`` they are not timed.
        details: Whether to describe both files too: hashes, settings, sizes of tensors.
        samples: Use this many samples, the first in order; by default all.
        shuffle: Seed of the order in which the samples are taken; by default that of the data.
        batch: Largest number of samples in a run; by default chosen by their size.
        num_threads: Threads of the runtime.
        layers: Whether to find out which quantized operator the noise comes from; see ``evaluate.attribution``.
        layer_samples: Samples that ``layers`` and ``sensitivity`` look at; by default chosen by their size.
        sensitivity: Whether to find out what each quantized operator alone would gain in float. The quantized model is
            loaded and run once for each.
        checks: What to check about the runtime: names of ``evaluate.checks.CHECKS``, ``quick`` (those that cost
            little), ``all`` or ``none``; the results are ``Report.checks``. With ``layers`` the check of ranges looks
            at inner tensors too.
        progress: Called with ("evaluate", done, total), then with ("layers", ..) and ("sensitivity", ..).

    Returns:
        The report; a gate that does not hold is in it (``Report.passed``) and raises nothing.

    Raises:
        ConfigError: For an unknown engine, metric or output, or a gate that cannot be judged.
        ModelError: If a model cannot be read or run, or the interfaces differ.
        DataError: If samples or labels do not fit.
    """
    from qtool.calibrate.samples import open_samples
    from qtool.evaluate import gates as gating
    from qtool.evaluate.checks import Subject, run_checks, select_checks
    from qtool.evaluate.checks.ranges import NAME as RANGES
    from qtool.evaluate.checks.ranges import watch_inputs, watch_layers
    from qtool.evaluate.compare import compare
    from qtool.evaluate.details import model_details
    from qtool.runtime import require_engine
    from qtool.runtime.lean import release

    require_engine(engine)
    wanted = select_checks(checks)
    gates = gating.parse_gates(fail_under, fail_over, min_agreement)
    needed = gating.required_metrics(gates, labels=labels is not None)
    gating.require_latency(gates, engine, latency=latency)
    reference, candidate = parsed(float_model), parsed(quant_model)
    opened = open_samples(
        data,
        interface_of(reference),
        labels=[] if labels is None else [labels],
        limit=samples,
        shuffle_seed=shuffle,
    )
    require_layers(engine, layers=layers, layer_samples=layer_samples, sensitivity=sensitivity)
    with ExitStack() as cleanup:
        pair = comparable(reference, cleanup), comparable(candidate, cleanup)
        subject = Subject(*pair, opened, num_threads=num_threads, batch_size=batch, layers=layers)
        report = compare(
            *pair,
            opened,
            engine=engine,
            labels=labels,
            metrics=gating.with_required(metrics, needed),
            outputs=outputs,
            ctc_blank=ctc_blank,
            word_separator=word_separator,
            num_threads=num_threads,
            batch_size=batch,
            latency=latency,
            progress=Clock(progress).progress("evaluate"),
            watch=watch_inputs(subject) if any(check.name == RANGES for check in wanted) else None,
        )
        report = with_layers(
            report,
            *pair,
            opened,
            layers=layers,
            layer_samples=layer_samples,
            sensitivity=sensitivity,
            num_threads=num_threads,
            progress=progress,
            engine=engine,
            watch=watch_layers(subject) if any(check.name == RANGES for check in wanted) else None,
        )
        if wanted:
            release(cycles=False)  # what came before
            report = replace(report, checks=run_checks(subject, wanted), notes=(*report.notes, *_order(subject)))
    report = replace(report, details=model_details(reference, candidate)) if details else report
    return gating.judged(report, gates)


def _order(subject: Subject) -> Iterator[str]:
    """A remark on models that were given in the wrong order."""
    if not _holds_codes(subject.light_proto) and _holds_codes(subject.light_float):
        yield "The first model holds quantized operators and the second one none: are they in the order FLOAT QUANT?"


def _holds_codes(model: onnx.ModelProto) -> bool:
    return any(node.op_type in QUANTIZED_OPS for node in model.graph.node)
