"""quantize(): observe, decide, rewrite, verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api._weight_only import quantize_weights, refuse_data
from qtool.api.clock import Clock, peak_rss
from qtool.api.data import (
    VERIFY_SAMPLES,
    VERIFY_SECONDS,
    files_of,
    first_batches,
    hashes_of,
    observe,
    open_any,
    refuse_several,
)
from qtool.api.models import as_runnable, inputs_of
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, prepared_for, refuse_quantized, resolve_config
from qtool.config import QuantConfig
from qtool.errors import NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
    from qtool.calibrate.statsfile import Batch
    from qtool.plan import Plan

USELESS_DB = 10.0  # output SQNR below which no task metric survives


def quantize(
    model: ModelLike,
    calib: Data | None = None,
    *,
    stats: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    format: str | None = None,  # noqa: A002 - the field's own word, as in onnxruntime.quantization
    activations: str | None = None,
    weights: str | None = None,
    per_channel: bool | None = None,
    symmetric_activations: bool | None = None,
    method: str | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    dedicated_qdq: bool | None = None,
    allow_empty: bool | None = None,
    weight_only: bool | None = None,
    block: int | None = None,
    scale_type: str | None = None,
    matmul_nbits: bool | None = None,
    random_calib: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantize a model with scales that are calibrated on samples, verify it, and put it in place.

    One of ``calib``, ``stats`` and ``random_calib`` says where the ranges of activations come from; with
    ``weight_only`` there are no ranges, and none of them is given.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; never changed.
        calib: Samples: npz paths, a mapping of arrays, or an iterable of mappings.
        stats: A statistics file that :func:`calibrate` wrote for this model. The result is the same, byte for byte, as
            from the data that it was made of, whatever the range method.
        output: Destination; by default ``<model>.int8.onnx`` beside a model that is a file, and memory otherwise.
        config: Settings, or a TOML file of settings; the options below override them where they are not None.
        format: ``qlinear`` or ``qdq``.
        activations: Element type of activations.
        weights: Element type of weights.
        per_channel: Weight scales per output channel.
        symmetric_activations: Fix the zero point of activations.
        method: Range method of activations.
        include: Only these nodes.
        exclude: Not these nodes.
        dedicated_qdq: One Q/DQ pair for each reader.
        allow_empty: Accept a model in which nothing can be quantized.
        weight_only: Store weights quantized and compute in float. Needs no samples, and takes none.
        block: Elements per scale along the summed axis, in weight-only mode.
        scale_type: ``float8e8m0`` for the MX formats, in weight-only mode.
        matmul_nbits: Write ``com.microsoft.MatMulNBits`` instead of DequantizeLinear, in weight-only mode.
        random_calib: Calibrate on this many random samples instead of data.
        force: Overwrite the output; accept a model that holds quantized operators already.
        dry_run: Decide, but calibrate nothing and write nothing.
        num_threads: Threads of the runtime and the kernels. Does not change the result.
        progress: Called with (stage, done, total).

    Returns:
        What was done. The model is in ``model_path``, or in ``model`` if there is no path.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read or used.
        DataError: For samples that do not fit.
        NothingToQuantizeError: If nothing was quantized (unless ``allow_empty``).
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    from qtool.calibrate.methods import parse_method
    from qtool.calibrate.statsfile import load_statistics
    from qtool.emit import emit
    from qtool.plan import Selection, build_plan, check_finite
    from qtool.prepare.fingerprint import fingerprint
    from qtool.prepare.load import describe_source, load_model
    from qtool.publish import Published, check_destination, publish

    settings = resolve_config(
        config,
        format=format,
        activations=activations,
        weights=weights,
        per_channel=per_channel,
        symmetric_activations=symmetric_activations,
        method=method,
        include=include,
        exclude=exclude,
        dedicated_qdq=dedicated_qdq,
        allow_empty=allow_empty,
        weight_only=weight_only,
        block=block,
        scale_type=scale_type,
        matmul_nbits=matmul_nbits,
    )
    if settings.weight_only:
        refuse_data(calib=calib, stats=stats, random_calib=random_calib)
        return quantize_weights(
            model,
            settings,
            output=output,
            force=force,
            dry_run=dry_run,
            num_threads=num_threads,
            progress=progress,
        )
    range_method, _ = parse_method(settings.method)
    refuse_several(calib=calib, stats=stats, random_calib=random_calib)
    source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    clock = Clock(progress)
    with clock("prepare"):
        saved = None if stats is None else load_statistics(stats)
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = _destination(source_path, output)
        if destination is not None and not dry_run:
            check_destination(
                destination, source_path, force=force, source_data=source.data_files, inputs=files_of(calib, stats)
            )
        refuse_quantized(loaded, force=force)
        prepared, settings, notes = prepared_for(loaded, settings)
        if saved is not None:
            saved.require_model(fingerprint(prepared.model, loaded.graph.opset_imports))
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
    with clock("plan"):
        plan = build_plan(prepared.model, settings, selection)
        if plan.decisions and prepared.obstacle is not None:
            raise prepared.obstacle
        check_finite(prepared.model, plan)
    if not plan.decisions and not settings.allow_empty:
        raise NothingToQuantizeError(
            f"0 of {plan.nodes} nodes were quantized: {_why_nothing(plan)}.",
            hint="'qtool inspect MODEL -v' gives the reason for each node; --allow-empty writes the model anyway.",
        )
    published = Published(None, 0, {}, 0)
    proto = None
    # A dry run needs no samples, but checks those that it is given.
    samples = statistics = None
    batches: tuple[Batch, ...] = ()
    if saved is not None:
        statistics = saved.select(plan.tensors, histograms=range_method.needs_histogram)
        batches = saved.batches
        if not batches:
            notes.append("The statistics file keeps no samples: the result was loaded, but not run on any.")
    elif calib is not None or random_calib is not None or not dry_run:
        samples = open_any(calib, random_calib, inputs_of(loaded))
        notes += samples.notes
    if not dry_run:
        if samples is not None:
            with clock("calibrate"):
                statistics = observe(
                    prepared.model,
                    list(plan.tensors),
                    samples,
                    histograms=range_method.needs_histogram,
                    num_threads=num_threads,
                    progress=clock.progress("calibrate"),
                )
        with clock("plan"):
            plan = build_plan(prepared.model, settings, selection, statistics)
        if not plan.decisions and not settings.allow_empty:
            raise NothingToQuantizeError(f"0 of {plan.nodes} nodes were quantized: {_why_nothing(plan)}.")
        with clock("emit"):
            quantized = emit(prepared.model, plan, format=settings.format, dedicated_qdq=settings.dedicated_qdq)
        hashes: Sequence[str] | None
        if samples is None:
            assert saved is not None, "Bug: neither samples nor statistics"
            sample_count, hashes = saved.samples, saved.sources
        else:
            sample_count, hashes = samples.count, None if random_calib is not None else hashes_of(samples)
        with clock("verify"):
            float_model, base_dir, cleanup = as_runnable(model, loaded, prepared.model)
            try:
                published, proto = publish(
                    quantized,
                    float_model,
                    first_batches(samples, VERIFY_SAMPLES, VERIFY_SECONDS) if samples is not None else batches,
                    destination,
                    provenance=_provenance(settings, source.sha256, sample_count, hashes),
                    external_data=bool(source.data_files),
                    num_threads=num_threads,
                    base_dir=base_dir,
                )
            finally:
                cleanup()
        notes += published.notes
        notes += _quality_notes(published.sqnr_db)
    notes += plan.notes
    where = f" -> {published.path}" if published.path else ""
    return QuantizeResult(
        model_path=published.path,
        model=proto,
        plan=plan,
        quantized=plan.quantized,
        total=plan.nodes,
        by_op=plan.by_operator(),
        skips=list(plan.skips),
        bytes_before=source.nbytes,
        bytes_after=published.nbytes,
        sqnr_db=published.sqnr_db,
        verified_samples=published.samples,
        actions=prepared.actions,
        notes=list(dict.fromkeys(notes)),
        seconds=clock.seconds,
        peak_rss_bytes=peak_rss(),
        config=settings,
        message=f"{plan.quantized} of {plan.nodes} nodes quantized{where}",
    )


def _destination(source: Path | None, output: str | os.PathLike[str] | None) -> Path | None:
    from qtool.publish import default_output

    if output is not None:
        return Path(output)
    return None if source is None else default_output(source)


def _provenance(
    settings: QuantConfig, source_sha256: str, samples: int, hashes: Sequence[str] | None
) -> dict[str, Any]:
    """What the model records about its making; no hashes of data means random samples."""
    record: dict[str, Any] = {
        "version": package_version(),
        "config": settings.to_dict(),
        "source.sha256": source_sha256,
        "calibration.samples": str(samples),
    }
    if hashes is None:
        record["calibration.random"] = "true"
    else:
        record["calibration.sha256"] = list(hashes)
    return record


def _quality_notes(sqnr_db: Mapping[str, float]) -> list[str]:
    """A line if an output is so far from the float model that the file is of little use."""
    poor = {name: value for name, value in sqnr_db.items() if value < USELESS_DB}
    if not poor:
        return []
    name = min(poor, key=lambda output: poor[output])
    others = f" ({len(poor) - 1} more outputs are)" if len(poor) > 1 else ""
    text = (
        f"output '{name}' is {poor[name]:.1f} dB from the float model on the calibration samples; below "
        f"{USELESS_DB:.0f} dB a model is usually broken{others}. Try --method mse, or leave nodes float with --exclude."
    )
    return [text]


def _why_nothing(plan: Plan) -> str:
    """The reason that speaks for most nodes, a telling one before an expected one."""
    if not plan.skips:
        return "the model has no nodes"
    counts: dict[tuple[bool, str], int] = {}
    for s in plan.skips:
        key = (s.expected, s.reason)
        counts[key] = counts.get(key, 0) + 1
    (_, reason), _ = min(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1]))
    return reason
