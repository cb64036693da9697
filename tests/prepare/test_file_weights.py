"""Weights that stay in their file: the same values and errors as parsed ones, and no other file's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from qtool.errors import ModelError
from qtool.prepare.file_weights import MIN_BYTES, FileTensor, move_to_file, skeleton_of, supported
from qtool.prepare.load import load_model

pytestmark = pytest.mark.skipif(not supported(), reason="weights are parsed here")
COUNT = MIN_BYTES // 4 + 3


def weights(count: int = COUNT) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "w": random.standard_normal((1, count), dtype=np.float32),
        "small": np.arange(4, dtype=np.float32),
        "h": random.standard_normal(2 * count).astype(np.float16),
        "n": random.integers(-9, 9, (count, 1), dtype=np.int64),
    }


def proto(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [name], [f"{name}.out"]) for name in arrays]
    outputs = [
        helper.make_tensor_value_info(f"{name}.out", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph(nodes, "g", [], outputs, [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(proto(weights()), path)
    return path


def kinds(model: ir.Model) -> dict[str, bool]:
    return {name: isinstance(v.const_value, FileTensor) for name, v in model.graph.initializers.items()}


def test_large_weights_stay_in_the_file_and_have_its_values(path: Path) -> None:
    model = load_model(path, keep_in_file=True)
    assert kinds(model) == {"w": True, "small": False, "h": True, "n": True}
    for name, array in weights().items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        assert tensor.name == name
        np.testing.assert_array_equal(tensor.numpy(), array, strict=True)
        assert tensor.tobytes() == array.tobytes()
    tensor = model.graph.initializers["h"].const_value
    assert isinstance(tensor, FileTensor)
    assert b"".join(bytes(piece) for piece in tensor.pieces(1000)) == weights()["h"].tobytes()


def test_the_model_is_the_parsed_one(path: Path, tmp_path: Path) -> None:
    kept, parsed = load_model(path, keep_in_file=True), load_model(path)
    assert set(kinds(parsed).values()) == {False}
    assert ir.to_proto(kept).SerializeToString() == ir.to_proto(parsed).SerializeToString()
    for name, model in (("a", kept), ("b", parsed)):
        ir.save(model, tmp_path / name, external_data=f"{name}.data")
    digests = [hashlib.sha256((tmp_path / f"{name}.data").read_bytes()).hexdigest() for name in "ab"]
    assert digests[0] == digests[1]


def test_a_file_that_changes_in_use_is_refused(path: Path) -> None:
    model = load_model(path, keep_in_file=True)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    os.utime(path, (1, 1))
    with pytest.raises(ModelError, match="was changed while it was in use"):
        tensor.numpy()
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="was changed while it was in use"):
        tensor.tobytes()


def test_a_file_that_is_replaced_keeps_its_weights(path: Path) -> None:
    model = load_model(path, keep_in_file=True)
    other = path.with_suffix(".new")
    onnx.save(proto({name: array[:0] for name, array in weights().items()}), other)
    other.replace(path)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), weights()["w"], strict=True)


def test_values_in_other_fields_are_parsed(tmp_path: Path) -> None:
    model = proto(weights())
    typed = model.graph.initializer[0]
    values = numpy_helper.to_array(typed)
    typed.ClearField("raw_data")
    typed.float_data.extend(values.ravel().tolist())
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load_model(tmp_path / "m.onnx", keep_in_file=True)
    assert kinds(loaded)["w"] is False
    assert kinds(loaded)["h"] is True
    tensor = loaded.graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), values, strict=True)


def test_a_weight_of_the_wrong_length_is_named(tmp_path: Path) -> None:
    model = proto(weights())
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=f"weight 'w' has {4 * COUNT - 4} bytes, expected {4 * COUNT}"):
        load_model(tmp_path / "m.onnx", keep_in_file=True)


def test_two_parts_of_one_graph_are_left_to_the_parser(tmp_path: Path) -> None:
    first, second = proto(weights()), onnx.ModelProto()
    second.graph.doc_string = "more"
    (tmp_path / "m.onnx").write_bytes(first.SerializeToString() + second.SerializeToString())
    assert skeleton_of(tmp_path / "m.onnx") is None
    loaded = load_model(tmp_path / "m.onnx", keep_in_file=True)
    assert loaded.graph.doc_string == "more"
    assert set(kinds(loaded).values()) == {False}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_damaged_files_fail_as_when_they_are_parsed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = proto(weights()).SerializeToString()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(0, 400), st.integers(0, len(whole) - 1)))
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(1, len(whole))) :]
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(changed)

    def outcome(*, keep_in_file: bool) -> bytes | str:
        try:
            loaded = load_model(path, keep_in_file=keep_in_file)
        except ModelError as error:
            return error.message
        try:
            return bytes(ir.to_proto(loaded).SerializeToString())
        except Exception as error:  # a name that is no text any more
            return type(error).__name__

    assert outcome(keep_in_file=True) == outcome(keep_in_file=False)


def test_weights_in_memory_move_to_a_file_that_may_go(tmp_path: Path) -> None:
    model = ir.from_proto(proto(weights()))
    before = ir.to_proto(model).SerializeToString()
    ir.save(model, tmp_path / "m.onnx", external_data="m.data")
    move_to_file(model, tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    assert kinds(model) == {"w": True, "small": False, "h": True, "n": True}
    assert ir.to_proto(model).SerializeToString() == before
