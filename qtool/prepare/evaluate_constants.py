"""Compute one node whose inputs are all known.

The evaluator is ``onnx.reference``, but for what only moves elements (``move_constants.py``). It is exact for moving,
casting and elementary arithmetic, which is what exporters leave between a weight and its operator. Where it departs
from the standard (integer division, casts out of range) the node is not evaluated, and neither is any operator that is
not listed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qtool.prepare.move_constants import move

MAX_GROWTH_BYTES = 1 << 20

# Moves elements, whatever their type is.
_MOVERS = (
    *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Concat", "Gather"),
    *("GatherElements", "GatherND", "Expand", "Tile", "ConstantOfShape", "Shape", "Size", "Where", "Trilu"),
)
# Exact in any order of evaluation, or correctly rounded by IEEE 754.
_ARITHMETIC = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "Min", "Max", "Sign"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "Range", "Cast"),
    *("ReduceMax", "ReduceMin", "ReduceProd"),
)
# The standard leaves the last bits open: any order of summation is right.
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "Pow", "Exp")

EVALUATED_OPS = frozenset((*_MOVERS, *_ARITHMETIC, *_REDUCTIONS))
_BROADCASTING = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Where", "And", "Or", "Xor"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    )
)


def expanded_bytes(node: ir.Node, inputs: Sequence[np.ndarray | None]) -> int:
    """The size of the output of a node that can make much out of little; 0 for any other node."""
    arrays = [a for a in inputs if a is not None]
    try:
        match node.op_type:
            case "ConstantOfShape":
                return math.prod(int(d) for d in arrays[0]) * 8
            case "Range":
                start, limit, delta = (a.item() for a in arrays)
                return 8 * max(math.ceil(float(limit - start) / float(delta)), 0)
            case "Expand":
                shape = np.broadcast_shapes(arrays[0].shape, tuple(int(d) for d in arrays[1]))
            case "Tile":
                shape = tuple(d * int(r) for d, r in zip(arrays[0].shape, arrays[1], strict=True))
            case "Gather":
                axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
                shape = (arrays[1].size, *np.delete(arrays[0].shape, axis))
            case op_type if op_type in _BROADCASTING:
                shape = np.broadcast_shapes(*(a.shape for a in arrays))
            case _:
                return 0
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return 0  # not a valid node; the evaluation will fail and leave it
    return math.prod(int(d) for d in shape) * int(arrays[0].itemsize)


def evaluate_node(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> tuple[np.ndarray, ...] | None:
    """The outputs of a node, or None if it cannot be evaluated exactly.

    Args:
        node: A node of ``ai.onnx`` without bodies.
        inputs: One array per input, None where the input is left out.
        opset: The version of ``ai.onnx`` that the model imports.
    """
    if node.op_type not in EVALUATED_OPS or any(a is not None and a.dtype.kind not in "fiubV" for a in inputs):
        return None
    standard = all(a is None or a.dtype.kind in "fiub" for a in inputs)
    if not standard and node.op_type not in _MOVERS and node.op_type != "Cast":
        return None
    if not _is_exact(node, inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            outputs = move(node, inputs) or _run(node, inputs, opset)
    except Exception:  # the evaluator raises whatever its NumPy code raises; the node then stays as it is
        return None
    expected = _expected_types(node, inputs)
    if any(not isinstance(a, np.ndarray) or a.dtype != d for a, d in zip(outputs, expected, strict=False)):
        return None
    return outputs


def _run(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> tuple[np.ndarray, ...]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    names = ["" if a is None else f"i{number}" for number, a in enumerate(inputs)]
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    proto.output.extend(f"o{number}" for number in range(len(node.outputs)))
    graph = onnx.helper.make_graph(
        [proto],
        "constant",
        [onnx.helper.make_empty_tensor_value_info(name) for name in names if name],
        [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    return tuple(np.asarray(result) for result in ReferenceEvaluator(model).run(None, feeds))


def _is_exact(node: ir.Node, inputs: Sequence[np.ndarray | None]) -> bool:
    """Whether the evaluator does what the standard says for these inputs."""
    check = _CHECKS.get(node.op_type)
    return check is None or check(node, [a for a in inputs if a is not None])


def _division_is_exact(node: ir.Node, arrays: Sequence[np.ndarray]) -> bool:
    del node
    # The standard truncates integer division, NumPy rounds it down: they agree where nothing is negative.
    return arrays[0].dtype.kind == "f" or (all((a >= 0).all() for a in arrays) and bool((arrays[1] != 0).all()))


def _power_is_exact(node: ir.Node, arrays: Sequence[np.ndarray]) -> bool:
    del node
    return all(a.dtype.kind == "f" for a in arrays)


def _cast_is_exact(node: ir.Node, arrays: Sequence[np.ndarray]) -> bool:
    target = ir.DataType(node.attributes["to"].as_int())
    if target not in _CAST_TARGETS:
        return False
    source, to = arrays[0], target.numpy()
    if source.dtype.kind in "fV" and to.kind in "iu":
        wide = source.astype(np.float64)
        limits = np.iinfo(to)
        return bool(np.isfinite(wide).all() and (wide >= limits.min).all() and (wide <= limits.max).all())
    return True


def _range_is_exact(node: ir.Node, arrays: Sequence[np.ndarray]) -> bool:
    del node
    return all(a.dtype.kind in "iu" for a in arrays)


_CHECKS: dict[str, Callable[[ir.Node, Sequence[np.ndarray]], bool]] = {
    "Div": _division_is_exact,
    "Pow": _power_is_exact,
    "Cast": _cast_is_exact,
    "Range": _range_is_exact,
}
_CAST_TARGETS = (
    *(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BOOL),
    *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
)
_TO_BOOL = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor")


def _expected_types(node: ir.Node, inputs: Sequence[np.ndarray | None]) -> list[np.dtype]:
    """The type of each output by the operator's signature: NumPy promotes where ONNX does not."""
    dtype: np.dtype
    if node.op_type in ("Shape", "Size"):
        dtype = np.dtype(np.int64)
    elif node.op_type in _TO_BOOL:
        dtype = np.dtype(np.bool_)
    elif node.op_type == "Cast":
        dtype = ir.DataType(node.attributes["to"].as_int()).numpy()
    elif node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        dtype = np.dtype(np.float32) if value is None else value.as_tensor().dtype.numpy()
    else:
        first = inputs[1] if node.op_type == "Where" else inputs[0]
        assert first is not None
        dtype = first.dtype
    return [dtype] * len(node.outputs)
