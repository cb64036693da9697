"""Tiny models and files for the cases about files, options and selection."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Reproducible normal values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, npt.NDArray[np.generic]],
    *,
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A checked float32 model."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def mlp(width: int = 8, *, opset: int = 17) -> onnx.ModelProto:
    """x[N,width] -> fc1 -> relu -> fc2 -> y[N,width], two MatMuls with weights W1 and W2."""
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["a"], "fc1"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "W2"], ["y"], "fc2"),
    ]
    weights = {"W1": random(width, width, seed=1), "W2": random(width, width, seed=2)}
    return model(nodes, weights, inputs={"x": ["N", width]}, outputs={"y": ["N", width]}, opset=opset)


def samples(count: int = 16, width: int = 8) -> dict[str, npt.NDArray[np.float32]]:
    """Calibration data of :func:`mlp`."""
    return {"x": random(count, width, seed=3)}


def save_external(proto: onnx.ModelProto, path: Path, data: str) -> None:
    """Save with all weights in a file beside the model."""
    onnx.save_model(
        onnx.ModelProto.FromString(proto.SerializeToString()),
        path,
        save_as_external_data=True,
        location=data,
        size_threshold=0,
    )


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder, links and temporary ones included, with a digest."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "no file"
        for p in folder.rglob("*")
    }


def metadata(path: Path) -> dict[str, str]:
    """The metadata of a saved model."""
    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
