"""Decide about every node of the top graph and of the bodies of If, Loop and Scan."""

from __future__ import annotations

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.plan.accumulator import wrap_note
from qtool.plan.analysis import Graph, dims_of
from qtool.plan.dynamic.base import ACTIVATIONS, DynamicContext, DynamicHandler
from qtool.plan.dynamic.conv import ConvHandler
from qtool.plan.dynamic.gather import GatherHandler
from qtool.plan.dynamic.lstm import LstmHandler
from qtool.plan.dynamic.products import ProductHandler
from qtool.plan.ops.base import skip
from qtool.plan.ops.reasons import CONTROL_WALKED, reason
from qtool.plan.plan import Decision, Plan, Skip
from qtool.plan.selection import Selection
from qtool.prepare.graph_edits import all_graphs

_HANDLERS: dict[str, DynamicHandler] = {
    op_type: handler
    for handler in (ProductHandler(), ConvHandler(), LstmHandler(), GatherHandler())
    for op_type in handler.op_types
}
# what differs from static mode; everything else there stays float in both
_REASONS = {
    **dict.fromkeys(("GRU", "RNN"), ("the runtime has none with 8-bit weights", False)),
    **CONTROL_WALKED,
    "ConvTranspose": ("the runtime has no integer form of it", False),
}


def build_dynamic_plan(model: ir.Model, config: QuantConfig, selection: Selection) -> Plan:
    """Plan the dynamic quantization of a prepared model.

    Args:
        model: A model that was prepared with its bodies; it is only read.
        config: What the user asked for, with ``dynamic`` set.
        selection: The include and exclude patterns of ``config``, resolved against the user's model.

    Raises:
        ModelError: If a weight that would be quantized holds NaN or Inf.
    """
    decisions: list[Decision] = []
    skips: list[Skip] = []
    notes: list[str] = []
    total = 0
    for part in all_graphs(model):
        graph = Graph(part)
        ctx = DynamicContext(graph, config, selection)
        for node in graph.nodes:
            total += 1
            own = ctx
            if config.overrides:
                own = DynamicContext(graph, selection.config_for(node), selection)
            answer = _decide(node, own)
            if isinstance(answer, Skip):
                skips.append(answer)
                continue
            decisions.append(answer)
            note = _wrap_note(node, answer, graph)
            if note is not None:
                notes.append(note)
    return Plan(tuple(decisions), tuple(skips), {}, total, notes=tuple(notes))


def _decide(node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
    handler = _HANDLERS.get(node.op_type) if ctx.graph.is_default_domain(node) else None
    if handler is not None:
        why = ctx.selection.reason_to_skip(node)
        return skip(node, why) if why is not None else handler.plan(node, ctx)
    if ctx.graph.is_default_domain(node):
        text, expected = _REASONS.get(node.op_type) or reason(node.op_type, node.domain)
        if text.startswith("no handler"):
            text, expected = "it has no weights to multiply with", True
    else:
        text, expected = reason(node.op_type, node.domain)
    return skip(node, text, expected=expected)


def _wrap_note(node: ir.Node, decision: Decision, graph: Graph) -> str | None:
    if decision.op_type in ("LSTM", "Gather"):
        return None
    (weight,) = decision.weights
    constant = graph.constant(node.inputs[weight.index])
    assert constant is not None, "Bug: a planned weight is not constant"
    assert weight.params is not None, "Bug: a planned weight without parameters"
    dims = dims_of(constant)
    if decision.op_type == "Conv":
        depth = int(constant.size) // dims[0]
    else:
        depth = dims[-2] if weight.index == 1 and len(dims) > 1 else dims[-1]
    return wrap_note(decision.node, depth, ACTIVATIONS, weight.params.dtype.name)
