"""What both model files are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import qtool
from qtool.evaluate.details import TENSORS_SHOWN, StoredTensor, TypeShare, model_details

DATA = {"x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}


def model(tensors: int = 0) -> onnx.ModelProto:
    built = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[N, 3] x) => (float[N, 3] y) '
        "<float[3] w = {1, 2, 3}, int8[4] c = {1, 2, 3, 4}> { k = Constant <value = int64[2] {1, 2}> () y = Mul(x, w) }"
    )
    for index in range(tensors):
        built.graph.initializer.append(numpy_helper.from_array(np.zeros(100 - index, np.int8), f"t{index}"))
    return built


def test_files_types_and_tensors(tmp_path: Path):
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    found = model_details(path, model())
    assert found.float_model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.float_model.nbytes == path.stat().st_size
    assert (found.float_model.opset, found.float_model.ir_version, found.float_model.nodes) == (17, 8, 2)
    assert found.quantized_model.types == (
        TypeShare("int64", 1, 16), TypeShare("float32", 1, 12), TypeShare("int8", 1, 4)
    )  # fmt: skip
    assert found.tensors == (
        StoredTensor("k", "int64", (2,), 16), StoredTensor("w", "float32", (3,), 12), StoredTensor("c", "int8", (4,), 4)
    )  # fmt: skip
    assert (found.other_tensors, found.other_bytes, found.made_from_float) == (0, 0, None)


def test_the_largest_are_listed_and_the_others_counted():
    found = model_details(model(), model(60))
    assert len(found.tensors) == TENSORS_SHOWN
    assert found.tensors[0] == StoredTensor("t0", "int8", (100,), 100)
    assert (found.other_tensors, found.other_bytes) == (13, sum(range(41, 51)) + 16 + 12 + 4)


def test_what_qtool_made_says_from_what(tmp_path: Path, examples: Path):
    source, result = examples / "mnist_cnn.onnx", tmp_path / "q.onnx"
    qtool.quantize(source, examples / "mnist_calib.npz", output=result)
    found = model_details(source, result)
    assert found.made_from_float is True
    assert json.loads(found.quantized_model.metadata["config"])["format"] == "qlinear"
    other = tmp_path / "other.onnx"
    onnx.save(model(), other)
    assert model_details(other, result).made_from_float is False


def test_evaluate_adds_them_when_asked(tmp_path: Path):
    assert qtool.evaluate(model(), model(), DATA, latency=False).details is None
    report = qtool.evaluate(model(), model(), DATA, latency=False, details=True)
    assert report.details == model_details(model(), model())
    shown = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert shown["details"]["tensors"][1] == {"name": "w", "dtype": "float32", "shape": [3], "bytes": 12}
