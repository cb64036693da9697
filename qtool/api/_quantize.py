"""quantize(): observe, decide, rewrite, verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qtool.api._dynamic import quantize_dynamic
from qtool.api.clock import Clock, peak_rss
from qtool.api.data import (
    VERIFY_SAMPLES,
    VERIFY_SECONDS,
    files_of,
    first_batches,
    hashes_of,
    observe,
    open_any,
    refuse_choice,
    refuse_several,
)
from qtool.api.limits import budget, check_limit, keeps_limit
from qtool.api.models import as_runnable, inputs_of, tensors_of
from qtool.api.outcome import destination_of, why_nothing
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, prepared_for, refuse_quantized, resolve_config
from qtool.config import QuantConfig
from qtool.errors import NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
    from qtool.calibrate.saved import Batch

# Verification holds the float model as it is read and as the runtime packs it, and the result twice.
_VERIFY_COPIES = 3
USELESS_DB = 10.0  # output SQNR below which no task metric survives


@keeps_limit
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
    tensor_methods: Mapping[str, str] | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    dedicated_qdq: bool | None = None,
    dynamic: bool | None = None,
    allow_empty: bool | None = None,
    random_calib: int | None = None,
    samples: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    on_nan: Literal["raise", "skip"] = "raise",
    max_memory: int | None = None,  # noqa: ARG001 - keeps_limit() reads it
    force: bool = False,
    dry_run: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantize a model with scales that are calibrated on samples, verify it, and put it in place.

    One of ``calib``, ``stats`` and ``random_calib`` says where the ranges of activations come from. With ``dynamic``
    nothing does: the running model measures them, and ``calib`` is what the result is verified on.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; never changed.
        calib: Samples: paths of files, folders or globs (npz, npy, ONNX test data), a mapping of arrays, or an
            iterable of mappings.
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
        tensor_methods: Range methods of single activations, by a glob of their names; where several match, the last
            one counts.
        include: Only these nodes.
        exclude: Not these nodes.
        dedicated_qdq: One Q/DQ pair for each reader.
        dynamic: Quantize weights now and activations in the running model; see ``QuantConfig``.
        allow_empty: Accept a model in which nothing can be quantized.
        random_calib: Calibrate on this many random samples instead of data.
        samples: Use this many samples of ``calib``, the first in order; by default all.
        shuffle: Seed of the order in which the samples are taken; by default that of the data.
        batch: Largest number of samples in a run; by default chosen by their size. Does not change the result.
        on_nan: ``raise`` stops at the first NaN in an observed tensor; ``skip`` leaves NaNs out and notes how many.
        max_memory: Bytes that the process may reach; by default there is no limit. Does not change the result.
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
    from qtool.calibrate.nonfinite import skipped_notes
    from qtool.calibrate.statsfile import load_statistics
    from qtool.emit import emit
    from qtool.plan import (
        Selection,
        build_plan,
        check_finite,
        need_histograms,
        refuse_unmatched,
        wanted_of,
        without_effect,
    )
    from qtool.plan.inputs import input_notes
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
        tensor_methods=tensor_methods,
        include=include,
        exclude=exclude,
        dedicated_qdq=dedicated_qdq,
        dynamic=dynamic,
        allow_empty=allow_empty,
    )
    if settings.dynamic:
        return quantize_dynamic(
            model,
            calib,
            settings,
            stats=stats,
            random_calib=random_calib,
            output=output,
            format_given=format is not None,
            force=force,
            dry_run=dry_run,
            num_threads=num_threads,
            progress=progress,
        )
    histograms = need_histograms(settings)
    refuse_several(calib=calib, stats=stats, random_calib=random_calib)
    refuse_choice(calib, samples, shuffle)
    source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    clock = Clock(progress)
    with clock("prepare"):
        saved = None if stats is None else load_statistics(stats)
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = destination_of(source_path, output)
        if destination is not None and not dry_run:
            check_destination(
                destination, source_path, force=force, source_data=source.data_files, inputs=files_of(calib, stats)
            )
        refuse_quantized(loaded, force=force)
        refuse_unmatched(settings, tensors_of(loaded))
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
            f"0 of {plan.nodes} nodes were quantized: {why_nothing(plan)}.",
            hint="'qtool inspect MODEL -v' gives the reason for each node; --allow-empty writes the model anyway.",
        )
    published = Published(None, 0, {}, 0)
    proto = None
    # A dry run needs no samples, but checks those that it is given.
    opened = statistics = None
    batches: tuple[Batch, ...] = ()
    if saved is not None:
        statistics = saved.select(plan.tensors, histograms=histograms)
        batches = saved.batches
        if not batches:
            notes.append("The statistics file keeps no samples: the result was loaded, but not run on any.")
    elif calib is not None or random_calib is not None or not dry_run:
        opened = open_any(calib, random_calib, inputs_of(loaded), limit=samples, shuffle_seed=shuffle)
        notes += opened.notes
    if not dry_run:
        if opened is not None:
            check_limit("preparing the model")
            limit = budget()
            if limit is not None:
                limit.reserve(_VERIFY_COPIES * source.nbytes)
            with clock("calibrate"):
                statistics = observe(
                    prepared.model,
                    wanted_of(prepared.model, plan.tensors),
                    opened,
                    histograms=histograms,
                    num_threads=num_threads,
                    batch_size=batch,
                    on_nan=on_nan,
                    max_memory=limit,
                    progress=clock.progress("calibrate"),
                )
        if statistics is not None:
            notes += [*statistics.notes, *skipped_notes(statistics), *input_notes(prepared.model.graph, statistics)]
        with clock("plan"):
            plan = build_plan(prepared.model, settings, selection, statistics)
        if not plan.decisions and not settings.allow_empty:
            raise NothingToQuantizeError(f"0 of {plan.nodes} nodes were quantized: {why_nothing(plan)}.")
        with clock("emit"):
            quantized = emit(prepared.model, plan, format=settings.format, dedicated_qdq=settings.dedicated_qdq)
        check_limit("planning and rewriting the model")
        hashes: Sequence[str] | None
        if opened is None:
            assert saved is not None, "Bug: neither samples nor statistics"
            sample_count, hashes = saved.samples, saved.sources
        else:
            sample_count, hashes = opened.count, None if random_calib is not None else hashes_of(opened)
        with clock("verify"):
            float_model, base_dir, cleanup = as_runnable(model, loaded, prepared.model)
            try:
                published, proto = publish(
                    quantized,
                    float_model,
                    first_batches(opened, VERIFY_SAMPLES, VERIFY_SECONDS) if opened is not None else batches,
                    destination,
                    provenance=_provenance(settings, source.sha256, sample_count, hashes),
                    external_data=bool(source.data_files),
                    num_threads=num_threads,
                    base_dir=base_dir,
                    check=check_limit,
                )
            finally:
                cleanup()
        notes += published.notes
        notes += _quality_notes(published.sqnr_db)
    notes += [*plan.notes, *without_effect(settings, plan.tensors)]
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
