"""quantize(weight_only=True): decide, choose scales, rewrite, verify. No calibration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.clock import Clock, peak_rss
from qtool.api.models import as_runnable, inputs_of
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, refuse_quantized
from qtool.api.trial import trial_feeds
from qtool.config import QuantConfig
from qtool.errors import NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.plan import Plan
    from qtool.prepare.prepare import Prepared


def quantize_weights(
    model: ModelLike,
    settings: QuantConfig,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Store the weights of a model quantized; see :func:`qtool.quantize`, which calls this.

    Raises:
        ConfigError: For a destination that cannot be used.
        ModelError: For a model that cannot be read or used.
        NothingToQuantizeError: If nothing is worth it (unless ``allow_empty``).
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    from qtool.emit.weight_only import emit_weight_only
    from qtool.plan.weight_only import check_finite_weights, choose_weight_parameters
    from qtool.prepare.load import describe_source, load_model
    from qtool.publish import Published, check_destination, publish

    source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    clock = Clock(progress)
    with clock("prepare"):
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = _destination(source_path, output, settings)
        if destination is not None and not dry_run:
            check_destination(destination, source_path, force=force, source_data=source.data_files)
        refuse_quantized(loaded, force=force)
        prepared, plan = planned_weights(loaded, settings)
    with clock("plan"):
        if plan.decisions and prepared.obstacle is not None:
            raise prepared.obstacle
        check_finite_weights(prepared.model, plan)
    if not plan.decisions and not settings.allow_empty:
        raise NothingToQuantizeError(
            f"0 of {plan.nodes} nodes were quantized: {_why_nothing(plan)}.",
            hint="'qtool quantize --weight-only --dry-run' gives the reason for each node; --allow-empty writes the "
            "model anyway.",
        )
    published = Published(None, 0, {}, 0)
    proto = None
    notes = list(plan.notes)
    engine, remark = _engine_for(plan, prepared.model)
    notes += remark
    if not dry_run:
        with clock("weights"):
            plan = choose_weight_parameters(prepared.model, plan, num_threads=num_threads)
        with clock("emit"):
            quantized = emit_weight_only(prepared.model, plan)
        with clock("verify"):
            float_model, base_dir, cleanup = as_runnable(model, loaded, prepared.model)
            try:
                feeds, why_none = trial_feeds(inputs_of(loaded))
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
                    engine=engine,
                    trial=True,
                )
            finally:
                cleanup()
        notes += [*published.notes, *why_none]
        if published.samples:
            notes.append(
                f"verified without samples: the result ran beside the float model in {_ENGINES[engine]} on seeded "
                "random input; types, shapes and finiteness agree, accuracy was not measured"
            )
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
        message=f"weights of {plan.quantized} of {plan.nodes} nodes stored as {settings.weights}{where}",
    )


_ENGINES = {"ort": "onnxruntime, with and without its optimizations,", "spec": "the spec engine"}


def planned_weights(loaded: ir.Model, settings: QuantConfig) -> tuple[Prepared, Plan]:
    """A model prepared for weight-only settings, and the plan for it.

    Rows of a table, and half precision, need a higher opset than other weights: where there are some, the model is
    raised that far if it can be.
    """
    from qtool.plan import Selection
    from qtool.plan.weight_only import NEEDS, floor_of, plan_weights
    from qtool.prepare.prepare import prepare
    from qtool.runtime.capability import highest_quantizing_opset

    given = loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx", 0))

    def at(opset: int, ir_version: int) -> tuple[Prepared, Plan]:
        highest = max(opset, highest_quantizing_opset(given))
        prepared = prepare(loaded, min_opset=opset, min_ir=ir_version, max_opset=highest)
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
        return prepared, plan_weights(prepared.model, settings, selection)

    opset, ir_version = floor_of(settings)
    prepared, plan = at(opset, ir_version)
    needed = [NEEDS[s.reason] for s in plan.skips if s.reason in NEEDS]
    if needed:
        raised = at(max(opset, *(n[0] for n in needed)), max(ir_version, *(n[1] for n in needed)))
        if raised[0].obstacle is None:
            return raised
    return prepared, plan


def _destination(source: Path | None, output: str | os.PathLike[str] | None, settings: QuantConfig) -> Path | None:
    from qtool.publish import default_output

    if output is not None:
        return Path(output)
    return None if source is None else default_output(source, settings.weights)


def _engine_for(plan: Plan, model: ir.Model) -> tuple[str, list[str]]:
    """The engine that verifies the result: onnxruntime, unless it lacks a type; then a remark says so."""
    from qtool.plan.stored import StoredWeight
    from qtool.runtime.capability import dequantizes

    opset = model.graph.opset_imports.get("", 0)
    weights = [w for d in plan.decisions for w in d.weights if isinstance(w, StoredWeight)]
    pairs: dict[tuple[str, str | None], Any] = {
        (w.dtype.name, w.scale_type.name if w.scale_type else None): None for w in weights if w.dtype is not None
    }
    for dtype, scale in pairs:
        if not dequantizes(dtype, scale, opset):
            what = dtype if scale is None else f"{dtype} with {scale} scales"
            remark = (
                f"this version of onnxruntime cannot run the result: it has no DequantizeLinear of {what} at opset "
                f"{opset}. The spec engine can: qtool eval --engine spec"
            )
            return "spec", [remark]
    return "ort", []


def _why_nothing(plan: Plan) -> str:
    """The reason that speaks for most nodes with a weight."""
    telling = [s.reason for s in plan.skips if not s.expected] or [s.reason for s in plan.skips]
    return max(sorted(set(telling)), key=telling.count) if telling else "the model has no nodes"
