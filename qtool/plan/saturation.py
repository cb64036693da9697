"""Layers that a processor without VNNI would compute wrongly, and the 7-bit weights that prevent it.

``vpmaddubsw`` adds a0*w0 + a1*w1 in int16, with a in 0..255. Codes of weights within -64..64 can never overflow it:
255 * 128 = 32640. Pairs are neighbours along K as onnxruntime packs it: rows of a MatMul's weight as they are, those of
a Conv by place in the kernel and then by channel, group by group. Its depthwise Convs multiply in 16 bits and are
exact, and so are products of other signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool import kernels
from qtool.granularity import PerAxis
from qtool.plan.analysis import Graph
from qtool.plan.plan import Decision, Form, Plan, WeightPlan
from qtool.plan.receptive import Geometry, geometry_of
from qtool.qparams import QParams

Array = npt.NDArray[Any]

# Rows of a layer's input that are looked at in one sample, evenly spaced. Their memory is bounded by this times K.
ROWS_PER_SAMPLE = 512
ROWS = 2048  # in all samples
SEVEN_BITS = 64
_HIGHEST, _LOWEST = 32767, -32768


@dataclass
class Layer:
    """A product whose int16 sums can overflow, and what was seen of it.

    Attributes:
        node: Name of the node.
        tensor: The activation that it reads.
        params: Parameters of that activation.
        matrices: Weight codes as (K, N) matrices in the order of K that the runtime packs: one for each group of a
            Conv, and for each matrix of a batched weight.
        geometry: How a Conv's rows follow from its input; None for a product of matrices.
        pairs: Pairs of products looked at.
        saturated: Those that left int16.
        open: For each matrix, the columns that could saturate and have not come near; the others are counted only
            until one sum of the layer has left int16.
        channels: Those of the output in which a sum came near: it would leave int16 if codes were a quarter larger.
        waiting: Rows that are not counted yet: they are counted together, because a few at a time take long.
    """

    node: str
    tensor: str
    params: QParams
    matrices: list[npt.NDArray[np.int8]]
    geometry: Geometry | None = None
    pairs: int = 0
    saturated: int = 0
    waiting: list[list[Array]] = field(default_factory=list)
    open: list[npt.NDArray[np.intp]] = field(init=False)
    channels: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.open = [np.flatnonzero(saturable_columns(matrix)) for matrix in self.matrices]
        groups = 1 if self.geometry is None else len(self.matrices)  # a stack of matrices has one set of channels
        self.channels = np.zeros(groups * self.matrices[0].shape[1], np.bool_)

    def observe(self, x: Array, *, limit: int = ROWS_PER_SAMPLE, num_threads: int | None = None) -> None:
        """Look at the activation of one batch, of the shape that the node reads; at ``limit`` of its rows.

        A layer that is decided is not looked at again; :meth:`count` comes after the last batch.
        """
        if self.decided:
            return
        codes = kernels.quantize(np.ascontiguousarray(x), self.params.scale, self.params.zero_point)
        if self.geometry is not None:
            parts = self.geometry.rows(codes, int(self.params.zero_point), limit=limit)
        else:
            rows = codes.reshape(-1, codes.shape[-1])
            parts = [rows[_spaced(len(rows), limit)]] * len(self.matrices)
        self.waiting.append(parts)
        if sum(len(one[0]) for one in self.waiting) >= ROWS_PER_SAMPLE:
            self.count(num_threads=num_threads)

    def count(self, *, num_threads: int | None = None) -> None:
        """Count in the rows that wait for it."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        for group, matrix in enumerate(self.matrices):
            columns = self.open[group]
            first = 0 if self.geometry is None else group * matrix.shape[1]
            marked = self.channels[first : first + matrix.shape[1]]
            watched = np.flatnonzero(marked) if not self.saturated else np.zeros(0, np.intp)
            if not len(columns) + len(watched):
                continue
            rows = np.concatenate([parts[group] for parts in waiting])
            self.pairs += len(rows) * -(-matrix.shape[0] // 2) * len(np.union1d(columns, watched))
            near = kernels.count_saturating_pairs(_grown(rows), matrix[:, columns], num_threads=num_threads) > 0
            marked[columns[near]] = True
            self.open[group] = columns[~near]
            # sums that are not near are in range: only pairs of one sign can leave it, and those grow with their codes
            watched = np.union1d(watched, columns[near])
            if len(watched):
                counts = kernels.count_saturating_pairs(rows, matrix[:, watched], num_threads=num_threads)
                self.saturated += int(counts.sum())

    @property
    def decided(self) -> bool:
        """Whether further rows would change nothing."""
        return self.saturated > 0 and not any(map(len, self.open))


def saturable_layers(model: ir.Model, plan: Plan) -> list[Layer]:
    """The layers of a plan with parameters in which some activation could overflow int16; the others need no check."""
    graph = Graph(model.graph)
    found = []
    for decision in plan.decisions:
        layer = _layer(graph, plan, decision)
        if layer is not None and any(can_saturate(matrix) for matrix in layer.matrices):
            found.append(layer)
    return found


def with_seven_bits(model: ir.Model, plan: Plan, layers: Sequence[Layer], *, checked: int) -> Plan:
    """Give layers 7-bit weights where they saturated, or all of them if there was nothing to check them on.

    Args:
        model: The prepared model.
        plan: A plan with parameters.
        layers: Of :func:`saturable_layers`.
        checked: Number of samples that they were observed on.
    """
    graph = Graph(model.graph)
    chosen = {layer.node: layer for layer in layers if layer.saturated or not checked}
    decisions = []
    for decision in plan.decisions:
        layer = chosen.get(decision.node)
        decisions.append(decision if layer is None else _narrowed(graph, decision, layer, checked=bool(checked)))
    return replace(plan, decisions=tuple(decisions), notes=(*plan.notes, _summary(layers, chosen, checked)))


def _narrowed(graph: Graph, decision: Decision, layer: Layer, *, checked: bool) -> Decision:
    array = graph.weight(_weight_value(graph, decision))
    channels = layer.channels if checked else np.ones_like(layer.channels)
    weight = replace(decision.weights[0], params=_seven_bits(decision.weights[0], array, channels))
    seen = f"{layer.saturated} of {layer.pairs} int16 sums saturate" if checked else "int16 sums could saturate"
    why = f"7-bit weights: {seen} without VNNI"
    note = f"{decision.note}; {why}" if decision.note else why
    return replace(decision, weights=(weight, *decision.weights[1:]), note=note)


def _summary(layers: Sequence[Layer], chosen: dict[str, Layer], checked: int) -> str:
    names = ", ".join(list(chosen)[:3]) + (f" and {len(chosen) - 3} more" if len(chosen) > 3 else "")
    where = f"{len(chosen)} layer{'' if len(chosen) == 1 else 's'} ({names})"
    if not layers:
        return "no int16 sum can saturate without VNNI: all weights keep 8 bits"
    if not checked:
        return f"no samples are at hand to check int16 sums on: 7-bit weights wherever they could saturate, in {where}"
    samples = "one sample" if checked == 1 else f"{checked} samples"
    if not chosen:
        return f"no int16 sum saturates without VNNI on {samples}: all weights keep 8 bits"
    return f"int16 sums saturate without VNNI on {samples}: 7-bit weights in {where}"


def _layer(graph: Graph, plan: Plan, decision: Decision) -> Layer | None:
    """What there is to check about a decision: a constant int8 weight on the right of a uint8 activation."""
    if decision.form is not Form.OPERATOR or not decision.weights or not decision.inputs:
        return None
    weight, (_, tensor) = decision.weights[0], decision.inputs[0]
    params = plan.tensors[tensor]
    assert params is not None, "Bug: a plan without parameters"
    assert weight.params is not None, "Bug: a planned weight without parameters"
    if weight.as_activation or (params.dtype.name, weight.params.dtype.name) != ("uint8", "int8"):
        return None
    node = graph.by_name[decision.node]
    codes = _codes(graph.weight(_weight_value(graph, decision)), weight)
    if decision.op_type != "Conv":
        stack = codes.reshape(-1, *codes.shape[-2:]) if codes.ndim > 1 else codes.reshape(1, -1, 1)
        return Layer(decision.node, tensor, params, list(stack))
    geometry = geometry_of(node, codes.shape)
    channels = codes.shape[1]
    if channels == 1 and geometry.groups == codes.shape[0] > 1:
        return None
    by_group = codes.reshape(geometry.groups, -1, channels, math.prod(codes.shape[2:]))
    matrices = [part.transpose(2, 1, 0).reshape(-1, part.shape[0]) for part in by_group]
    return Layer(decision.node, tensor, params, matrices, geometry)


def _weight_value(graph: Graph, decision: Decision) -> ir.Value:
    value = graph.by_name[decision.node].inputs[decision.weights[0].index]
    assert value is not None, "Bug: a planned weight is missing"
    return value


def _codes(array: Array, weight: WeightPlan) -> npt.NDArray[np.int8]:
    params = weight.params
    assert params is not None, "Bug: a planned weight without parameters"
    axis = params.granularity.axis if isinstance(params.granularity, PerAxis) else 1
    codes: npt.NDArray[np.int8] = kernels.quantize(array, params.scale, params.zero_point, axis=axis)
    return codes


def can_saturate(matrix: npt.NDArray[np.int8]) -> bool:
    """Whether some activation makes a pair of the matrix leave int16."""
    return bool(saturable_columns(matrix).any())


def saturable_columns(matrix: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """In which columns of (K, N) some activation makes a pair leave int16."""
    wide = matrix.astype(np.int16)
    if len(wide) % 2:
        wide = np.concatenate([wide, np.zeros((1, wide.shape[1]), np.int16)])
    high, low = np.maximum(wide, 0), np.minimum(wide, 0)
    most, least = high[0::2] + high[1::2], low[0::2] + low[1::2]
    leaves: npt.NDArray[np.bool_] = (most > _HIGHEST // 255) | (least < -(-_LOWEST // 255))
    return np.asarray(leaves.any(axis=0))


def _seven_bits(weight: WeightPlan, array: Array, channels: npt.NDArray[np.bool_]) -> QParams:
    """Scales under which no code of some channels lies beyond 64; one that was raised for a bias may be enough."""
    params = weight.params
    assert params is not None, "Bug: a planned weight without parameters"
    axes = tuple(range(array.ndim))
    if isinstance(params.granularity, PerAxis):
        axes = tuple(axis for axis in axes if axis != params.granularity.axis)
    needed = np.abs(array).max(axis=axes).astype(np.float64) / SEVEN_BITS
    if needed.shape == channels.shape:
        needed = np.where(channels, needed, 0.0)
    scale = np.maximum(params.scale.astype(np.float64), needed).astype(np.float32)
    return QParams(params.dtype, np.asarray(scale), params.zero_point, params.granularity)


def _grown(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes a quarter larger, as far as there are such: what samples that are not looked at may hold."""
    wide = codes.astype(np.uint16)
    grown: npt.NDArray[np.uint8] = np.minimum(wide + (wide + 3) // 4, 255).astype(np.uint8)
    return grown


def _spaced(count: int, limit: int) -> npt.NDArray[np.intp]:
    """Up to ``limit`` of ``count`` indices, evenly spaced, the first and the last among them."""
    wanted = min(count, limit)
    return np.linspace(0, max(count - 1, 0), wanted).astype(np.intp)
