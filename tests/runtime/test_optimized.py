"""What onnxruntime made of a model."""

from __future__ import annotations

import onnx
import pytest

import qtool
from qtool.errors import ModelError
from qtool.runtime.optimized import optimized_nodes, optimized_ops
from tests.models import build, normal

TEXT = "m (float[N,16] x) => (float[N,4] y) { [first] h = MatMul(x, w) [second] y = Add(h, b) }"


@pytest.fixture
def quantized() -> onnx.ModelProto:
    model = build(TEXT, {"w": normal(16, 4), "b": normal(4, seed=1)})
    result = qtool.quantize(model, {"x": normal(8, 16)}).model
    assert result is not None
    return result


def test_a_fused_product_is_named_after_the_one_that_it_was(quantized):
    nodes = optimized_nodes(quantized)
    assert [(n.op_type, n.name) for n in nodes if n.op_type == "QGemm"] == [("QGemm", "first/MatMulAddFusion")]
    assert optimized_ops(quantized) == {"QuantizeLinear": 1, "QGemm": 1}


def test_files_bytes_and_external_data_are_alike(quantized, tmp_path, monkeypatch):
    path, expected = tmp_path / "m.onnx", optimized_nodes(quantized)
    onnx.save(quantized, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    assert optimized_nodes(path) == expected
    monkeypatch.chdir("/")
    assert optimized_nodes(path.read_bytes(), base_dir=tmp_path) == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "w.bin"]


def test_bodies_are_read():
    text = """m (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Abs(x) }
        >
    }"""
    found = optimized_nodes(build(text))
    assert (found[0].op_type, found[0].body) == ("If", False)
    assert sorted((n.op_type, n.body) for n in found[1:]) == [("Abs", True), ("Neg", True)]


def test_what_does_not_load_is_said_in_one_line():
    model = build("m (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.node[0].op_type = "Nope"
    with pytest.raises(ModelError, match=r"^Model is not accepted by onnxruntime [\d.]+: .*Nope"):
        optimized_nodes(model)
