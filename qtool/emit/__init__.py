"""Rewrite: from a prepared model and a plan to a quantized model."""

from __future__ import annotations

import onnx_ir as ir

from qtool.emit.constants import Codes
from qtool.emit.dynamic import DynamicRewriter
from qtool.emit.qdq import QdqRewriter
from qtool.emit.qlinear import QLinearRewriter
from qtool.emit.rewriter import Rewriter
from qtool.plan import Plan

EMITTERS: dict[str, type[Rewriter]] = {e.format: e for e in (QLinearRewriter, QdqRewriter)}

__all__ = ["EMITTERS", "Codes", "emit", "emit_dynamic"]


def emit(
    model: ir.Model,
    plan: Plan,
    *,
    format: str,  # noqa: A002 - ONNX's word
    dedicated_qdq: bool = False,
    codes: Codes | None = None,
) -> ir.Model:
    """Write a plan as nodes.

    Args:
        model: The prepared model that the plan was made for; it is not changed.
        plan: A plan with parameters.
        format: ``qlinear`` or ``qdq``.
        dedicated_qdq: One QuantizeLinear/DequantizeLinear pair for each reader instead of one for each tensor.
        codes: Keeps the codes of weights for other plans of the same model.

    Returns:
        A new model. Its quantized weights are lazy: their bytes are produced while it is saved.
    """
    if any(decision.written_as == "qlinear" for decision in plan.decisions):
        format = "qlinear"  # noqa: A001 - the others of the plan are marked
    return EMITTERS[format](model.clone(), plan, dedicated_pairs=dedicated_qdq, codes=codes).run()


def emit_dynamic(model: ir.Model, plan: Plan) -> ir.Model:
    """Write a plan of dynamic mode as nodes; see :func:`emit`."""
    return DynamicRewriter(model.clone(), plan).run()
