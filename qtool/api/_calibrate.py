"""calibrate(): observe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qtool.api.arguments import checked_arguments
from qtool.api.clock import Clock
from qtool.api.data import files_of, observe, open_any
from qtool.api.limits import budget, check_limit, keeps_limit
from qtool.api.models import inputs_of
from qtool.api.settings import ModelLike, Progress, prepared_for, refuse_obstacle, resolve_config, selection_for
from qtool.config import QuantConfig
from qtool.deferred import later
from qtool.errors import ConfigError

if TYPE_CHECKING:
    from qtool.calibrate.coverage import Coverage
    from qtool.calibrate.kept import Kept
    from qtool.calibrate.samples import Data
    from qtool.calibrate.statistics import Statistics
else:
    Data = later("qtool.calibrate.samples", "Data")
    Statistics = later("qtool.calibrate.statistics", "Statistics")


@checked_arguments
@keeps_limit
def calibrate(
    model: ModelLike,
    data: Data,
    *,
    output: str | os.PathLike[str] | None = None,
    tensors: Sequence[str] | None = None,
    method: str | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    prepare: bool | None = None,
    target: str | None = None,
    samples: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    checkpoint: int | None = None,
    on_nan: Literal["raise", "skip"] = "raise",
    max_memory: int | None = None,  # noqa: ARG001 - keeps_limit() reads it
    force: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
    seconds: dict[str, float] | None = None,
) -> Statistics:
    """Observe a model's activations on samples, and save what was seen for :func:`quantize`.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        data: Samples, as for :func:`quantize`.
        output: Statistics file to write. It keeps the inputs of the first samples, on which a result is run before it
            is put in place.
        tensors: Names of tensors of the prepared model; by default those that quantizing it with ``config`` needs.
        method: The only range method that the statistics are for: some need no histograms, which are then not filled.
            By default a file serves every method, and statistics that are only returned serve ``minmax``.
        config: Settings that decide which tensors are wanted.
        prepare: False for the model as it is, but for what a plan needs; see ``QuantConfig``. It overrides ``config``.
        target: What the model will be for; it overrides that of ``config``.
        samples: Use this many samples, the first in order; by default all.
        shuffle: Seed of the order in which the samples are taken; by default that of the data.
        batch: Largest number of samples in a run; by default chosen by their size. Does not change the result.
        checkpoint: Keep what was seen every so many samples in ``<output>.partial``. If the run is interrupted, the
            same call goes on from there, with the same result; the file goes when the output is in place.
        on_nan: ``raise`` stops at the first NaN in an observed tensor; ``skip`` leaves NaNs out and notes how many.
        max_memory: Bytes that the process may reach; by default there is no limit. Does not change the result.
        force: Overwrite the output.
        num_threads: Threads of the runtime and the kernels. Does not change the result.
        progress: Called with ("calibrate", done, total).
        seconds: Gets the wall time of each stage.

    Returns:
        Statistics by tensor name.

    Raises:
        ConfigError: For an unknown method or tensor, an output that cannot be written, or a checkpoint without output.
        ModelError: For a model that cannot be read or run.
        DataError: For samples that do not fit, activations that hold NaN, or a checkpoint of something else.
    """
    from qtool.api._checkpoint import Checkpoint
    from qtool.api._provenance import Provenance
    from qtool.calibrate.collect import available_cores
    from qtool.calibrate.methods import parse_method
    from qtool.calibrate.nonfinite import skipped_notes
    from qtool.calibrate.saved import SavedStatistics
    from qtool.calibrate.statsfile import save_statistics
    from qtool.plan import build_plan, wanted_of
    from qtool.plan.inputs import input_notes
    from qtool.prepare.load import external_files, load_model
    from qtool.publish import check_statistics_destination

    clock = Clock(progress, seconds)
    settings = resolve_config(config, prepare=prepare, target=target)
    if settings.weight_only or settings.dynamic:
        mode = "Weight-only" if settings.weight_only else "Dynamic"
        raise ConfigError(
            f"{mode} mode, which the config asks for, uses no statistics.", hint="Calibrate with another config."
        )
    needs_histogram = output is not None if method is None else parse_method(method)[0].needs_histogram
    with clock("prepare"):
        loaded = load_model(model, keep_in_file=True)
        destination = None if output is None else Path(output)
        if checkpoint is not None and destination is None:
            raise ConfigError("Checkpoints are kept beside the output, and there is none; expected an output.")
        if destination is not None:
            source = Path(model) if isinstance(model, (str, os.PathLike)) else None
            check_statistics_destination(
                destination, source, force=force, source_data=external_files(loaded), inputs=files_of(data)
            )
        prepared, settings, remarks = prepared_for(loaded, settings)
    if tensors is None:
        with clock("plan"):
            selection = selection_for(prepared, settings)
            plan = build_plan(prepared.model, settings, selection)
        refuse_obstacle(prepared, plan)  # statistics for a model that quantize() would then refuse
        tensors = list(plan.tensors)
    opened = open_any(data, None, inputs_of(loaded), limit=samples, shuffle_seed=shuffle)
    with ExitStack() as ending:
        provenance = None
        if destination is not None:
            beside = budget() is None and num_threads != 1 and available_cores() > 1
            with clock("prepare"):
                # few samples are small beside the histograms, and large where there are none
                known = Provenance(loaded, prepared.model, opened, beside=beside, early=needs_histogram)
                provenance = ending.enter_context(known)
        wanted = wanted_of(prepared.model, tensors)
        kept_run = None
        notes = (*remarks, *opened.notes)
        initial = None
        if checkpoint is not None and destination is not None and provenance is not None:
            kept_run = Checkpoint(destination, provenance.model, opened, checkpoint)
            initial = kept_run.resume(wanted, histograms=needs_histogram, allow_nan=on_nan == "skip")
            if initial is not None:
                notes += (f"Went on after sample {kept_run.done} of {opened.count}, from '{kept_run.path}'.",)
        before = 0 if kept_run is None else kept_run.done
        if initial is not None and before == opened.count:
            statistics = initial
        else:
            check_limit("preparing the model")
            advance = clock.progress("calibrate")
            with clock("calibrate"):
                statistics = observe(
                    prepared.model,
                    wanted,
                    opened.slice(before) if before else opened,
                    lend=True,  # the prepared model is a copy
                    histograms=needs_histogram,
                    num_threads=num_threads,
                    batch_size=batch,
                    on_nan=on_nan,
                    max_memory=budget(),
                    initial=initial,
                    checkpoint=None if kept_run is None else kept_run.save,
                    checkpoint_every=checkpoint,
                    progress=None if advance is None else lambda done, _: advance(before + done, opened.count),
                    ready=clock.beginning("load", of="calibrate"),
                )
        check_limit("calibration")
        notes += (*statistics.notes, *skipped_notes(statistics), *input_notes(prepared.model.graph, statistics))
        if destination is not None and provenance is not None:
            with clock("save"):
                coverage, kept = provenance.samples
            notes += tuple(_remarks(coverage, kept))
            if not tensors:
                notes += ("No activation is quantized with these settings: there was nothing to observe.",)
            with clock("save"):
                saved = SavedStatistics(statistics, provenance.model, coverage, kept)
                save_statistics(destination, saved, check=check_limit, replace=force)
            if kept_run is not None:
                kept_run.remove()
    return replace(statistics, notes=notes)


def _remarks(coverage: Coverage, kept: Kept) -> Iterator[str]:
    """What a user should know about the samples of a statistics file."""
    from qtool.calibrate.kept import FEW_SAMPLES

    if kept.cut is not None and kept.samples < FEW_SAMPLES:
        yield (
            f"Samples are large: {kept.samples or 'none'} of them {'is' if kept.samples == 1 else 'are'} kept in the "
            f"statistics file, for the verification of a result."
        )
    if any(times > 1 for use in coverage for _, _, times in use.used):
        yield "Some samples are given more than once: they count as often."
