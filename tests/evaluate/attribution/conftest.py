"""Models with one known culprit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

WIDTH = 24


def chain(layers: int, *, width: int = WIDTH, seed: int = 0) -> onnx.ModelProto:
    """x -> MatMul, Relu -> .. -> MatMul; node ``fc<i>``, weight ``w<i>``, activation ``h<i>``."""
    random = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for number in range(layers):
        last = number == layers - 1
        weight = (random.standard_normal((width, width)) * np.sqrt((1 if last else 2) / width)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        made = "y" if last else f"a{number}"
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [made], name=f"fc{number}"))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [f"h{number}"], name=f"relu{number}"))
        value = f"h{number}"
    shape = ["N", width]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def without_saturation(layers: int, *, seed: int = 0) -> onnx.ModelProto:
    """The same, in which no pair of products can leave int16, whatever the input: 127 beside 0, or 64 beside 64."""
    model, random = chain(layers, seed=seed), np.random.default_rng(seed)
    here = np.arange(WIDTH)
    for number in range(layers):
        weight = random.uniform(-0.08, 0.08, (WIDTH, WIDTH)).astype(np.float32)
        weight[here ^ 1, here] = 0
        weight[here, here] = 0.9
        set_weight(model, f"w{number}", weight)
    return model


def weight_of(model: onnx.ModelProto, name: str) -> np.ndarray:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    return numpy_helper.to_array(tensor).copy()


def set_weight(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(value, name))


class Folder:
    """A model, its data and what is made of them, as files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, self.quant = path / "model.onnx", path / "model.int8.onnx"
        self.calib, self.data = path / "calib.npz", path / "eval.npz"
        for seed, file in enumerate((self.calib, self.data)):
            np.savez(file, x=np.random.default_rng(seed + 7).standard_normal((96, WIDTH)).astype(np.float32))

    def save(self, model: onnx.ModelProto) -> None:
        onnx.save(model, self.model)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)
