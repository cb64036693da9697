"""inspect(): what a model holds, and what would become of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qtool.api._weight_only import planned_weights
from qtool.api.models import _caller_inputs, constants_of, described
from qtool.api.results import Inspection
from qtool.api.settings import ModelLike, prepared_for, resolve_config, selection_for
from qtool.config import QuantConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir


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
    )
    loaded = load_model(model)
    source = describe_source(model)
    if settings.weight_only:
        prepared, plan = planned_weights(loaded, settings)
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
    for name, node in _named_nodes(prepared.model, settings):
        row = rows[name]
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
    )


def _named_nodes(model: ir.Model, settings: QuantConfig) -> Iterator[tuple[str, ir.Node]]:
    """The nodes that a plan has a row for, under its names."""
    from qtool.plan.scopes import scoped_nodes
    from qtool.prepare.branches import is_capture
    from qtool.prepare.graph_edits import all_graphs

    if settings.weight_only:
        yield from scoped_nodes(model.graph)
        return
    for graph in all_graphs(model):
        for node in graph:
            if not is_capture(node):
                yield node.name or "", node
