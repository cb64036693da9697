"""What the installed runtime can do, found out by asking it."""

from __future__ import annotations

from functools import cache

from qtool.errors import ModelError

_LOWEST = 10  # the first opset with QuantizeLinear


@cache
def highest_quantizing_opset(opset: int) -> int:
    """The highest version of ``ai.onnx``, up to ``opset``, at which onnxruntime has QuantizeLinear and its inverse.

    A release may know an opset, and run models of it, before it has all of its operators.
    """
    return next((version for version in range(opset, _LOWEST, -1) if _quantizes(version)), _LOWEST)


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
