"""Write a Resize of some axes as a Resize of all: scales of 1, or the other axes' own sizes.

The two are the same function. onnxruntime (1.32) moves every Resize near an integer Conv to channels-last order, and
leaves ``axes`` as they were: such a model does not load, or resizes the wrong axes. Scope: the top graph, and bodies
on request.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import (
    NameAllocator,
    PreparePass,
    constant_array,
    input_at,
    is_onnx_op,
    new_constant,
    new_node,
    plural,
    string_attribute,
)

_ROI, _SCALES, _SIZES = 1, 2, 3


class NormalizeResizePass(PreparePass):
    """Take the attribute ``axes`` away; where the input's rank is unknown, or the result would differ, it stays."""

    def describe(self) -> str:
        """One line for the rewritten nodes."""
        return f"wrote {plural(self.count, 'Resize')} without 'axes'"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once."""
        names, before = NameAllocator(model), self.count
        for graph in self.scope(model):
            for node in graph:
                if is_onnx_op(node, "Resize") and "axes" in node.attributes and _Resize(node, graph, names).rewrite():
                    self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)


class _Resize:
    """One node on its way."""

    def __init__(self, node: ir.Node, graph: ir.Graph, names: NameAllocator) -> None:
        self.node, self.graph, self.names = node, graph, names
        x = node.inputs[0]
        shape = x.shape if x is not None else None
        self.dims = [] if shape is None else [d if isinstance(d, int) else None for d in shape.dims]
        self.axes = [int(a) % max(len(self.dims), 1) for a in node.attributes["axes"].as_ints()]

    def rewrite(self) -> bool:
        if not self.dims or len(set(self.axes)) != len(self.axes):
            return False
        roi = self._full_roi()
        if isinstance(roi, str):
            return False
        policy = string_attribute(self.node, "keep_aspect_ratio_policy", "stretch")
        scales, sizes = input_at(self.node, _SCALES), input_at(self.node, _SIZES)
        if sizes is None:
            if scales is None or not self._set_scales(scales):
                return False
        elif policy == "stretch":
            self._set_sizes(sizes)
        elif not self._set_proportional(sizes, policy):
            return False
        if roi is not None:
            self._set(_ROI, new_constant(self.graph, self.names, f"{self.node.name}_roi", roi, _ir_type(roi)))
        self.node.attributes.pop("axes")
        self.node.attributes.pop("keep_aspect_ratio_policy", None)
        return True

    def _full_roi(self) -> np.ndarray | str | None:
        """The region of all axes, where the node has one; a reason if it is not constant."""
        if string_attribute(self.node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
            return None
        given = constant_array(input_at(self.node, _ROI))
        rank = len(self.dims)
        if given is None or given.shape != (2 * len(self.axes),):
            return "its region is not constant"
        roi = np.concatenate([np.zeros(rank), np.ones(rank)]).astype(given.dtype)
        roi[self.axes] = given[: len(self.axes)]
        roi[[rank + a for a in self.axes]] = given[len(self.axes) :]
        return roi

    def _set_scales(self, scales: ir.Value) -> bool:
        ones = np.ones(len(self.dims), np.float32)
        given = constant_array(scales)
        if given is None:
            self._set(_SCALES, self._scatter(self._constant("ones", ones), scales))
            return True
        if given.shape != (len(self.axes),):
            return False
        ones[self.axes] = given
        self._set(_SCALES, self._constant("scales", ones))
        return True

    def _set_sizes(self, sizes: ir.Value) -> None:
        given = constant_array(sizes)
        others = [d for axis, d in enumerate(self.dims) if axis not in self.axes]
        if given is not None and all(d is not None for d in others):
            full = np.asarray([d or 0 for d in self.dims], np.int64)
            full[self.axes] = given
            self._set(_SIZES, self._constant("sizes", full))
            return
        shape = new_node(self.names, "Shape", [self.node.inputs[0]], base=f"{self.node.name}_Shape", origin=self.node)
        shape.outputs[0].dtype = ir.DataType.INT64
        self.graph.insert_before(self.node, shape)
        self._set(_SIZES, self._scatter(shape.outputs[0], sizes))

    def _set_proportional(self, sizes: ir.Value, policy: str) -> bool:
        """One scale for all axes, as large as the sizes allow: a Resize by scales, if that rounds to the same sizes."""
        given, dims = constant_array(sizes), [self.dims[a] for a in self.axes]
        if given is None or given.shape != (len(dims),):
            return False
        known = [d for d in dims if d]
        if len(known) != len(dims):
            return False
        ratios = [np.float32(size) / np.float32(d) for size, d in zip(given, known, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        if any(math.floor(np.float32(scale * np.float32(d))) != math.floor(float(scale) * d + 0.5) for d in known):
            return False
        scales = np.ones(len(self.dims), np.float32)
        scales[self.axes] = scale
        self._set(_SCALES, self._constant("scales", scales))
        self.node.replace_input_with(_SIZES, None)
        return True

    def _scatter(self, data: ir.Value, updates: ir.Value) -> ir.Value:
        axes = self._constant("axes", np.asarray(self.axes, np.int64))
        node = new_node(
            self.names,
            "ScatterElements",
            [data, axes, updates],
            base=f"{self.node.name}_ScatterElements",
            origin=self.node,
        )
        if data.dtype is not None:
            node.outputs[0].dtype = data.dtype
        self.graph.insert_before(self.node, node)
        return node.outputs[0]

    def _constant(self, what: str, array: np.ndarray) -> ir.Value:
        return new_constant(self.graph, self.names, f"{self.node.name}_{what}", array, _ir_type(array))

    def _set(self, index: int, value: ir.Value) -> None:
        self.node.replace_input_with(index, value)


def _ir_type(array: np.ndarray) -> ir.DataType:
    return ir.DataType.from_numpy(array.dtype)
