"""inspect(): what a model holds, and what would become of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qtool.api._weight_only import planned_weights
from qtool.api.models import _caller_inputs, constants_of, described
from qtool.api.results import Inspection
from qtool.api.settings import ModelLike, prepared_for, resolve_config
from qtool.config import QuantConfig

if TYPE_CHECKING:
    pass


def inspect(model: ModelLike, *, config: QuantConfig | str | os.PathLike[str] | None = None) -> Inspection:
    """Say what a model holds, what would be quantized, and why the rest would not.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        config: Settings; by default those of :func:`quantize`.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read.
    """
    from qtool.plan import Selection, build_plan
    from qtool.prepare.load import describe_source, load_model

    settings = resolve_config(config)
    loaded = load_model(model)
    source = describe_source(model)
    if settings.weight_only:
        prepared, plan = planned_weights(loaded, settings)
    else:
        prepared, settings, _ = prepared_for(loaded, settings)
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
        plan = build_plan(prepared.model, settings, selection)
    rows: dict[str, tuple[str, str, str, str]] = {}
    for d in plan.decisions:
        rows[d.node] = (d.node, d.op_type, "quantize", d.note or "")
        for name in d.absorbed:
            rows[name] = (name, "", "quantize", f"part of {d.node}")
    for s in plan.skips:
        rows[s.node] = (s.node, s.op_type, "float", s.reason)
    nodes = []
    for node in prepared.model.graph:  # those in bodies have no row
        row = rows[node.name or ""]
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
    )
