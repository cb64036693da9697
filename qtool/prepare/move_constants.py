"""Nodes that only move the elements of constants, computed by NumPy itself.

They are most of what exporters leave between a weight and its operator, and importing ``onnx.reference`` for them would
take a tenth of a short command. Forms that are rare, or differ between versions of an operator, are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import int_attribute

_Arrays = Sequence[np.ndarray | None]
_STANDARD = "fiub"


def move(node: ir.Node, inputs: _Arrays) -> tuple[np.ndarray] | None:
    """The output of such a node; None for any other node.

    Args:
        node: A node of ``ai.onnx``.
        inputs: One array per input, None where the input is left out.

    Raises:
        ValueError: If the node is not valid, or another error of NumPy.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or not inputs or inputs[0] is None:
        return None
    moved = rule(node, inputs)
    return None if moved is None else (moved,)


def _reshape(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    data, target = inputs if len(inputs) == 2 else (None, None)
    if data is None or target is None or int_attribute(node, "allowzero", 0):
        return None
    return data.reshape([data.shape[i] if d == 0 else int(d) for i, d in enumerate(target)])


def _transpose(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    attribute = node.attributes.get("perm")
    assert inputs[0] is not None
    return np.transpose(inputs[0], None if attribute is None else tuple(attribute.as_ints()))


def _unsqueeze(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    if len(inputs) < 2 or inputs[0] is None or inputs[1] is None or "axes" in node.attributes:
        return None
    return np.expand_dims(inputs[0], tuple(int(axis) for axis in inputs[1]))


def _concat(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    arrays = [array for array in inputs if array is not None]
    if len(arrays) < len(inputs) or "axis" not in node.attributes:
        return None
    return np.concatenate(arrays, int_attribute(node, "axis", 0))


def _slice(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    del node
    data, bounds = inputs[0], inputs[1:]
    if data is None or len(bounds) < 3 or any(array is None for array in bounds):
        return None
    starts, ends, axes, *rest = ([int(v) for v in array] for array in bounds if array is not None)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, rest[0] if rest else [1] * len(axes), strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


def _constant_of_shape(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    if inputs[0] is None or value.size != 1 or value.dtype.kind not in _STANDARD:
        return None
    return np.full([int(d) for d in inputs[0]], value.reshape(()), value.dtype)


def _cast(node: ir.Node, inputs: _Arrays) -> np.ndarray | None:
    to = ir.DataType(int_attribute(node, "to", 0)).numpy()
    if inputs[0] is None or inputs[0].dtype.kind not in _STANDARD or to.kind not in _STANDARD:
        return None
    return inputs[0].astype(to)


_RULES: dict[str, Callable[[ir.Node, _Arrays], np.ndarray | None]] = {
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Identity": lambda _, inputs: inputs[0],
    "Reshape": _reshape,
    "Slice": _slice,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
