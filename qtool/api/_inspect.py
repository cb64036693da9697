"""inspect(): what a model holds, and what would become of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from qtool.api._weight_only import planned_weights
from qtool.api.forecast import named_nodes, plan_table
from qtool.api.models import _caller_inputs, constants_of, described
from qtool.api.results import Inspection
from qtool.api.settings import ModelLike, prepared_for, resolve_config, selection_for
from qtool.config import QuantConfig


def inspect(
    model: ModelLike,
    *,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    target: str | None = None,
    weights: str | None = None,
    dynamic: bool | None = None,
    weight_only: bool | None = None,
    block: int | None = None,
    scale_type: str | None = None,
    matmul_nbits: bool | None = None,
    prepare: bool | None = None,
    overrides: Sequence[Mapping[str, Any]] | None = None,
) -> Inspection:
    """Say what a model holds, what would be quantized, and why the rest would not.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        config: Settings; by default those of :func:`quantize`.
        target: What the model would be for.
        weights: Element type of weights; this and the others override ``config`` where they are not None.
        dynamic: Plan for dynamic mode.
        weight_only: Plan for weight-only mode.
        block: Elements per scale along the summed axis, in weight-only mode.
        scale_type: ``float8e8m0`` for the MX formats, in weight-only mode.
        matmul_nbits: Plan for ``com.microsoft.MatMulNBits``, in weight-only mode.
        prepare: False for the graph as it is, but for what a plan needs; see ``QuantConfig``.
        overrides: Settings of single nodes, see :func:`quantize`.

    Returns:
        Every node with what would become of it, and the totals.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read.
    """
    from qtool.plan import build_dynamic_plan, build_plan
    from qtool.prepare.load import describe_source, load_model

    settings = resolve_config(
        config,
        target=target,
        weights=weights,
        dynamic=dynamic,
        weight_only=weight_only,
        block=block,
        scale_type=scale_type,
        matmul_nbits=matmul_nbits,
        prepare=prepare,
        overrides=overrides,
    )
    loaded = load_model(model)
    source = describe_source(model)
    if settings.weight_only:
        prepared, plan = planned_weights(loaded, settings)
        selection = selection_for(prepared, settings)
    else:
        prepared, settings, _ = prepared_for(loaded, settings)
        selection = selection_for(prepared, settings)
        decide = build_dynamic_plan if settings.dynamic else build_plan
        plan = decide(prepared.model, settings, selection)
    rows: dict[str, tuple[str, str, str, str]] = {}
    for d in plan.decisions:
        rows[d.node] = (d.node, d.op_type, "quantize", d.note or "")
        for name in d.absorbed:
            rows[name] = (name, "", "quantize", f"part of {d.node}")
    for s in plan.skips:
        rows[s.node] = (s.node, s.op_type, "float", s.reason)
    nodes = []
    for name, node in named_nodes(prepared.model, settings):
        row = rows.get(name)
        if row is not None:
            nodes.append((row[0], node.op_type, row[2], row[3]))
    return Inspection(
        nodes=nodes,
        by_op=plan.by_operator(),
        inputs=tuple(described(v) for v in _caller_inputs(loaded)),
        outputs=tuple(described(v) for v in prepared.model.graph.outputs),
        opset=loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx", 0)),
        ir_version=loaded.ir_version,
        nbytes=source.nbytes,
        weight_bytes=sum(t.nbytes for t in constants_of(loaded)),
        domains=sorted(domain or "ai.onnx" for domain in loaded.graph.opset_imports),
        quantized=plan.quantized,
        total=plan.nodes,
        actions=prepared.actions,
        target=settings.target,
        table=plan_table(prepared, plan, settings, selection),
    )
