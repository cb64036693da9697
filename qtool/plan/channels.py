"""What the readers of a tensor make of its errors: the energy of their weights by channel, and the cost of clipping.

These are facts of the prepared graph, whatever is selected for quantization; so statistics that were saved under one
selection serve another. They are kept with the statistics of a tensor, where the range method ``auto`` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.calibrate.wanted import Wanted
from qtool.plan.analysis import Graph, dims_of
from qtool.plan.bodies import planned_graphs, planned_values
from qtool.plan.pointwise import unseen_below

# How much more the squared error of a clipped value counts, by what reads it. Values that are clipped lie on the same
# channels at neighbouring places: a window adds up their errors, and a query of an attention those of all positions.
# Rough figures from changes of one tensor's range at a time: clipping the inputs of minilm_l6_v2's queries and keys
# cost ten times what the squares say, clipping those of its feed-forward layers no more than they say.
WINDOW = 2.0
ATTENTION = 8.0

_LAYOUT = frozenset(
    ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Expand", "Cast", "Tile")
)
_ELEMENTWISE = frozenset(
    (
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Neg",
            "Pow",
            "Sqrt",
            "Exp",
            "Erf",
            "Tanh",
            "Sigmoid",
            "Softplus",
            "Relu",
            "Clip",
        ),
        *("LeakyRelu", "HardSigmoid", "HardSwish", "Gelu", "Mish", "Swish", "PRelu", "Elu"),
    )
)
# what lies between a projection and the product of queries and keys: layout, bias, scale, rotary embedding, norms
_TO_ATTENTION = _LAYOUT | frozenset(
    ("Add", "Sub", "Mul", "Div", "Neg", "Concat", "Gather", "LayerNormalization", "RMSNormalization", "ReduceMean",
     "Pow", "Sqrt", "Reciprocal")
)  # fmt: skip
_ATTENTION = frozenset(("Attention", "MultiHeadAttention", "GroupQueryAttention"))
_MAXIMA = frozenset(("GlobalMaxPool", "ReduceMax", "ArgMax"))
_SEARCH_LIMIT = 256


def wanted_of(model: ir.Model, tensors: Iterable[str]) -> list[Wanted]:
    """What is to be observed of some tensors of a prepared model, in their order.

    Args:
        model: A prepared model; it is only read.
        tensors: Names of inputs and node outputs of its graph and of the branches of If; other names get no channels.
    """
    values = planned_values(model)
    maxima = frozenset[str]().union(*(_only_maxima(graph) for graph in planned_graphs(model)))
    weights = _Weights()
    found = []
    for name in tensors:
        if name not in values:
            found.append(Wanted(name))
            continue
        graph, value = values[name]
        axis, energy = _channels(graph, value, weights)
        weight = math.inf if name in maxima else _clip_weight(graph, value)
        found.append(Wanted(name, axis, energy, weight, unseen_below(graph, value), _coherence(graph, value, weights)))
    return found


class _Weights:
    """The weight that was asked for last: several questions are asked of each, and reading it may mean its file."""

    def __init__(self) -> None:
        self._value: ir.Value | None = None
        self._array: npt.NDArray[Any] | None = None

    def finite(self, graph: Graph, value: ir.Value | None) -> npt.NDArray[np.float32] | None:
        """A constant of float32; None if the value is no such thing, or not finite: refused where it is quantized."""
        if value is None or graph.constant(value) is None:
            return None
        if value is not self._value:
            self._value = self._array = None  # never two in memory
            array = graph.array(value)
            if array is not None and array.dtype == np.float32 and np.isfinite(array).all():
                self._array = array
            self._value = value
        return self._array


def _channels(graph: Graph, value: ir.Value, weights: _Weights) -> tuple[int | None, npt.NDArray[np.float64] | None]:
    """Channel axis and energies of the weighted readers, summed; None where there are none, or they disagree."""
    axis: int | None = None
    total: npt.NDArray[np.float64] | None = None
    for use in value.uses():
        if use.node.graph is not graph.ir:
            continue
        own = _channels_of_reader(graph, use.node, use.idx, graph.rank(value), weights)
        if own is None:
            continue
        if total is None:
            axis, total = own
        elif axis != own[0] or len(total) != len(own[1]):
            return None, None
        else:
            total = total + own[1]
    if total is None:
        return axis, None
    # to float32 and back: sums that were added up in another order shall be the same number
    return axis, np.minimum(total, np.finfo(np.float32).max).astype(np.float32).astype(np.float64)


def _channels_of_reader(
    graph: Graph, node: ir.Node, index: int, rank: int | None, weights: _Weights
) -> tuple[int, npt.NDArray[np.float64]] | None:
    """(axis, ||W[:, j]||^2) of one weighted reader of a value, given as its input ``index``."""
    if node.op_type not in ("Conv", "MatMul", "Gemm") or not graph.is_default_domain(node) or len(node.inputs) < 2:
        return None
    weight = weights.finite(graph, node.inputs[1 - index]) if index < 2 else None
    if weight is None or not weight.size or rank == 1:
        return None
    if node.op_type == "Conv":
        return (1, _conv_energy(node, weight)) if index == 0 and weight.ndim > 2 else None
    if weight.ndim < 2:
        return None
    if node.op_type == "MatMul":
        # x W: a row of W for each channel; W x: a column, and channels on the last axis but one
        return (-1, _energy(weight, weight.ndim - 2)) if index == 0 else (-2, _energy(weight, weight.ndim - 1))
    flipped = bool(_integer(node, "transB" if index == 0 else "transA", 0))
    own_flipped = bool(_integer(node, "transA" if index == 0 else "transB", 0))
    if index == 0:
        return -2 if own_flipped else -1, _energy(weight, 1 if flipped else 0)
    return -1 if own_flipped else -2, _energy(weight, 0 if flipped else 1)


def _energy(weight: npt.NDArray[np.float32], axis: int) -> npt.NDArray[np.float64]:
    """Sums of squares along all axes but one, shape (size of that axis,)."""
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def _conv_energy(node: ir.Node, weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Of each input channel of a Conv, whose weight has shape (M, C / groups, ...)."""
    groups = _integer(node, "group", 1)
    if weight.shape[0] % groups:
        return np.zeros(0)
    parts = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return np.asarray(np.einsum("gmck,gmck->gc", parts, parts, dtype=np.float64)).reshape(-1)


