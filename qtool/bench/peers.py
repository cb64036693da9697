"""Other engines on one operator: onnxruntime on a model of one node, oneDNN through torch where it is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], Any]


def onnxruntime(
    op_type: str,
    inputs: Sequence[Array | None],
    *,
    constant: Sequence[int],
    output: int,
    shape: Sequence[int],
    threads: int,
    opset: int = 21,
    **attributes: Any,
) -> Call:
    """A call of onnxruntime (CPU) that runs one node, with input and output memory bound beforehand.

    Args:
        op_type: Operator of the ONNX domain.
        inputs: Arrays; None is an absent input.
        constant: Positions of the inputs that are initializers, which onnxruntime may repack when it loads the model.
        output: Element type of the output, as TensorProto numbers it.
        shape: Shape of the output.
        threads: Threads of the operator.
        opset: Version of the operator set.
        **attributes: Of the node.

    Returns:
        A call that returns the output as an ``OrtValue``.
    """
    import onnx
    import onnxruntime as ort

    names = ["" if value is None else f"i{k}" for k, value in enumerate(inputs)]
    given = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if value is not None}
    weights = {f"i{k}" for k in constant}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, names, ["y"], **attributes)],
        "one_node",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
            if n not in weights
        ],
        [onnx.helper.make_tensor_value_info("y", output, list(shape))],
        [onnx.numpy_helper.from_array(v, n) for n, v in given.items() if n in weights],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    bound = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(v)) for n, v in given.items() if n not in weights]
    for name, value in zip([n for n in given if n not in weights], bound, strict=True):
        binding.bind_ortvalue_input(name, value)
    result = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), output)
    binding.bind_ortvalue_output("y", result)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return result

    return call


@functools.cache
def has_torch() -> bool:
    """Whether torch is installed and has the quantized operators of oneDNN."""
    try:
        import torch
    except ImportError:
        return False
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call,unused-ignore]
    return hasattr(torch.ops, "onednn") and available


def onednn_qlinear(a: Array, b: Array, b_scale: float, y_scale: float, y_zero: int, *, threads: int) -> Call | None:
    """The uint8 linear layer of oneDNN with a weight it has packed beforehand; None without torch.

    Args:
        a: (M, K), uint8, with scale 1 and zero point 128.
        b: (K, N), int8.
        b_scale: Scale of ``b``, without zero point.
        y_scale: Scale of the uint8 result.
        y_zero: Its zero point.
        threads: Threads of torch; the setting is one of the process.
    """
    if not has_torch():
        return None
    import torch

    torch.set_num_threads(threads)
    x = torch.from_numpy(a)
    packed = torch.ops.onednn.qlinear_prepack(torch.from_numpy(b.T.copy()), list(a.shape))
    scales = torch.full((b.shape[1],), b_scale)
    zeros = torch.zeros(b.shape[1], dtype=torch.int32)
    run = torch.ops.onednn.qlinear_pointwise

    def call() -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return run(x, 1.0, 128, packed, scales, zeros, None, y_scale, y_zero, torch.uint8, "none", [], "")

    return call
