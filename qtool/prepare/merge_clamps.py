"""Write what clamps a tensor as one Relu or Clip: Min(Max(x, 0), 6), Min(Relu(x), 6), Clip behind Clip.

    min(max(min(max(x, a), b), c), d) = min(max(x, min(max(a, c), d)), min(max(b, c), d))   for a <= b and c <= d

Exact. Some exporters write Relu6 so, and runtimes fuse only the one node. Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import (
    NameAllocator,
    PreparePass,
    absorb_follower,
    constant_array,
    constant_shape,
    input_at,
    is_float_type,
    is_onnx_op,
    new_constant,
    plural,
    sole_consumer,
)

_FIRST_OPSET = 11  # the bounds of Clip are inputs from here on


@dataclass(frozen=True)
class _Clamp:
    """One node as y = min(max(x, low), high)."""

    data: ir.Value
    low: float
    high: float
    dtype: ir.DataType


class MergeClampsPass(PreparePass):
    """Merge chains of Relu, Clip, Min and Max with constant bounds; a Max with 0 alone becomes a Relu.

    A value between two of them that is a graph output, captured or read by another node keeps them apart.
    """

    def describe(self) -> str:
        """One line for the nodes that became part of a Relu or Clip."""
        return f"wrote {plural(self.count, 'clamp')} (Min, Max, Relu, Clip) as Relu or Clip"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once; what a chain has become is compared with the node behind it."""
        names, before = NameAllocator(model), self.count
        if model.graph.opset_imports.get("", 0) < _FIRST_OPSET:
            return ir.passes.PassResult(model, modified=False)
        for graph in self.scope(model):
            for node in graph:
                clamp = _clamp(node)
                if clamp is None:
                    continue
                self._take_followers(node, clamp, graph, names)
        return ir.passes.PassResult(model, modified=self.count > before)

    def _take_followers(self, node: ir.Node, clamp: _Clamp, graph: ir.Graph, names: NameAllocator) -> None:
        merged = clamp
        while (follower := sole_consumer(node.outputs[0])) is not None and (behind := _clamp(follower)) is not None:
            if behind.data is not node.outputs[0] or behind.dtype != clamp.dtype:
                break
            low, high = (min(max(bound, behind.low), behind.high) for bound in (merged.low, merged.high))
            merged = _Clamp(clamp.data, low, high, clamp.dtype)
            absorb_follower(node, follower)
            self.count += 1
        if merged is not clamp or (node.op_type == "Max" and (merged.low, merged.high) == (0.0, math.inf)):
            self.count += 1
            _write(node, merged, graph, names)


def _clamp(node: ir.Node) -> _Clamp | None:
    """A node that only clamps, with finite or infinite bounds in order; None for any other."""
    data = input_at(node, 0)
    low, high = -math.inf, math.inf
    if is_onnx_op(node, "Relu"):
        low = 0.0
    elif is_onnx_op(node, "Clip"):
        for index in (1, 2):
            value = input_at(node, index)
            if value is None:
                continue
            bound = _number(value, scalar=True)
            if bound is None:
                return None
            low, high = (bound, high) if index == 1 else (low, bound)
    elif is_onnx_op(node, "Min", "Max") and len(node.inputs) == 2:
        index = 1 if _number(node.inputs[1]) is not None else 0
        bound, data = _number(node.inputs[index]), node.inputs[1 - index]
        if bound is None or data is None or not _keeps_shape(data, node.inputs[index]):
            return None
        low, high = (bound, high) if node.op_type == "Max" else (low, bound)
    else:
        return None
    dtype = None if data is None else data.dtype
    if data is None or dtype is None or not is_float_type(dtype) or not low <= high or constant_shape(data) is not None:
        return None
    return _Clamp(data, low, high, dtype)


def _number(value: ir.Value | None, *, scalar: bool = False) -> float | None:
    """The one element of a float constant, not NaN."""
    shape = constant_shape(value)
    if shape is None or math.prod(shape) != 1 or (scalar and shape not in ((), (1,))):
        return None
    array = constant_array(value)
    assert array is not None, "Bug: not a constant"
    if array.dtype.kind not in "fV":
        return None
    number = float(array.reshape(-1)[0])
    return None if math.isnan(number) else number


def _keeps_shape(data: ir.Value, bound: ir.Value | None) -> bool:
    """Whether a bound of some shape (1, .., 1) adds no dimension to the data."""
    shape = constant_shape(bound)
    assert shape is not None, "Bug: not a constant"
    return not shape or (data.shape is not None and len(shape) <= len(data.shape))


def _write(node: ir.Node, clamp: _Clamp, graph: ir.Graph, names: NameAllocator) -> None:
    """Let the node be what the clamp says; it keeps its name and its output."""
    relu = (clamp.low, clamp.high) == (0.0, math.inf)
    node.op_type = "Relu" if relu else "Clip"
    bounds = [] if relu else [clamp.low, clamp.high]
    node.resize_inputs(1 + len(bounds))
    node.replace_input_with(0, clamp.data)
    for index, (bound, suffix) in enumerate(zip(bounds, ("min", "max"), strict=False), 1):
        value = None
        if math.isfinite(bound):
            array = np.asarray(bound, dtype=clamp.dtype.numpy())
            value = new_constant(graph, names, f"{node.name}_{suffix}", array, clamp.dtype)
        node.replace_input_with(index, value)
    while node.inputs and node.inputs[-1] is None:
        node.resize_inputs(len(node.inputs) - 1)
