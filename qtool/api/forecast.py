"""What a plan would write: a row for each node, and the size of the file, before anything is calibrated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qtool.config import QuantConfig
from qtool.errors import QtoolError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.calibrate.statistics import Statistics
    from qtool.emit.forecast import Forecast
    from qtool.plan import Plan, Selection
    from qtool.plan.table import PlanRow
    from qtool.prepare.prepare import Prepared

_REACH = 1e-3  # of made-up ranges: below every bound that a Clip has


@dataclass(frozen=True)
class PlanTable:
    """A plan as a table.

    Attributes:
        rows: One for each node, in graph order.
        forecast: Sizes of the result; None if they cannot be told.
        remark: Why they cannot.
    """

    rows: tuple[PlanRow, ...]
    forecast: Forecast | None
    remark: str | None = None

    @property
    def totals(self) -> list[tuple[str, int, int, int, int]]:
        """(operator, nodes, quantized, bytes before, bytes after), most bytes first."""
        found: dict[str, list[int]] = {}
        for row in self.rows:
            total = found.setdefault(row.op_type, [0, 0, 0, 0])
            after = row.bytes_before if row.bytes_after is None else row.bytes_after
            for place, part in enumerate((1, row.decision == "quantize", row.bytes_before, after)):
                total[place] += int(part)
        ranked = sorted(found.items(), key=lambda item: (-item[1][2], -item[1][0], item[0]))
        return [(op, *_four(total)) for op, total in ranked]

    def shown(self, which: str) -> list[PlanRow]:
        """The rows that ``--show`` asks for: ``quantized``, ``skipped`` or ``all``."""
        wanted = {"quantized": ("quantize",), "skipped": ("float",)}.get(which, ("quantize", "float"))
        return [row for row in self.rows if row.decision in wanted]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "nodes": [row.to_dict() for row in self.rows],
            "operators": [
                {"op_type": op, "nodes": n, "quantized": q, "bytes_before": before, "bytes_after": after}
                for op, n, q, before, after in self.totals
            ],
            "predicted": self.forecast.to_dict() if self.forecast is not None else None,
        }


def named_nodes(model: ir.Model, settings: QuantConfig) -> Iterator[tuple[str, ir.Node]]:
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


def plan_table(prepared: Prepared, plan: Plan, config: QuantConfig, selection: Selection) -> PlanTable:
    """The table of a plan that was made with or without statistics."""
    from qtool.emit.forecast import constant_bytes
    from qtool.plan.table import plan_rows

    nodes = list(named_nodes(prepared.model, config))
    known = frozenset(name for name, _ in nodes)
    rows = plan_rows(nodes, prepared.model, plan, config, selection)
    before = constant_bytes(prepared.model, {node: name for name, node in nodes})
    found, remark = None, None
    try:
        found = _forecast(prepared, plan, config, selection, known)
    except QtoolError as error:
        remark = f"the size of the result cannot be told: {error.message}"
    after = found.by_node if found is not None else {}
    rows = [
        replace(
            row,
            bytes_before=before.get(row.node, 0),
            bytes_after=after.get(row.node, 0) if found is not None else None,
        )
        for row in rows
    ]
    return PlanTable(tuple(rows), found, remark)


def _forecast(
    prepared: Prepared, plan: Plan, config: QuantConfig, selection: Selection, known: frozenset[str]
) -> Forecast:
    from qtool.emit import emit, emit_dynamic
    from qtool.emit.forecast import forecast
    from qtool.emit.weight_only import emit_weight_only
    from qtool.plan import build_plan

    model = prepared.model
    metadata = {"version": package_version(), "config": json.dumps(config.to_dict(), sort_keys=True)}
    metadata["source.sha256"] = "0" * 64
    if config.weight_only:
        emitted = emit_weight_only(model, _with_any_weights(plan))
    elif config.dynamic:
        emitted = emit_dynamic(model, plan)
    else:
        weights = [w.params for d in plan.decisions for w in d.weights]
        if any(params is None for params in (*plan.tensors.values(), *weights)):
            plan = build_plan(model, config, selection, _any_statistics(plan))
        metadata |= {"calibration.samples": "100", "calibration.sha256": json.dumps(["0" * 64])}
        emitted = emit(model, plan, format=config.format, dedicated_qdq=config.dedicated_qdq)
    called = {node: name for name, node in named_nodes(emitted, config) if name in known}
    return forecast(emitted, called, {f"qtool.{key}": text for key, text in metadata.items()})


def _any_statistics(plan: Plan) -> Statistics:
    """Statistics that say nothing, but differ from tensor to tensor, so that each gets parameters of its own."""
    import numpy as np

    from qtool.calibrate.statistics import Statistics, TensorStatistics

    made_up = {
        name: TensorStatistics.of(np.array([0.0, _REACH * (1 + number / 65536)], np.float32), histogram=True)
        for number, name in enumerate(plan.tensors)
    }
    return Statistics(made_up, 1)


def _with_any_weights(plan: Plan) -> Plan:
    """A plan of weight-only mode with parameters of the right type and shape, without a search for good ones."""
    import numpy as np

    from qtool.plan.stored import StoredWeight
    from qtool.qparams import QParams

    decisions, number = [], 0
    for decision in plan.decisions:
        weights = []
        for weight in decision.weights:
            assert isinstance(weight, StoredWeight), "Bug: not a plan of weight-only mode"
            assert weight.dtype is not None, "Bug: a stored weight without a type"
            assert weight.granularity is not None, "Bug: a stored weight without blocks"
            number += 1
            shape = weight.granularity.scale_shape(weight.arranged_shape)
            storage = np.float32 if weight.scale_type is None else weight.scale_type.numpy
            scale = np.full(shape, 2.0 ** -(number % 100), storage)
            zero = np.zeros(shape, weight.dtype.numpy)
            weights.append(replace(weight, params=QParams(weight.dtype, scale, zero, weight.granularity)))
        decisions.append(replace(decision, weights=tuple(weights)))
    return replace(plan, decisions=tuple(decisions))


def _four(total: Sequence[int]) -> tuple[int, int, int, int]:
    return total[0], total[1], total[2], total[3]
