"""qtool diff: what it finds, and that the forms of one model are no difference."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qtool
from tests.convert.test_convert import CNN, X, quantized
from tests.ended import run_command
from tests.models import build, normal


def changed(model: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    """The model with another initializer."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    (tensor,) = [t for t in copy.graph.initializer if t.name == name]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    return copy


def test_the_two_formats_of_one_model_are_no_difference():
    found = qtool.diff(quantized("qlinear"), quantized("qdq"))
    assert found.is_empty
    a, b, nodes_a, nodes_b = found.counts
    assert a == b == found.compared
    assert nodes_a == nodes_b > 5


def test_each_thing_that_differs_is_named():
    source = quantized("qlinear")

    def one(codes: np.ndarray) -> np.ndarray:
        codes.flat[:3] += 1
        return codes

    def scaled(scale: np.ndarray) -> np.ndarray:
        return np.asarray(scale * np.float32(2))

    def last(scale: np.ndarray) -> np.ndarray:
        scale[-1] *= 2
        return scale

    found = qtool.diff(source, changed(source, "w1_quantized", one))
    assert [(t.name, t.kind, t.what, t.a, t.codes) for t in found.tensors] == [("w1", "weight", "codes", "3 of 162", 3)]
    assert (found.codes, found.nodes) == (3, ())
    found = qtool.diff(source, changed(source, "x_scale", scaled))
    names = {(t.name, t.what) for t in found.tensors}
    assert ("x", "scale") in names
    assert {n for n, _ in names} == {"x", "b1"}  # the scale of a bias is the product of two
    found = qtool.diff(source, changed(source, "w2_scale", last))
    row = next(t for t in found.tensors if t.kind == "weight")
    assert (row.name, row.what) == ("w2", "scale")
    assert row.a.endswith("(1 of 8)")


def test_types_granularity_and_selection():
    base = quantized("qdq")
    found = qtool.diff(base, quantized("qdq", per_channel=False))
    rows = {(t.kind, t.what) for t in found.tensors}
    assert ("weight", "granularity") in rows
    assert not any(kind == "activation" for kind, _ in rows)
    found = qtool.diff(base, quantized("qdq", activations="int8"))
    assert {t.what for t in found.tensors if t.kind == "activation"} >= {"type"}
    found = qtool.diff(base, quantized("qdq", exclude=["c2"]))
    assert ("c2", "Conv", "only in A") in found.nodes
    assert ("w2", "weight", "only in A") in {(t.name, t.kind, t.what) for t in found.tensors}
    assert not qtool.diff(quantized("qdq", exclude=["c2"]), base).is_empty
    found = qtool.diff(CNN, base)
    assert {t.what for t in found.tensors} == {"only in B"}


def test_blocked_weights():
    model = build("m (float[N,64] x) => (float[N,32] y) { [m] y = MatMul(x, w) }", {"w": normal(64, 32)}, opset=21)
    files = {b: qtool.quantize(model, weight_only=True, weights="int4", block=b).model for b in (16, 32)}
    found = qtool.diff(files[16], files[32])
    assert next((t.name, t.what, t.a, t.b) for t in found.tensors) == (
        "w", "granularity", "axis 0, blocks of 16", "axis 0, blocks of 32",
    )  # fmt: skip
    assert qtool.diff(files[16], files[16]).is_empty


@pytest.fixture
def files(tmp_path):
    for name, model in (
        ("a", quantized("qlinear")),
        ("b", quantized("qdq")),
        ("c", quantized("qdq", exclude=["m1"])),
        ("float", CNN),
    ):
        onnx.save(model, tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "x.npz", **X)
    return tmp_path


def test_the_command(files, capsys):
    def command(*args: str):
        return run_command(capsys, *args)

    a, b, c = (str(files / f"{n}.onnx") for n in "abc")
    ended = command("diff", a, b)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("no difference: ")
    ended = command("diff", a, c)
    assert ended.code == 0
    assert "m1" in ended.out
    assert "only in A" in ended.out
    assert command("diff", a, c, "--exit-code").code == 1
    assert command("diff", a, b, "--exit-code").code == 0
    ended = command("diff", a, c, "--json", "-")
    document = json.loads(ended.out)
    assert document["different"] is True
    assert {"node": "m1", "op_type": "MatMul", "what": "only in A"} in document["nodes"]
    assert command("diff", a, str(files / "missing.onnx")).code == 2


def test_the_convert_command(files, capsys):
    a, data = str(files / "a.onnx"), str(files / "x.npz")
    ended = run_command(capsys, "convert", a, "--to", "qdq", "--data", data)
    assert (ended.code, ended.out) == (0, f"{files / 'a.qdq.onnx'}\n")
    assert "rewritten: 2 QLinearConv" in ended.err
    assert "equal to the source" in ended.err or "dB from the source" in ended.err
    ended = run_command(
        capsys, "convert", a, "--to", "float", "--data", data, "--reference", str(files / "float.onnx"), "--json", "-"
    )  # fmt: skip
    assert ended.code == 0
    document = json.loads(ended.out)
    assert document["to"] == "float"
    assert document["reference_db"]["y"]["result"] > document["reference_db"]["y"]["source"]
    assert "against the reference" in ended.err
    ended = run_command(capsys, "convert", str(files / "float.onnx"), "--to", "qdq")
    assert ended.code == 2
    assert ended.errors == [
        "error: The model is not quantized: it holds no QuantizeLinear, DequantizeLinear, QLinear or Integer operator."
    ]
