from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.errors import ModelError
from qtool.evaluate.sizes import model_bytes

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {1, 2, 3, 4}> {
    t = Mul(x, w)
    y = Add(t, v)
}
"""


def external(name: str, location: str, offset: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_one_file(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert model_bytes(path) == path.stat().st_size == model_bytes(model) == model_bytes(path.read_bytes())
    assert model_bytes(str(path)) == path.stat().st_size


def test_external_files_count_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(TEXT)
    del model.graph.initializer[:]
    model.graph.initializer.extend([external("w", "m.data", 0), external("v", "m.data", 16)])
    (tmp_path / "m.data").write_bytes(bytes(100))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.chdir("/")  # locations are relative to the model, not to the working directory
    assert model_bytes(path) == path.stat().st_size + 100


def test_external_files_of_attributes_subgraphs_and_functions(tmp_path: Path) -> None:
    def constant(name: str, location: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=external(name, location, 0))

    branches = [
        helper.make_graph([constant("c", f"{name}.data")], name, [], [helper.make_tensor_value_info("c", 1, [4])])
        for name in ("then", "else")
    ]
    node = helper.make_node("If", ["p"], ["y"], then_branch=branches[0], else_branch=branches[1])
    sparse = helper.make_sparse_tensor(external("s", "s.data", 0), numpy_helper.from_array(np.arange(4), "i"), [9])
    graph = helper.make_graph(
        [node, constant("k", "k.data")],
        "g",
        [helper.make_tensor_value_info("p", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", 1, [4])],
        sparse_initializer=[sparse],
    )
    function = helper.make_function("d", "F", [], ["c"], [constant("c", "f.data")], [helper.make_opsetid("", 17)])
    model = helper.make_model(graph, functions=[function])
    names = ["then", "else", "s", "k", "f"]
    for power, name in enumerate(names):
        (tmp_path / f"{name}.data").write_bytes(bytes(16 * 2**power))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert model_bytes(path) == path.stat().st_size + 16 * 31


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        model_bytes(tmp_path / "none.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match="not an ONNX file, or it is cut off"):
        model_bytes(broken)
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer[0].CopyFrom(external("w", "gone.data", 0))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"gone\.data', which cannot be read: No such file"):
        model_bytes(path)
