"""onnxruntime as an oracle for one operator, optimisations off; and random 8-bit data with its extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

PAIRS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.uint8), (np.int8, np.int8)]


def run_ort(op_type: str, inputs: list[np.ndarray | None], outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """The outputs of one node in onnxruntime. None is an absent input."""
    names = ["" if value is None else f"i{k}" for k, value in enumerate(inputs)]
    given = {n: np.asarray(v) for n, v in zip(names, inputs, strict=True) if v is not None}
    results = [f"o{k}" for k in range(outputs)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, names, results, **attributes)],
        "one_node",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ],
        [onnx.ValueInfoProto(name=r) for r in results],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def random_codes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """All codes of an 8-bit type, each as likely as the next."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def f32(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)
