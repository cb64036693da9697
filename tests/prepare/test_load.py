from __future__ import annotations

import hashlib
import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool.api.models import interface_of
from qtool.errors import ModelError
from qtool.prepare import describe_source, load_model
from qtool.runtime import TensorInfo

TEXT = "g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"


@pytest.fixture
def model(build, rng):
    return build(TEXT, {"w": rng.normal(size=(4, 3)).astype(np.float32)})


def refused(given, *words):
    with pytest.raises(ModelError) as info:
        load_model(given)
    message = info.value.message
    assert "\n" not in message
    assert "\n" not in (info.value.hint or "")
    for word in words:
        assert word in message
    return info.value


def save_external(model, folder, name="m.onnx"):
    onnx.save_model(
        model,
        folder / name,
        save_as_external_data=True,
        location=f"{name}.data",
        size_threshold=0,
        convert_attribute=False,
    )
    return folder / name


def test_path_str_proto_and_ir_model_give_the_same_graph(model, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    before = model.SerializeToString()
    for given in (path, str(path), model, ir.from_proto(model)):
        loaded = load_model(given)
        assert [n.op_type for n in loaded.graph] == ["MatMul"]
        assert np.array_equal(
            loaded.graph.initializers["w"].const_value.numpy(), onnx.numpy_helper.to_array(model.graph.initializer[0])
        )
    assert model.SerializeToString() == before


def test_missing_file(tmp_path):
    refused(tmp_path / "no.onnx", "no.onnx", "does not exist")


def test_folder(tmp_path):
    refused(tmp_path, "folder")


def test_empty_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    refused(tmp_path / "m.onnx", "empty")


@pytest.mark.parametrize(
    "content",
    [
        b"hello, this is a text file\n" * 20,
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00" + bytes(range(256)) * 4,
        b"PK\x03\x04" + bytes(200),
        b"\x00" * 64,
        b"{}",
    ],
    ids=["text", "jpeg", "zip", "zeros", "braces"],
)
def test_not_a_model(content, tmp_path):
    (tmp_path / "m.onnx").write_bytes(content)
    refused(tmp_path / "m.onnx", "m.onnx")


@pytest.mark.parametrize("suffix", [".json", ".textproto", ".onnxtxt", ".txt", ""])
def test_not_a_model_whatever_the_suffix(suffix, tmp_path):
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"\xff\xd8\xff\xe0 not a model")
    refused(path, "not an ONNX model")


def test_git_lfs_pointer(tmp_path):
    (tmp_path / "m.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    error = refused(tmp_path / "m.onnx", "Git LFS pointer")
    assert error.hint == "Run: git lfs pull"


def test_truncated_anywhere(model, tmp_path):
    data = model.SerializeToString()
    path = tmp_path / "m.onnx"
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        refused(path, "m.onnx")


def test_wrong_type():
    refused(3, "int")
    refused(b"bytes", "bytes")
    refused(None, "NoneType")


def test_raw_data_of_the_wrong_length(model):
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    refused(model, "'w'", "44 bytes", "48")


def test_typed_data_of_the_wrong_length(build):
    model = build(TEXT)
    model.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=[4, 3], float_data=[1.0] * 11))
    refused(model, "'w'", "11 elements", "12")


def test_read_of_a_value_that_nothing_produces(build):
    refused(build(TEXT), "'w'", "nothing produces")


