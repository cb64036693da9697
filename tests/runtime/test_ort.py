import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import TensorInfo, create_session
from qtool.runtime.ort import OrtSession


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


RELU = "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Relu(x) z = Neg(x) }"


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("form", ["proto", "bytes", "path", "str"])
def test_every_form_of_a_model_runs(tmp_path, form, optimize):
    proto = model(RELU)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    given = {"proto": proto, "bytes": proto.SerializeToString(), "path": path, "str": str(path)}[form]
    session = OrtSession(given, optimize=optimize, num_threads=1)
    x = np.array([[-1.0, 0.0, 2.0, 3.0]], np.float32)
    result = session.run({"x": x})
    assert list(result) == ["y", "z"]
    np.testing.assert_array_equal(result["y"], [[0, 0, 2, 3]])
    np.testing.assert_array_equal(result["z"], -x)


def test_inputs_and_outputs_are_described():
    session = create_session(model("g (float16[N, 3, 8] x, int64 i) => (float16[N, 3, 8] y) { y = Identity(x) }"))
    assert session.inputs == (
        TensorInfo("x", np.dtype(np.float16), ("N", 3, 8)),
        TensorInfo("i", np.dtype(np.int64), ()),
    )
    assert session.outputs == (TensorInfo("y", np.dtype(np.float16), ("N", 3, 8)),)


def test_initializers_listed_as_inputs_are_not_required():
    proto = model("g (float[N] x, float[1] w) => (float[N] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    session = create_session(proto)
    assert [info.name for info in session.inputs] == ["x"]
    np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [2, 2])


def test_outputs_come_in_the_order_asked_for():
    session = create_session(model(RELU))
    x = np.ones((2, 4), np.float32)
    assert list(session.run({"x": x}, ["z", "y"])) == ["z", "y"]
    assert session.run({"x": x}, []) == {}


def test_bfloat16_goes_in_and_out():
    text = "g (bfloat16[N] x) => (bfloat16[N] y, float[N] z) { y = Identity(x) z = Cast<to=1>(x) }"
    session = create_session(model(text))
    x = np.array([1.0, -2.5, 3e38], ml_dtypes.bfloat16)
    result = session.run({"x": x})
    assert result["y"].dtype == x.dtype
    np.testing.assert_array_equal(result["y"], x)
    np.testing.assert_array_equal(result["z"], x.astype(np.float32))
    assert session.run({"x": x[:0]})["y"].shape == (0,)


def test_text_goes_in():
    session = create_session(model("g (string[N] x) => (string[N] y) { y = Identity(x) }"))
    assert session.run({"x": np.array(["a", "bc"])})["y"].tolist() == ["a", "bc"]


def test_external_data_of_a_proto_is_found_in_its_folder(tmp_path):
    weight = np.arange(4096, dtype=np.float32)
    proto = model("g (float[4096] x) => (float[4096] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    loaded = onnx.load(path, load_external_data=False)
    x = np.ones(4096, np.float32)
    for session in (create_session(path), create_session(loaded, base_dir=tmp_path)):
        np.testing.assert_array_equal(session.run({"x": x})["y"], weight + 1)
    with pytest.raises(ModelError, match=r"^Model keeps 'w' in an external file"):
        create_session(loaded)


def test_a_model_that_ort_refuses_is_one_line(tmp_path, capfd):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"^Model '.*broken.onnx' is not accepted by onnxruntime [\d.]+: ") as caught:
        create_session(broken)
    assert "\n" not in caught.value.message
    with pytest.raises(ModelError, match=r"^Model '.*missing.onnx' is not a file that exists\.$"):
        create_session(tmp_path / "missing.onnx")
    unknown = helper.make_model(
        helper.make_graph(
            [helper.make_node("Bar", ["x"], ["y"], domain="foo")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("foo", 1)],
        ir_version=8,
    )
    with pytest.raises(ModelError, match=r"foo:Bar\(-1\) is not a registered function/op$"):
        create_session(unknown)
    assert capfd.readouterr().err == ""


def test_a_run_that_fails_is_one_line_and_quiet(capfd):
    session = create_session(model("g (float[N, 4] x, float[M, 4] z) => (float[K, 4] y) { y = Add(x, z) }"))
    x, z = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    with pytest.raises(DataError, match=r"^Model does not run on these inputs: .*2 by 3$") as caught:
        session.run({"x": x, "z": z})
    assert "onnxruntime_src" not in caught.value.message
    assert "\n" not in caught.value.message
    with pytest.raises(DataError, match="Required inputs"):
        session.run({"x": x})
    with pytest.raises(DataError, match="Expected: 4"):
        session.run({"x": x[:, :3], "z": z})
    assert capfd.readouterr().err == ""


def test_unknown_output_engine_and_thread_count_are_refused():
    session = create_session(model(RELU))
    with pytest.raises(ModelError, match=r"has no output 'q'; its outputs are y, z\.$"):
        session.run({"x": np.ones((1, 4), np.float32)}, ["q"])
    with pytest.raises(ConfigError, match=r"^Unknown engine 'tvm'; expected one of ort, spec, spec-avx2\.$"):
        create_session(model(RELU), engine="tvm")
    with pytest.raises(ConfigError, match="Number of threads is 0"):
        create_session(model(RELU), num_threads=0)


def test_sequences_are_refused():
    proto = model("g (seq(float[N]) x) => (float[M] y) { y = ConcatFromSequence<axis=0>(x) }")
    with pytest.raises(ModelError, match=r"input 'x' is seq\(tensor\(float\)\); expected a tensor"):
        create_session(proto)
