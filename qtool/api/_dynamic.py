"""quantize() in dynamic mode: decide, rewrite, verify; there is nothing to observe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.data import VERIFY_SAMPLES, VERIFY_SECONDS, files_of, first_batches, refuse_choice
from qtool.api.made_up import random_feeds
from qtool.api.models import inputs_of
from qtool.api.pipeline import Job, Run
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, prepared_for, refuse_obstacle, selection_for
from qtool.config import FORMATS, QuantConfig

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Data


def quantize_dynamic(
    model: ModelLike,
    calib: Data | None,
    settings: QuantConfig,
    run: Run,
    *,
    samples: int | None,
    shuffle: int | None,
    format_given: bool,
) -> QuantizeResult:
    """See :func:`quantize`; ``settings.dynamic`` is set, and ``calib`` is what the result is verified on.

    Raises:
        ConfigError: If samples are to be chosen from no data.
    """
    from qtool.calibrate.samples import open_samples
    from qtool.emit import emit_dynamic
    from qtool.plan import build_dynamic_plan

    refuse_choice(calib, samples, shuffle, hint="Give the samples that the result is verified on with --calib.")
    job = Job(model, settings, run, inputs=files_of(calib))
    with job.clock("prepare"):
        prepared, settings, remarks = prepared_for(job.loaded, settings)
        job.notes += remarks
        selection = selection_for(prepared, settings)
    if format_given or settings.format != FORMATS[0]:
        job.notes.append("Dynamic mode has one form: --format is not used.")
    with job.clock("plan"):
        plan = build_dynamic_plan(prepared.model, settings, selection)
        refuse_obstacle(prepared, plan)
    job.require_some(
        plan,
        settings,
        "'qtool inspect MODEL --dynamic -v' gives the reason for each node; --calib DATA without --dynamic quantizes "
        "more operators.",
    )
    opened = None
    if calib is not None:
        opened = open_samples(calib, inputs_of(job.loaded), limit=samples, shuffle_seed=shuffle)
        job.notes += opened.notes
    kind = "random" if opened is None else "given"

    def feeds(
        float_model: str | Path | onnx.ModelProto, base_dir: Path | None
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        if opened is not None:
            return first_batches(opened, VERIFY_SAMPLES, VERIFY_SECONDS)
        batches, why_not = random_feeds(job.loaded, float_model, num_threads=run.num_threads, base_dir=base_dir)
        job.notes += [why_not] if why_not is not None else []
        return batches

    if not run.dry_run:
        with job.clock("emit"):
            quantized = emit_dynamic(prepared.model, plan)
        job.publish(quantized, prepared, feeds, settings)
        useless = "Random inputs say little: give real samples with --calib"
        job.judge(kind, useless if opened is None else "Leave nodes float with --exclude")
    else:
        job.foresee(prepared, plan, settings, selection)
    job.notes += plan.notes
    return job.result(prepared, plan, settings, f"{plan.quantized} of {plan.nodes} nodes quantized", verified_on=kind)
