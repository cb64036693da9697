"""calibrate(): observe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.api.clock import Clock
from qtool.api.data import files_of, hashes_of, kept_batches, observe, open_any
from qtool.api.models import inputs_of
from qtool.api.settings import ModelLike, Progress, prepared_for, resolve_config
from qtool.config import QuantConfig
from qtool.errors import ConfigError

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
    from qtool.calibrate.statistics import Statistics


def calibrate(
    model: ModelLike,
    data: Data,
    *,
    output: str | os.PathLike[str] | None = None,
    tensors: Sequence[str] | None = None,
    method: str = "minmax",
    config: QuantConfig | str | os.PathLike[str] | None = None,
    force: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """Observe a model's activations on samples, and save what was seen for :func:`quantize`.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        data: Samples, as for :func:`quantize`.
        output: Statistics file to write. It always has histograms, so that every range method can be derived from it,
            and keeps the inputs of the first samples, on which a result is run before it is put in place.
        tensors: Names of tensors of the prepared model; by default those that quantizing it with ``config`` needs.
        method: The range method that the statistics are for: it decides whether histograms are filled.
        config: Settings that decide which tensors are wanted.
        force: Overwrite the output.
        num_threads: Threads of the runtime and the kernels.
        progress: Called with ("calibrate", done, total).

    Returns:
        Statistics by tensor name.

    Raises:
        ConfigError: For an unknown method or tensor, or an output that cannot be written.
        ModelError: For a model that cannot be read or run.
        DataError: For samples that do not fit, or activations that hold NaN.
    """
    from qtool.calibrate.methods import parse_method
    from qtool.calibrate.statsfile import SavedStatistics, save_statistics
    from qtool.plan import Selection, build_plan
    from qtool.prepare.fingerprint import fingerprint
    from qtool.prepare.load import external_files, load_model
    from qtool.publish import check_statistics_destination

    settings = resolve_config(config)
    if settings.weight_only:
        raise ConfigError(
            "Weight-only mode, which the config asks for, uses no statistics.", hint="Calibrate with another config."
        )
    range_method, _ = parse_method(method)
    loaded = load_model(model)
    destination = None if output is None else Path(output)
    if destination is not None:
        source = Path(model) if isinstance(model, (str, os.PathLike)) else None
        check_statistics_destination(
            destination, source, force=force, source_data=external_files(loaded), inputs=files_of(data)
        )
    prepared, settings, remarks = prepared_for(loaded, settings)
    if tensors is None:
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
        plan = build_plan(prepared.model, settings, selection)
        if plan.decisions and prepared.obstacle is not None:
            raise prepared.obstacle  # statistics for a model that quantize() would then refuse
        tensors = list(plan.tensors)
    samples = open_any(data, None, inputs_of(loaded))
    statistics = observe(
        prepared.model,
        tensors,
        samples,
        histograms=range_method.needs_histogram or destination is not None,
        num_threads=num_threads,
        progress=Clock(progress).progress("calibrate"),
    )
    notes = (*remarks, *samples.notes)
    if destination is not None:
        batches, remark = kept_batches(samples)
        notes += () if remark is None else (remark,)
        notes += () if tensors else ("No activation is quantized with these settings: there was nothing to observe.",)
        model_id = fingerprint(prepared.model, loaded.graph.opset_imports)
        saved = SavedStatistics(statistics, model_id, samples.count, tuple(hashes_of(samples)), batches)
        save_statistics(destination, saved)
    return replace(statistics, notes=notes)