def test_output_that_nothing_produces(build):
    model = build("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.output[0].name = "z"
    refused(model, "'z'")


def test_two_nodes_that_make_one_name(build):
    refused(build("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }"), "'y' is redeclared")
    refused(build("g (float[2] x) => (float[2] y) { x = Relu(x) y = Neg(x) }"), "'x' is redeclared")


def test_branches_may_repeat_names(build):
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = a () => (float[2] t) { t = Relu(x) },
                   else_branch = b () => (float[2] t) { t = Neg(x) }>
    }"""
    assert len(load_model(build(text)).graph) == 1


def test_no_outputs(build):
    model = build(TEXT, {"w": np.zeros((4, 3), np.float32)})
    del model.graph.output[:]
    refused(model, "no graph output")


def test_nodes_out_of_order_are_sorted(build):
    model = build("g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [n.op_type for n in load_model(model).graph] == ["Relu", "Neg"]


CAPTURE = """g (float[2,4] x, bool c) => (float[2,4] y) {
    y = If(c) <then_branch = t () => (float[2,4] a) { a = Neg(h) }, else_branch = e () => (float[2,4] b) { b = Abs(h) }>
    h = MatMul(x, w)
}"""


def test_what_a_body_captures_comes_before_it(build, tmp_path):
    """onnxruntime refuses the file; the result is compared with the model in order."""
    model = build(CAPTURE, {"w": np.eye(4, dtype=np.float32)})
    assert [n.op_type for n in load_model(model).graph] == ["MatMul", "If"]
    onnx.save(model, tmp_path / "m.onnx")
    data = {"x": np.ones((2, 4), np.float32), "c": np.asarray(True)}
    result = qtool.quantize(tmp_path / "m.onnx", [data])
    assert "put the nodes in order" in result.actions
    assert result.quantized == 1
    assert result.sqnr_db["y"] > 40


def test_a_cycle_is_an_error(build):
    model = build("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }")
    refused(model, "its nodes form a cycle")


def test_external_data_stays_on_disk_and_is_found_from_any_folder(model, tmp_path, monkeypatch):
    path = save_external(model, tmp_path)
    monkeypatch.chdir(tmp_path)
    loaded = load_model(path.name)
    monkeypatch.chdir("/")
    tensor = loaded.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.numpy().shape == (4, 3)
    assert not tensor.numpy().flags.writeable


def test_external_data_missing(model, tmp_path):
    path = save_external(model, tmp_path)
    (tmp_path / "m.onnx.data").unlink()
    refused(path, "'w'", "missing")


@pytest.mark.parametrize("size", [0, 47])
def test_external_data_truncated(model, tmp_path, size):
    path = save_external(model, tmp_path)
    os.truncate(tmp_path / "m.onnx.data", size)
    refused(path, "truncated", f"found {size}")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("offset", "-4", "has the offset '-4' in its data file"),
        ("offset", "abc", "has the offset 'abc' in its data file"),
        ("length", "1e3", "has the length '1e3' in its data file"),
        ("length", "17", "has 17 bytes in 'm.onnx.data', expected 48"),
    ],
)
def test_external_data_at_an_impossible_place(model, tmp_path, key, value, said):
    path = save_external(model, tmp_path)
    proto = onnx.load(path, load_external_data=False)
    entries = proto.graph.initializer[0].external_data
    kept = [entry for entry in entries if entry.key != key]
    del entries[:]
    entries.extend([*kept, onnx.StringStringEntryProto(key=key, value=value)])
    onnx.save(proto, path)
    refused(path, "'w'", said)


def test_external_data_behind_a_link_out_of_the_folder(model, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    save_external(model, blobs)
    for name in ("m.onnx", "m.onnx.data"):
        (snapshot / name).symlink_to(blobs / name)
    error = refused(snapshot / "m.onnx", "link")
    assert "cp -rL" in error.hint


def test_external_data_outside_the_folder(model, tmp_path):
    path = save_external(model, tmp_path)
    proto = onnx.load(path, load_external_data=False)
    entry = next(e for e in proto.graph.initializer[0].external_data if e.key == "location")
    entry.value = "../m.onnx.data"
    inner = tmp_path / "inner"
    inner.mkdir()
    onnx.save(proto, inner / "m.onnx")
    refused(inner / "m.onnx", "outside its own folder")


def test_proto_with_external_data_that_is_not_here(model, tmp_path, monkeypatch):
    path = save_external(model, tmp_path)
    monkeypatch.chdir("/")
    error = refused(onnx.load(path, load_external_data=False), "missing")
    assert "path" in error.hint


def test_source_hashes_file_and_external_data(model, tmp_path):
    path = save_external(model, tmp_path)
    data = path.read_bytes() + (tmp_path / "m.onnx.data").read_bytes()
    source = describe_source(path)
    assert (source.path, source.sha256, source.nbytes) == (path, hashlib.sha256(data).hexdigest(), len(data))
    assert describe_source(str(path), load_model(path)) == source


def test_source_of_objects(model):
    data = model.SerializeToString(deterministic=True)
    source = describe_source(model)
    assert (source.path, source.sha256, source.nbytes) == (None, hashlib.sha256(data).hexdigest(), len(data))
    assert describe_source(ir.from_proto(model)).path is None
    assert model.SerializeToString(deterministic=True) == data


def test_an_interface_is_read_without_weights(tmp_path, rng, monkeypatch, build):
    path = tmp_path / "m.onnx"
    weight = rng.normal(size=(4, 300)).astype(np.float32)
    onnx.save(build("g (float[N, 4] x) => (float[N, 300] y) { y = MatMul(x, w) }", {"w": weight}), path)
    expected = (TensorInfo("x", np.dtype(np.float32), ("N", 4)),)
    assert interface_of(onnx.load(path)) == expected
    with monkeypatch.context() as patch:
        patch.setattr(onnx, "load_model", None)
        assert interface_of(path) == expected
    data = path.read_bytes()
    at = data.index(weight.tobytes())
    path.write_bytes(data[: at + 4 * 1000])
    with pytest.raises(ModelError, match="does not parse"):
        interface_of(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelError, match="Git LFS pointer"):
        interface_of(path)
    with pytest.raises(ModelError, match="does not exist"):
        interface_of(tmp_path / "none.onnx")
    short = build("g (float[N, 4] x) => (float[N, 300] y) { y = MatMul(x, w) }", {"w": weight})
    short.graph.initializer[0].raw_data = weight.tobytes()[:-4]
    onnx.save(short, path)
    with pytest.raises(ModelError, match="is damaged: weight 'w' has 4796 bytes, expected 4800"):
        interface_of(path)
