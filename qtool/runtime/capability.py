"""What the installed runtime can do, found out by asking it."""

from __future__ import annotations

from functools import cache
from typing import Any

from qtool.errors import ModelError

_LOWEST = 10  # the first opset with QuantizeLinear


@cache
def highest_quantizing_opset(opset: int) -> int:
    """The highest version of ``ai.onnx``, up to ``opset``, at which onnxruntime has QuantizeLinear and its inverse.

    A release may know an opset, and run models of it, before it has all of its operators.
    """
    return next((version for version in range(opset, _LOWEST, -1) if _quantizes(version)), _LOWEST)


@cache
def dequantizes(dtype: str, scale_type: str | None, opset: int) -> bool:
    """Whether onnxruntime has a DequantizeLinear of an element type at a version of ``ai.onnx``.

    Args:
        dtype: Element type of the codes.
        scale_type: Element type of the scales; None for float32.
        opset: Version of ``ai.onnx``, at least the first that knows the types.
    """
    from onnx import TensorProto, helper

    from qtool.dtypes import qdtype
    from qtool.runtime.ort import OrtSession

    codes, scale = qdtype(dtype), None if scale_type is None else qdtype(scale_type)
    attributes: dict[str, Any] = {} if scale is None else {"output_dtype": TensorProto.FLOAT}
    one = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    if scale is not None:
        one = helper.make_tensor("s", scale.onnx, [], b"\x7f", raw=True)
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["q", "s"], ["y"], **attributes)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])],
        [helper.make_tensor("q", codes.onnx, [8], bytes(codes.nbytes(8)), raw=True), one],
    )
    floor = max(f[1] for f in (codes.floor(), *([scale.floor()] if scale else [])))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=floor)
    try:
        OrtSession(model, optimize=False, num_threads=1)
    except ModelError:
        return False
    return True


def _quantizes(opset: int) -> bool:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    from qtool.runtime.ort import OrtSession

    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            onnx.numpy_helper.from_array(np.asarray(1, np.float32), "s"),
            onnx.numpy_helper.from_array(np.asarray(0, np.uint8), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        OrtSession(model, optimize=False, num_threads=1)
    except ModelError:
        return False
    return True
