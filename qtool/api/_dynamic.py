"""quantize() in dynamic mode: decide, rewrite, verify; there is nothing to observe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.clock import Clock, peak_rss
from qtool.api.data import VERIFY_SAMPLES, VERIFY_SECONDS, files_of, first_batches
from qtool.api.limits import check_limit
from qtool.api.models import as_runnable, inputs_of
from qtool.api.outcome import destination_of, why_nothing
from qtool.api.random_feeds import random_feeds
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, prepared_for, refuse_quantized
from qtool.config import QuantConfig
from qtool.errors import ConfigError, NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data

_USELESS_DB = 10.0  # output SQNR below which no task metric survives


def quantize_dynamic(
    model: ModelLike,
    calib: Data | None,
    settings: QuantConfig,
    *,
    stats: object,
    random_calib: object,
    output: str | os.PathLike[str] | None,
    format_given: bool,
    force: bool,
    dry_run: bool,
    num_threads: int | None,
    progress: Progress | None,
) -> QuantizeResult:
    """See :func:`quantize`; ``settings.dynamic`` is set, and ``calib`` is what the result is verified on.

    Raises:
        ConfigError: If statistics or random calibration are given: there is nothing to calibrate.
    """
    from qtool.calibrate.samples import open_samples
    from qtool.emit import emit_dynamic
    from qtool.plan import Selection, build_dynamic_plan
    from qtool.prepare.load import describe_source, load_model
    from qtool.publish import Published, check_destination, publish

    for option, given in (("a statistics file", stats), ("random calibration", random_calib)):
        if given is not None:
            raise ConfigError(
                f"Dynamic mode calibrates nothing, and {option} is given.",
                hint="Drop it; samples given with --calib are those that the result is verified on.",
            )
    source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    clock = Clock(progress)
    with clock("prepare"):
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = destination_of(source_path, output)
        if destination is not None and not dry_run:
            check_destination(
                destination, source_path, force=force, source_data=source.data_files, inputs=files_of(calib)
            )
        refuse_quantized(loaded, force=force)
        prepared, settings, notes = prepared_for(loaded, settings)
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
    if format_given:
        notes.append("Dynamic mode has one form: --format is not used.")
    with clock("plan"):
        plan = build_dynamic_plan(prepared.model, settings, selection)
        if plan.decisions and prepared.obstacle is not None:
            raise prepared.obstacle
    if not plan.decisions and not settings.allow_empty:
        raise NothingToQuantizeError(
            f"0 of {plan.nodes} nodes were quantized: {why_nothing(plan)}.",
            hint="'qtool inspect MODEL --dynamic -v' gives the reason for each node; --calib DATA without --dynamic "
            "quantizes more operators.",
        )
    samples = open_samples(calib, inputs_of(loaded)) if calib is not None else None
    kind = "random" if samples is None else "given"
    notes += samples.notes if samples is not None else []
    published, proto = Published(None, 0, {}, 0), None
    if not dry_run:
        with clock("emit"):
            quantized = emit_dynamic(prepared.model, plan)
        check_limit("planning and rewriting the model")
        with clock("verify"):
            float_model, base_dir, cleanup = as_runnable(model, loaded, prepared.model)
            try:
                feeds: Iterable[tuple[int, Mapping[str, Any]]]
                if samples is not None:
                    feeds = first_batches(samples, VERIFY_SAMPLES, VERIFY_SECONDS)
                else:
                    feeds, why_not = random_feeds(loaded, float_model, num_threads=num_threads, base_dir=base_dir)
                    notes += [why_not] if why_not is not None else []
                published, proto = publish(
                    quantized,
                    float_model,
                    feeds,
                    destination,
                    provenance={
                        "version": package_version(),
                        "config": settings.to_dict(),
                        "source.sha256": source.sha256,
                    },
                    external_data=bool(source.data_files),
                    num_threads=num_threads,
                    base_dir=base_dir,
                    check=check_limit,
                )
            finally:
                cleanup()
        notes += published.notes
        notes += _quality_notes(published.sqnr_db, kind)
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
        verified_on=kind,
        actions=prepared.actions,
        notes=list(dict.fromkeys(notes)),
        seconds=clock.seconds,
        peak_rss_bytes=peak_rss(),
        config=settings,
        message=f"{plan.quantized} of {plan.nodes} nodes quantized{where}",
    )


def _quality_notes(sqnr_db: Mapping[str, float], kind: str) -> list[str]:
    """A line if an output is so far from the float model that the file is of little use."""
    poor = {name: value for name, value in sqnr_db.items() if value < _USELESS_DB}
    if not poor:
        return []
    name = min(poor, key=lambda output: poor[output])
    others = f" ({len(poor) - 1} more outputs are)" if len(poor) > 1 else ""
    remedy = (
        "Random inputs say little: give real samples with --calib"
        if kind == "random"
        else "Leave nodes float with --exclude"
    )
    text = (
        f"output '{name}' is {poor[name]:.1f} dB from the float model on the {kind} samples; below "
        f"{_USELESS_DB:.0f} dB a model is usually broken{others}. {remedy}."
    )
    return [text]
