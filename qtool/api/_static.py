"""quantize() with calibration: observe, decide, rewrite, verify."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qtool.api.auto import Judged, judge_auto, may_be_judged, surveyed
from qtool.api.data import (
    VERIFY_SAMPLES,
    VERIFY_SECONDS,
    files_of,
    first_batches,
    observe,
    open_any,
    refuse_choice,
    refuse_several,
)
from qtool.api.limits import budget, check_limit
from qtool.api.models import inputs_of, tensors_of
from qtool.api.pipeline import Job, Run
from qtool.api.results import QuantizeResult
from qtool.api.saturation import without_saturation
from qtool.api.settings import ModelLike, prepared_for, refuse_obstacle, selection_for
from qtool.config import QuantConfig

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
    from qtool.calibrate.saved import Batch

# Verification holds the float model as it is read and as the runtime packs it, and the result twice.
_VERIFY_COPIES = 3


def quantize_static(
    model: ModelLike,
    calib: Data | None,
    settings: QuantConfig,
    run: Run,
    *,
    stats: str | os.PathLike[str] | None,
    random_calib: int | None,
    samples: int | None,
    shuffle: int | None,
    batch: int | None,
    on_nan: Literal["raise", "skip"],
) -> QuantizeResult:
    """See :func:`quantize`; activations get scales from statistics."""
    from qtool.calibrate.nonfinite import skipped_notes
    from qtool.calibrate.statsfile import load_statistics
    from qtool.emit import emit
    from qtool.plan import (
        build_plan,
        check_finite,
        leaves_to_auto,
        need_histograms,
        refuse_unmatched,
        wanted_of,
        without_effect,
    )
    from qtool.plan.fusion import predict_fusion
    from qtool.plan.inputs import input_notes
    from qtool.plan.overriding import without_quantized_nodes
    from qtool.prepare.fingerprint import fingerprint

    histograms = need_histograms(settings)
    refuse_several(calib=calib, stats=stats, random_calib=random_calib)
    refuse_choice(
        calib,
        samples,
        shuffle,
        hint="The samples of a statistics file are chosen when it is made; --random-calib says how many it takes.",
    )
    job = Job(model, settings, run, inputs=files_of(calib, stats))
    loaded, clock = job.loaded, job.clock
    with clock("prepare"):
        saved = None if stats is None else load_statistics(stats)
        refuse_unmatched(settings, tensors_of(loaded))
        prepared, settings, remarks = prepared_for(loaded, settings)
        if saved is not None:
            saved.require_model(fingerprint(prepared.model, loaded.graph.opset_imports))
        selection = selection_for(prepared, settings)
    job.notes += remarks
    with clock("plan"):
        plan = build_plan(prepared.model, settings, selection)
        refuse_obstacle(prepared, plan)
        check_finite(prepared.model, plan)
    job.require_some(
        plan,
        settings,
        "'qtool inspect MODEL -v' gives the reason for each node; --allow-empty writes the model anyway.",
    )
    # A dry run needs no samples, but checks those that it is given.
    opened = statistics = None
    batches: tuple[Batch, ...] = ()
    if saved is not None:
        statistics = saved.select(plan.tensors, histograms=histograms)
        batches = saved.batches
        if not batches:
            job.notes.append("The statistics file keeps no samples: the result was loaded, but not run on any.")
    elif calib is not None or random_calib is not None or not run.dry_run:
        opened = open_any(calib, random_calib, inputs_of(loaded), limit=samples, shuffle_seed=shuffle)
        job.notes += opened.notes
    if not run.dry_run:
        if opened is not None:
            check_limit("preparing the model")
            limit = budget()
            if limit is not None:
                limit.reserve(_VERIFY_COPIES * job.source_bytes)
            with clock("calibrate"):
                statistics = observe(
                    prepared.model,
                    wanted_of(prepared.model, plan.tensors),
                    opened,
                    histograms=histograms,
                    num_threads=run.num_threads,
                    batch_size=batch,
                    on_nan=on_nan,
                    max_memory=limit,
                    progress=clock.progress("calibrate"),
                )
        if statistics is not None:
            job.notes += [*statistics.notes, *skipped_notes(statistics), *input_notes(prepared.model.graph, statistics)]
        with clock("plan"):
            plan = build_plan(prepared.model, settings, selection, statistics)
        job.require_some(plan, settings)
        hashes: Sequence[str] | None = None
        if saved is not None:
            sample_count, hashes, kept = saved.samples, saved.sources, batches
        else:
            assert opened is not None, "Bug: neither samples nor statistics"
            sample_count, kept = opened.count, ()
            if random_calib is None:
                wanted = settings.facts.saturating_pairs or (leaves_to_auto(settings) and may_be_judged(opened))
                with clock("prepare"):
                    hashes, kept = surveyed(opened, keep=wanted)
            elif settings.facts.saturating_pairs:
                kept = surveyed(opened, keep=True)[1]
        judged = Judged(plan)
        if leaves_to_auto(settings) and statistics is not None:
            with clock("judge"):
                judged = judge_auto(
                    model,
                    loaded,
                    prepared,
                    settings,
                    statistics,
                    plan,
                    None if random_calib is not None else kept,
                    samples=sample_count,
                    verified=VERIFY_SAMPLES,
                    num_threads=run.num_threads,
                )
            check_limit("judging the whole model")
        plan, quantized = judged.plan, judged.model
        if settings.facts.saturating_pairs:
            with clock("check"):
                plan, quantized = without_saturation(prepared.model, plan, kept, num_threads=run.num_threads), None
        if quantized is None:
            with clock("emit"):
                quantized = emit(prepared.model, plan, format=settings.format, dedicated_qdq=settings.dedicated_qdq)
        check_limit("planning and rewriting the model")

        def feeds(*_: object) -> Iterable[Batch]:
            if judged.reference is not None:
                return judged.batches
            return _first(kept) if opened is None else first_batches(opened, VERIFY_SAMPLES, VERIFY_SECONDS)

        job.publish(
            quantized,
            prepared,
            feeds,
            settings,
            provenance=_provenance(sample_count, hashes) | judged.provenance,
            reference=judged.reference,
        )
        job.auto = judged.check
        job.judge("calibration", "Try --method mse, or leave nodes float with --exclude")
    else:
        if statistics is not None:
            with clock("plan"):
                plan = build_plan(prepared.model, settings, selection, statistics)
            job.require_some(plan, settings)
        job.foresee(prepared, plan, settings, selection)
    job.notes += [*plan.notes, *without_effect(settings, plan.tensors)]
    decided = [name for d in plan.decisions for name in (d.node, *d.absorbed)]
    job.notes += without_quantized_nodes(settings, selection, prepared.model, decided)
    # of one type for all activations, and one for all weights
    fusion = None if settings.has_other_types else predict_fusion(prepared.model, plan, settings)
    return job.result(prepared, plan, settings, f"{plan.quantized} of {plan.nodes} nodes quantized", fusion=fusion)


def _provenance(samples: int, hashes: Sequence[str] | None) -> dict[str, Any]:
    """What the model records about its calibration; no hashes of data means random samples."""
    if hashes is None:
        return {"calibration.samples": str(samples), "calibration.random": "true"}
    return {"calibration.samples": str(samples), "calibration.sha256": list(hashes)}


def _first(batches: Sequence[Batch]) -> Iterator[Batch]:
    """As many of the batches as a result is run on."""
    done = 0
    for count, feeds in batches:
        if done >= VERIFY_SAMPLES:
            return
        yield count, feeds
        done += count