def _clip_weight(graph: Graph, value: ir.Value) -> float:
    """The largest weight that a reader asks for."""
    largest = 1.0
    for use in value.uses():
        node = use.node
        if node.graph is not graph.ir or not graph.is_default_domain(node) or use.idx > 1:
            continue
        constant = graph.constant(node.inputs[1 - use.idx]) if len(node.inputs) > 1 else None
        if constant is None:
            continue
        if node.op_type == "Conv" and use.idx == 0 and math.prod(dims_of(constant)[2:]) > 1:
            largest = max(largest, WINDOW)
        elif node.op_type in ("MatMul", "Gemm") and _leads_to_attention(graph, node):
            largest = max(largest, ATTENTION)
    return largest


def _coherence(graph: Graph, value: ir.Value, weights: _Weights) -> float:
    """How much more the square of a mean error counts at the weighted readers; see :class:`Wanted`."""
    squares = sums = 0.0
    for use in value.uses():
        node, index = use.node, use.idx
        weight = weights.finite(graph, node.inputs[1 - index]) if _is_product(graph, node, index) else None
        if weight is None or weight.ndim < 2:
            continue
        summed: tuple[int, ...]
        if node.op_type == "Conv":
            summed = tuple(range(1, weight.ndim))
        elif node.op_type == "Gemm":
            flipped = bool(_integer(node, "transB" if index == 0 else "transA", 0))
            summed = (1,) if flipped == (index == 0) else (0,)
        else:
            summed = (weight.ndim - 2,) if index == 0 else (weight.ndim - 1,)
        sums += float(np.square(weight.sum(axis=summed, dtype=np.float64)).sum())
        squares += float(_energy(weight, 0).sum())
    if not 0.0 < squares < math.inf or not math.isfinite(sums):
        return 0.0
    return float(np.float32(max(0.0, sums / squares - 1.0)))


def _is_product(graph: Graph, node: ir.Node, index: int) -> bool:
    """Whether a node multiplies its input ``index`` by its other one."""
    return (
        node.op_type in ("Conv", "MatMul", "Gemm")
        and node.graph is graph.ir
        and graph.is_default_domain(node)
        and index < (1 if node.op_type == "Conv" else 2)
        and len(node.inputs) > 1
    )


def _leads_to_attention(graph: Graph, projection: ir.Node) -> bool:
    """Whether a product of two activations reads what a projection computes, before another layer does."""
    frontier, seen = list(projection.outputs), set[int]()
    while frontier and len(seen) < _SEARCH_LIMIT:
        for use in frontier.pop().uses():
            node = use.node
            if id(node) in seen or node.graph is not graph.ir:
                continue
            seen.add(id(node))
            if node.op_type in _ATTENTION:
                return True
            if node.op_type == "MatMul" and all(graph.constant(v) is None for v in node.inputs):
                return True
            if node.op_type in _TO_ATTENTION:
                frontier.extend(node.outputs)
    return False


def _only_maxima(graph: Graph) -> frozenset[str]:
    """Values of which every path leads, element by element, to an operator that keeps the largest one."""
    found: set[str] = set()
    for value in [o for node in reversed(graph.nodes) for o in node.outputs] + list(graph.ir.inputs):
        if (
            value.uses()
            and not value.is_graph_output()
            and all(_keeps_maxima(graph, u.node, found) for u in value.uses())
        ):
            found.add(value.name or "")
    return frozenset(found)


def _keeps_maxima(graph: Graph, node: ir.Node, found: set[str]) -> bool:
    if node.graph is not graph.ir or not graph.is_default_domain(node):
        return False
    passes = node.op_type in _LAYOUT or node.op_type in _ELEMENTWISE
    return node.op_type in _MAXIMA or (passes and all(output.name in found for output in node.outputs))


def _integer(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default
