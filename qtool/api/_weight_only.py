"""quantize(weight_only=True): decide, choose scales, rewrite, verify. No calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qtool.api.made_up import trial_feeds
from qtool.api.models import inputs_of
from qtool.api.pipeline import Job, Run
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, refuse_obstacle, selection_for
from qtool.config import QuantConfig

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.plan import Plan
    from qtool.prepare.prepare import Prepared


def quantize_weights(model: ModelLike, settings: QuantConfig, run: Run) -> QuantizeResult:
    """Store the weights of a model quantized; see :func:`qtool.quantize`, which calls this.

    Raises:
        ConfigError: For a destination that cannot be used.
        ModelError: For a model that cannot be read or used.
        NothingToQuantizeError: If nothing is worth it (unless ``allow_empty``).
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    from qtool.emit.weight_only import emit_weight_only
    from qtool.plan.weight_only import check_finite_weights, choose_weight_parameters

    job = Job(model, settings, run)
    with job.clock("prepare"):
        prepared, plan = planned_weights(job.loaded, settings)
    with job.clock("plan"):
        refuse_obstacle(prepared, plan)
        check_finite_weights(prepared.model, plan)
    job.require_some(
        plan,
        settings,
        "'qtool inspect MODEL --weight-only -v' gives the reason for each node; --allow-empty writes the model anyway.",
    )
    engine, remark = _engine_for(plan, prepared.model)
    job.notes += [*plan.notes, *remark]
    if not run.dry_run:
        with job.clock("weights"):
            plan = choose_weight_parameters(prepared.model, plan, num_threads=run.num_threads)
        with job.clock("emit"):
            quantized = emit_weight_only(prepared.model, plan)
        feeds, why_none = trial_feeds(inputs_of(job.loaded))
        verified = job.publish(quantized, prepared, lambda *_: feeds, settings, engine=engine, trial=True)
        job.notes += why_none
        if verified:
            job.notes.append(
                f"verified without samples: the result ran beside the float model in {_ENGINES[engine]} on seeded "
                "random input; types, shapes and finiteness agree, accuracy was not measured"
            )
    else:
        job.foresee(prepared, plan, settings, selection_for(prepared, settings))
    done = f"weights of {plan.quantized} of {plan.nodes} nodes stored as {settings.weights}"
    return job.result(prepared, plan, settings, done, verified_on="random")


_ENGINES = {"ort": "onnxruntime, with and without its optimizations,", "spec": "the spec engine"}


def planned_weights(loaded: ir.Model, settings: QuantConfig) -> tuple[Prepared, Plan]:
    """A model prepared for weight-only settings, and the plan for it.

    Rows of a table, and half precision, need a higher opset than other weights: where there are some, the model is
    raised that far if it can be.
    """
    from qtool.plan.weight_only import NEEDS, floor_of, plan_weights
    from qtool.prepare.prepare import prepare
    from qtool.runtime.capability import highest_quantizing_opset

    given = loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx", 0))

    def at(opset: int, ir_version: int) -> tuple[Prepared, Plan]:
        highest = max(opset, highest_quantizing_opset(given))
        prepared = prepare(loaded, min_opset=opset, min_ir=ir_version, max_opset=highest, optional=settings.prepare)
        selection = selection_for(prepared, settings)
        return prepared, plan_weights(prepared.model, settings, selection)

    opset, ir_version = floor_of(settings)
    prepared, plan = at(opset, ir_version)
    needed = [NEEDS[s.reason] for s in plan.skips if s.reason in NEEDS]
    if needed:
        raised = at(max(opset, *(n[0] for n in needed)), max(ir_version, *(n[1] for n in needed)))
        if raised[0].obstacle is None:
            return raised
    return prepared, plan


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
