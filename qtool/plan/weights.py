"""Parameters of constant operands, and the repair that keeps an int32 bias inside int32 (numerics.md 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qtool.dtypes import QDType
from qtool.granularity import Granularity, PerAxis, PerTensor
from qtool.plan.analysis import Graph
from qtool.plan.plan import Plan, WeightPlan
from qtool.prepare.graph_edits import all_graphs
from qtool.qparams import QParams, activation_qparams, symmetric_qparams

# the other half of int32 is for the products that are added to it: their sum must not wrap around
BIAS_MAX = 2**30


def weight_parameters(
    plan: WeightPlan,
    value: ir.Value,
    graph: Graph,
    *,
    weights: QDType,
    activations: QDType,
    per_channel: bool,
    symmetric: bool,
) -> QParams:
    """Scale and zero point of one constant operand; ``symmetric`` is about those that take the activations' type.

    Raises:
        ModelError: If the operand holds a NaN or an infinity.
    """
    array = graph.weight(value)
    if plan.as_activation:
        return activation_qparams(float(array.min()), float(array.max()), activations, symmetric=symmetric)
    granularity: Granularity = PerTensor()
    axes: tuple[int, ...] = tuple(range(array.ndim))
    if plan.axis is not None and per_channel:
        granularity = PerAxis(plan.axis)
        axes = tuple(i for i in axes if i != plan.axis)
    return symmetric_qparams(array.min(axis=axes), array.max(axis=axes), weights, granularity=granularity)


def check_finite(model: ir.Model, plan: Plan) -> None:
    """Refuse weights and biases that cannot be quantized, before calibration trips over what they make of activations.

    Raises:
        ModelError: If one holds a NaN or an infinity; the message names it and the first index.
    """
    graph = Graph(model.graph)
    nodes = {node.name or "": node for one in all_graphs(model) for node in one}
    for decision in plan.decisions:
        operands = [(decision.node, weight.index) for weight in decision.weights]
        if decision.bias is not None:
            operands.append((decision.bias.node, decision.bias.index))
        for name, index in operands:
            value = nodes[name].inputs[index]
            assert value is not None, "Bug: a planned operand is missing"
            graph.weight(value)


def repair_for_bias(
    plan: WeightPlan, bias: np.ndarray[tuple[int, ...], np.dtype[np.float32]], input_scale: float
) -> tuple[WeightPlan, int]:
    """Raise the weight scales of channels whose bias would not fit int32, or leave no room for the products.

    The bias is stored as rint(b / (sx*sw[c])). Where that exceeds 2^30 the channel's own scale is raised by the ratio
    that is missing; its weights are tiny beside its bias, so their lost resolution does not show.

    A scale is also raised where its product with sx would not be a normal number: the bias is divided by it.

    Returns:
        The plan, with new parameters where needed, and the number of channels whose bias did not fit.
    """
    assert plan.params is not None, "Bug: no parameters to repair"
    scale = plan.params.scale.astype(np.float64)
    magnitude = np.abs(bias.astype(np.float64)).reshape(-1)
    needed = magnitude / (input_scale * BIAS_MAX)
    if scale.ndim == 0:
        needed = np.asarray(needed.max(initial=0.0))
    repaired = np.maximum(np.maximum(scale, needed), _least_scale(input_scale))
    if (repaired == scale).all():
        return plan, 0
    params = QParams(plan.params.dtype, repaired.astype(np.float32), plan.params.zero_point, plan.params.granularity)
    return replace(plan, params=params), int((needed > scale).sum())


def is_least_scale(plan: WeightPlan, input_scale: float) -> bool:
    """Whether a scale is the least that :func:`repair_for_bias` allows, and may have been raised to it."""
    assert plan.params is not None, "Bug: no parameters"
    return bool((plan.params.scale <= np.float32(_least_scale(input_scale))).any())


def _least_scale(input_scale: float) -> float:
    return 2.0 * float(np.finfo(np.float32).tiny) / input_scale
