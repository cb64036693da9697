"""Models and arguments as they are found in the wild: taken where that is right, else refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.__main__ import main
from qtool.errors import ConfigError, DataError, ModelError, QtoolError
from tests.cases.files_support import mlp, model, random, samples

DATA = samples()


def changed(change: Callable[[onnx.ModelProto], object], proto: onnx.ModelProto | None = None) -> onnx.ModelProto:
    proto = proto or mlp()
    change(proto)
    return proto


def checked(result: qtool.api.QuantizeResult) -> onnx.ModelProto:
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    return result.model


# -------------------------------------------------------------------------------------------------- interfaces


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize(
    "forget",
    [
        lambda output: output.type.tensor_type.ClearField("shape"),
        lambda output: output.ClearField("type"),
    ],
)
def test_an_output_without_a_declared_shape_gets_the_inferred_one(forget, format_):
    proto = changed(lambda proto: forget(proto.graph.output[0]))
    made = checked(qtool.quantize(proto, DATA, format=format_))
    (output,) = made.graph.output
    assert [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim] == ["N", 8]
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [o.name for o in qtool.inspect(proto).outputs] == ["y"]


def test_an_integer_output_without_a_declared_shape():
    proto = mlp()
    proto.graph.node.append(helper.make_node("ArgMax", ["y"], ["k"], "argmax", axis=1))
    proto.graph.output.append(helper.make_tensor_value_info("k", TensorProto.INT64, None))
    result = qtool.quantize(proto, DATA)
    checked(result)
    assert list(result.sqnr_db) == ["y"]


def test_an_output_of_no_type_is_one_line():
    proto = changed(lambda proto: setattr(proto.graph.output[0].type.tensor_type, "elem_type", 0))
    for call in (lambda: qtool.quantize(proto, DATA), lambda: qtool.inspect(proto)):
        with pytest.raises(ModelError):
            call()


def test_a_graph_without_a_name_gets_one():
    proto = changed(lambda proto: proto.graph.ClearField("name"))
    assert checked(qtool.quantize(proto, DATA)).graph.name == "graph"


def test_a_fault_that_was_there_before_is_a_note(monkeypatch):
    from qtool import publish

    monkeypatch.setattr(publish, "_fault", lambda _: "the same old fault")
    result = qtool.quantize(mlp(), DATA)
    assert "the model is not valid ONNX, before and after: the same old fault" in result.notes


@pytest.mark.parametrize("options", [{}, {"format": "qdq"}, {"dynamic": True}])
def test_an_output_of_another_shape_than_it_says(options):
    proto = changed(lambda proto: setattr(proto.graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 9))
    result = qtool.quantize(proto, DATA, **options)
    assert "corrected the shape of output 'y': [N,9] -> [N,8]" in result.actions
    assert [d.dim_value or d.dim_param for d in checked(result).graph.output[0].type.tensor_type.shape.dim] == ["N", 8]
    assert options.get("dynamic") or min(result.sqnr_db.values()) > 20  # random samples are no measure of quality


def test_weights_at_the_end_of_float32():
    largest = float(np.finfo(np.float32).max)
    proto = changed(set_weight(largest))
    result = qtool.quantize(proto, {"x": np.abs(DATA["x"]) * np.float32(1e-30)})
    assert min(result.sqnr_db.values()) > 20


def test_an_input_that_is_an_output_too():
    proto = changed(lambda proto: proto.graph.output.append(proto.graph.input[0]))
    made = checked(qtool.quantize(proto, DATA))
    assert [o.name for o in made.graph.output] == ["y", "x"]


def test_outputs_in_the_middle_keep_their_values():
    proto = mlp()
    for name in ("a", "b"):
        info = proto.graph.output.add()
        info.CopyFrom(proto.graph.output[0])
        info.name = name
    result = qtool.quantize(proto, DATA)
    checked(result)
    assert all(result.sqnr_db[name] > 30 for name in ("a", "b", "y"))


def test_an_unused_input_stays():
    proto = mlp()
    proto.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, ["N", 3]))
    made = checked(qtool.quantize(proto, DATA | {"unused": random(16, 3)}))
    assert [i.name for i in made.graph.input] == ["x", "unused"]


def test_an_unused_initializer_and_a_remark_about_nothing_go():
    proto = mlp()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3), "unused"))
    proto.graph.value_info.add().name = "ghost"
    made = checked(qtool.quantize(proto, DATA))
    assert "unused" not in {tensor.name for tensor in made.graph.initializer}


def test_nodes_of_one_name_and_out_of_order():
    proto = changed(lambda proto: setattr(proto.graph.node[2], "name", "fc1"))
    assert qtool.quantize(proto, DATA).quantized == 3
    proto = mlp()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    assert qtool.quantize(proto, DATA).quantized == 3


def test_a_second_time_the_record_is_the_new_one():
    proto = changed(lambda proto: helper.set_model_props(proto, {"qtool.config": "old", "mine": "kept"}))
    made = checked(qtool.quantize(proto, DATA))
    values = {entry.key: entry.value for entry in made.metadata_props}
    assert values["qtool.config"] != "old"
    assert values["mine"] == "kept"


# ------------------------------------------------------------------------------------------ what cannot be taken


def set_weight(value: float) -> Callable[[onnx.ModelProto], object]:
    array = np.full((8, 8), value, np.float32)
    return lambda proto: proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "W1"))


def custom(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].op_type, proto.graph.node[2].domain = "Foo", "my.domain"
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_weight(np.nan), "'W1' holds nan"),
        (set_weight(np.inf), "'W1' holds inf"),
        (lambda proto: setattr(proto.graph.node[2], "op_type", "Foo"), "Foo"),
        (custom, "my.domain"),
        (lambda proto: proto.graph.node[2].input.__setitem__(0, "gone"), "reads 'gone', which nothing produces"),
        (lambda proto: proto.graph.node[2].output.__setitem__(0, "a"), "'a'"),
        (lambda proto: proto.graph.ClearField("output"), "no graph output"),
        (lambda proto: proto.graph.ClearField("input"), "reads 'x', which nothing produces"),
        (lambda proto: proto.graph.input[0].type.tensor_type.ClearField("shape"), "has no shape"),
        (lambda proto: setattr(proto.opset_import[0], "version", 99), "99"),
        (lambda proto: setattr(proto, "ir_version", 99), "99"),
        (lambda proto: proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0]), "'W1' is there 2 times"),
        (lambda proto: proto.ClearField("graph"), "not a complete ONNX model"),
        (lambda proto: proto.ClearField("opset_import"), "not a complete ONNX model"),
    ],
)
def test_models_that_cannot_be_taken(change, said, tmp_path, capsys):
    proto = changed(change)
    with pytest.raises(ModelError) as caught:
        qtool.quantize(proto, DATA)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert "quantized model" not in caught.value.message  # the fault is in the float model
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.savez(tmp_path / "c.npz", **DATA)
    assert main(["quantize", str(tmp_path / "m.onnx"), "--calib", str(tmp_path / "c.npz")]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("hint:")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.npz", "m.onnx"]


def test_a_model_of_doubles_has_nothing_to_quantize():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"], "fc")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", 8])],
        [numpy_helper.from_array(np.eye(8), "W")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(QtoolError, match="0 of 1 nodes were quantized: its operands are not float32"):
        qtool.quantize(proto, {"x": np.ones((4, 8))})


# ---------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("call", [qtool.inspect, lambda m: qtool.quantize(m, DATA), lambda m: qtool.calibrate(m, DATA)])
@pytest.mark.parametrize("value", [None, 3, {}, b"abc"])
def test_what_is_no_model(call, value):
    with pytest.raises(ModelError, match="A model is a path"):
        call(value)


@pytest.mark.parametrize("value", [None, 3, {}, b"abc", b""])
def test_what_is_no_model_for_evaluate(value):
    with pytest.raises(ModelError):
        qtool.evaluate(value, mlp(), DATA)
    with pytest.raises(ModelError):
        qtool.evaluate(mlp(), value, DATA)


def test_evaluate_takes_every_form_of_a_model(tmp_path):
    onnx.save(mlp(), tmp_path / "m.onnx")
    forms = [tmp_path / "m.onnx", str(tmp_path / "m.onnx"), mlp(), mlp().SerializeToString(), ir.from_proto(mlp())]
    forms.append(ir.load(tmp_path / "m.onnx"))
    for form in forms:
        for pair in ((form, mlp()), (mlp(), form)):
            (output,) = qtool.evaluate(*pair, DATA, latency=False, metrics=["max_abs"]).outputs
            assert output.values == {"max_abs": 0.0}


@pytest.mark.parametrize("value", [{"format": "qdq"}, 3, ["a"]])
def test_what_is_no_config(value):
    with pytest.raises(ConfigError, match="expected a QuantConfig or the path of a TOML file"):
        qtool.quantize(mlp(), DATA, config=value)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads(threads):
    with pytest.raises(ConfigError, match="expected 1 or more"):
        qtool.quantize(mlp(), DATA, num_threads=threads)


def test_tensors_of_calibrate():
    assert set(qtool.calibrate(mlp(), DATA, tensors=["x", "x", "y"])) == {"x", "y"}
    with pytest.raises(ConfigError, match="no tensor 'gone'"):
        qtool.calibrate(mlp(), DATA, tensors=["gone"])
    with pytest.raises(ConfigError, match="Unknown range method"):
        qtool.calibrate(mlp(), DATA, method="gone")


def test_samples_that_end_in_an_exception_of_their_own():
    """What the caller's iterable raises is the caller's, and is not hidden."""

    def broken():
        yield {"x": DATA["x"][0]}
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        qtool.quantize(mlp(), broken())


def test_activations_that_overflow():
    with pytest.raises(QtoolError, match="infinities"):
        qtool.quantize(mlp(), {"x": np.full((4, 8), 1e38, np.float32)})
    with pytest.raises(DataError, match="NaN"):
        qtool.quantize(mlp(), {"x": np.full((4, 8), np.inf, np.float32)})


def test_inspect_and_quantize_count_the_same_nodes():
    branch = [
        helper.make_graph(
            [helper.make_node("Relu", ["m"], [f"o{i}"], f"inner{i}")],
            f"branch{i}",
            [],
            [helper.make_tensor_value_info(f"o{i}", TensorProto.FLOAT, ["N", 8])],
        )
        for i in (0, 1)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"], "fc1"),
        helper.make_node("ReduceMax", ["m"], ["t"], "max", keepdims=0),
        helper.make_node("Cast", ["t"], ["c"], "cast", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("MatMul", ["i", "W"], ["y"], "fc2"),
    ]
    proto = model(nodes, {"W": random(8, 8)}, inputs={"x": ["N", 8]}, outputs={"y": ["N", 8]})
    found = qtool.inspect(proto)
    planned = qtool.quantize(proto, dry_run=True)
    assert (found.quantized, found.total) == (planned.quantized, planned.total)
    assert found.total == len(found.nodes) == 7
