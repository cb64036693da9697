"""C09, C12, C13, C14, C37, C38, C50, C51, C53 in weight-only mode, through the command line and the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.api.made_up import trial_feeds
from qtool.errors import ConfigError, ModelError, NothingToQuantizeError
from qtool.runtime import TensorInfo
from qtool.weight_settings import WEIGHT_ONLY_DTYPES
from tests.cases.files_support import mlp, model, random, samples, save_external, snapshot
from tests.ended import Ended, run_command
from tests.models import build, normal


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder with a model and its samples, as the current folder."""
    onnx.save(mlp(64), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples(width=64))
    monkeypatch.chdir(tmp_path)
    for name in ("QTOOL_NUM_THREADS", "NO_COLOR", "FORCE_COLOR", "QTOOL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def command(capsys) -> Callable[..., Ended]:
    return partial(run_command, capsys)


# ------------------------------------------------------------------------------------------ C51: combinations, exit 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--weights", "int16"], f"expected one of {', '.join(WEIGHT_ONLY_DTYPES)}"),
        (["--weights", "banana"], f"expected one of {', '.join(WEIGHT_ONLY_DTYPES)}"),
        (["--block", "0"], "Option 'block' is 0; expected a positive number"),
        (["--block", "-4"], "Option 'block' is -4; expected a positive number"),
        (["--block", "32", "--per-tensor"], "A block of 32 and one scale per tensor"),
        (["--weights", "int4", "--per-tensor"], "weights of int4 come in blocks"),
        (["--scale-type", "float8e8m0"], "do not go with int8 weights; expected one of float8e4m3fn, float8e5m2"),
        (["--scale-type", "float16", "--weights", "float4e2m1"], "expected one of float8e8m0"),
        (["--weights", "float4e2m1", "--scale-type", "float8e8m0", "--per-tensor"], "float8e8m0 scales come in blocks"),
        (["--matmul-nbits", "--block", "512"], "no blocks of 512; expected one of 16, 32, 64, 128, 256"),
        (["--matmul-nbits", "--block", "24"], "no blocks of 24; expected one of 16, 32, 64, 128, 256"),
        (["--matmul-nbits", "--weights", "float8e4m3fn"], "no float8e4m3fn weights; expected one of int8, uint8"),
        (["--calib", "c.npz"], "Option --calib is about calibration; weight-only mode calibrates nothing."),
        (["--stats", "c.npz"], "Option --stats is about calibration"),
        (["--random-calib", "4"], "Option --random-calib is about calibration"),
        (["--samples", "4"], "Option --samples is about calibration"),
        (["--shuffle", "0"], "Option --shuffle is about calibration"),
        (["--batch", "2"], "Option --batch is about calibration"),
        (["--on-nan", "skip"], "Option --on-nan is about calibration"),
        (["--max-memory", "4G"], "Option --max-memory is about calibration"),
        (["--method", "mse"], "Option --method is about activations"),
        (["--method", "auto"], "Option --method is about activations"),
        (["--method", "a*=mse"], "Option --method is about activations"),
        (["--dynamic"], "Dynamic mode and weight-only mode are asked for; expected one of them."),
        (["--format", "qdq"], "Option --format is about activations"),
        (["--format", "qlinear"], "Option --format is about activations"),
        (["--activations", "int8"], "Option --activations is about activations"),
        (["--symmetric"], "Option --symmetric is about activations"),
        (["--dedicated-qdq"], "Option --dedicated-qdq is about activations"),
    ],
)
def test_c51_impossible_combinations_before_any_work(work, command, args, said):
    before = snapshot(work)
    ended = command("quantize", "no_model.onnx", "--weight-only", *args)
    assert (ended.code, ended.out) == (2, "")
    (line,) = [line for line in ended.err.splitlines() if line.startswith("error:")]
    assert said in line
    assert snapshot(work) == before


@pytest.mark.parametrize(
    "args", [["--block", "32"], ["--scale-type", "float8e8m0"], ["--matmul-nbits"], ["--weights", "float4e2m1"]]
)
def test_c51_options_of_the_mode_need_the_mode(work, command, args):
    ended = command("quantize", "m.onnx", "--calib", "c.npz", *args)
    assert ended.code == 2
    assert "--weight-only" in ended.err or "expected one of" in ended.err


@pytest.mark.parametrize("block", [True, 1.5, "32"])
def test_c51_a_block_is_an_integer(block):
    with pytest.raises(ConfigError, match="expected a positive number"):
        qtool.quantize(mlp(64), weight_only=True, block=block)


def test_c51_there_is_nothing_to_calibrate(work, command):
    Path("c.toml").write_text("[quantize]\nweight_only = true\n")
    ended = command("calibrate", "m.onnx", "--data", "c.npz", "--config", "c.toml", "-o", "s.npz")
    assert (ended.code, ended.out) == (2, "")
    assert "Weight-only mode, which the config asks for, uses no statistics." in ended.err
    Path("c.toml").write_text("[quantize]\ndynamic = true\n")
    ended = command("calibrate", "m.onnx", "--data", "c.npz", "--config", "c.toml", "-o", "s.npz")
    assert (ended.code, ended.out) == (2, "")
    assert "Dynamic mode, which the config asks for, uses no statistics." in ended.err


# ----------------------------------------------------------------------------------------------------- the command


def test_the_command(work, command):
    ended = command("quantize", "m.onnx", "--weight-only", "--weights", "int4", "--block", "32")
    assert (ended.code, ended.out) == (0, "m.int4.onnx\n")
    assert "2 of 3 nodes quantized" in ended.err
    assert "Weights   21." in ended.err
    assert "SQNR" not in ended.err  # nothing was measured on samples
    assert "note: verified without samples: the result ran beside the float model in onnxruntime" in ended.err
    assert "hint: Measure it on real samples: qtool eval m.onnx m.int4.onnx" in ended.err
    assert command("eval", "m.onnx", "m.int4.onnx", "--data", "c.npz", "--fail-under", "sqnr=15").code == 0
    assert command("quantize", "m.onnx", "--weight-only", "--weights", "int4").code == 2  # exists


@pytest.mark.parametrize("weights", WEIGHT_ONLY_DTYPES)
def test_c09_every_type_is_written_and_evaluated(work, command, weights):
    ended = command("quantize", "m.onnx", "--weight-only", "--weights", weights)
    assert ended.code == 0
    path = ended.out.strip()
    assert path == f"m.{weights}.onnx"
    stored = {t.name: t.data_type for t in onnx.load(path).graph.initializer}
    assert stored["W1_quantized"] == getattr(TensorProto, weights.upper())
    lacking = weights == "float4e2m1"
    assert ("this version of onnxruntime cannot run the result" in ended.err) == lacking
    assert ("in the spec engine on seeded random input" in ended.err) == lacking
    assert ("--data EVAL.npz --engine spec" in ended.err) == lacking
    engine = ["--engine", "spec"] if lacking else []
    assert command("eval", "m.onnx", path, "--data", "c.npz", *engine).code == 0


def test_the_plan_of_a_dry_run(work, command):
    before = snapshot(work)
    ended = command("quantize", "m.onnx", "--weight-only", "--weights", "int4", "--exclude", "fc2", "--dry-run")
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines()]
    # 4096 elements of 4 bits, 128 scales of 4 bytes, 128 zero points of 4 bits
    (row,) = [row for row in rows if row[:1] == ["fc1"]]
    assert row[:4] == ["fc1", "MatMul", "weight-only", "int4"]
    assert row[-10:] == ["16384", "2624", *["int4", "blocks", "of", "32,", "16384", "->", "2624", "bytes"]]
    assert ["fc2", "MatMul", "float", "16384", "16384", "excluded", "by", "'fc2'"] in rows
    assert ["relu", "Relu", "float", "it", "has", "no", "weights"] in rows
    assert snapshot(work) == before


def test_json_and_inspect(work, command):
    ended = command("quantize", "m.onnx", "--weight-only", "--weights", "int4", "--json", "-")
    plan = json.loads(ended.out)["plan"]
    (weight,) = plan["decisions"][0]["weights"]
    assert weight["layout"] == "direct"
    assert weight["dtype"] == "int4"
    assert weight["bytes_after"] == 2624
    assert 21.0 < weight["sqnr_db"] < 23.0
    Path("c.toml").write_text("[quantize]\nweight_only = true\nweights = 'uint4'\nexclude = ['fc2']\n")
    ended = command("inspect", "m.onnx", "--config", "c.toml", "-v")
    assert ended.code == 0
    assert "uint4 blocks of 32" in ended.out
    assert "1 of 3 nodes would be quantized" in ended.out
    ended = command("inspect", "m.onnx", "--weight-only", "--weights", "int2", "--block", "64", "-v")
    assert ended.code == 0
    assert "int2 blocks of 64" in ended.out
    assert "2 of 3 nodes would be quantized" in ended.out


def test_json_is_not_written_over_an_output_that_the_config_names(work, command):
    Path("c.toml").write_text("[quantize]\nweight_only = true\nweights = 'uint4'\n")
    before = snapshot(work)
    ended = command("quantize", "m.onnx", "--config", "c.toml", "--json", "m.uint4.onnx")
    assert ended.code == 2
    assert "JSON file 'm.uint4.onnx' is a file that the command needs itself; expected another name." in ended.err
    assert snapshot(work) == before


def test_inspect_lists_the_nodes_inside_subgraphs(work, command):
    text = """m (float[1,64] x, bool c) => (float[1,64] y) {
        [if] y = If(c) <then_branch = a () => (float[1,64] p) { [fc] p = MatMul(x, w) },
                        else_branch = b () => (float[1,64] q) { [id] q = Relu(x) }>
    }"""
    onnx.save(build(text, {"w": normal(64, 64)}), "if.onnx")
    ended = command("inspect", "if.onnx", "--weight-only", "-v")
    rows = [line.split(maxsplit=3) for line in ended.out.splitlines() if line.startswith("if")]
    assert [row[:3] for row in rows[-3:]] == [
        ["if", "If", "float"],
        ["if/then_branch/fc", "MatMul", "weight-only"],
        ["if/else_branch/id", "Relu", "float"],
    ]
    assert rows[-3][3] == "the nodes inside its subgraphs are decided one by one"
    assert ended.out.splitlines()[-1] == "1 of 3 nodes would be quantized"


# -------------------------------------------------------------------------------------------------------- numbers


def test_c12_sizes():
    float_bytes = 256 * 256 * 4
    arrays = {"w": normal(256, 256)}
    whole = build("g (float[n, 256] x) => (float[n, 256] y) { y = MatMul (x, w) }", arrays)
    for weights, share in (("int8", 0.27), ("int4", 0.17), ("int2", 0.11)):
        result = qtool.quantize(whole, weight_only=True, weights=weights)
        assert result.bytes_after < share * float_bytes + 1500  # of the rest: names, settings, the graph
    result = qtool.quantize(whole, weight_only=True, weights="int4", block=128)
    assert result.bytes_after < 0.15 * float_bytes


def test_c12_c14_codes_are_packed_raw_data():
    array = np.zeros((64, 40), np.float32)
    array[:5, 0] = [-8, 2, -3, 4, -5]
    proto = build("g (float[n, 64] x) => (float[n, 40] y) { y = MatMul (x, w) }", {"w": array})
    result = qtool.quantize(proto, weight_only=True, weights="int4", block=64)
    assert result.model is not None
    (codes,) = (t for t in result.model.graph.initializer if t.name == "w_quantized")
    assert len(codes.raw_data) == 64 * 40 // 2
    assert not codes.int32_data
    np.testing.assert_array_equal(numpy_helper.to_array(codes)[:5, 0].astype(int), [-8, 2, -3, 4, -5])


def test_c14_partial_last_block():
    proto = build("g (float[n, 70] x) => (float[n, 40] y) { y = MatMul (x, w) }", {"w": normal(70, 40)})
    result = qtool.quantize(proto, weight_only=True, weights="int4", block=24)
    assert result.model is not None
    shapes = {t.name: tuple(t.dims) for t in result.model.graph.initializer}
    assert shapes == {"w_quantized": (70, 40), "w_scale": (3, 40), "w_zero_point": (3, 40)}
    (node,) = (n for n in result.model.graph.node if n.op_type == "DequantizeLinear")
    assert {a.name: a.i for a in node.attribute} == {"axis": 0, "block_size": 24}


@pytest.mark.parametrize(
    ("options", "opset", "ir"),
    [
        ({"weights": "int8"}, 17, 8),
        ({"weights": "int8", "block": 32}, 21, 10),
        ({"weights": "float8e4m3fn"}, 19, 9),
        ({"weights": "int4"}, 21, 10),
        ({"weights": "float4e2m1"}, 23, 11),
        ({"weights": "float8e5m2", "scale_type": "float8e8m0"}, 24, 12),
        ({"weights": "uint2"}, 25, 13),
    ],
)
def test_opset_and_ir_are_raised_as_the_type_needs(options, opset, ir):
    result = qtool.quantize(mlp(64), weight_only=True, **options)
    assert result.model is not None
    assert (result.model.opset_import[0].version, result.model.ir_version) == (opset, ir)


# ------------------------------------------------------------------------------------------------- what is left alone


def test_small_weights_stay_float_with_the_reason():
    with pytest.raises(NothingToQuantizeError, match="its weight of 256 bytes would save"):
        qtool.quantize(mlp(8), weight_only=True)
    result = qtool.quantize(mlp(8), weight_only=True, allow_empty=True)
    assert (result.quantized, result.total) == (0, 3)
    assert [s.expected for s in result.skips] == [True, True, True]


def test_other_constants_are_named_where_they_are_large():
    proto = build(
        "g (float[1, 64, 300] x) => (float[1, 64, 300] y) { a = Add (x, c) b = Mul (a, d) y = MatMul (b, w) }",
        {"c": normal(64, 300), "d": normal(300), "w": normal(300, 300)},
    )
    result = qtool.quantize(proto, weight_only=True)
    reasons = {s.op_type: s.reason for s in result.skips}
    assert reasons == {
        "Add": "its constant of 76800 bytes is not multiplied as a weight",
        "Mul": "it has no weights",
    }


def test_c37_selection(work):
    result = qtool.quantize("m.onnx", weight_only=True, include=["fc1"], output="q.onnx")
    assert [d.node for d in result.plan.decisions] == ["fc1"]
    assert {t.name for t in onnx.load("q.onnx").graph.initializer} >= {"W1_quantized", "W2"}
    with pytest.raises(ConfigError, match="'fc9' matches no node"):
        qtool.quantize("m.onnx", weight_only=True, exclude=["fc9"])


def test_weights_of_other_types_stay():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [3, 64])],
        [numpy_helper.from_array(np.ones((64, 64)), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(NothingToQuantizeError, match="its constant is double"):
        qtool.quantize(proto, weight_only=True)


def test_a_nan_in_a_weight_is_refused_by_name():
    proto = mlp(64)
    array = random(64, 64)
    array[3, 5] = np.nan
    (tensor,) = (t for t in proto.graph.initializer if t.name == "W2")
    tensor.CopyFrom(numpy_helper.from_array(array, "W2"))
    with pytest.raises(ModelError, match=r"Weight 'W2' holds nan at index \[3, 5\]"):
        qtool.quantize(proto, weight_only=True)
    assert qtool.quantize(proto, weight_only=True, exclude=["fc2"]).quantized == 1


def test_c39_quantized_models_are_refused(work):
    qtool.quantize("m.onnx", weight_only=True, matmul_nbits=True, output="q.onnx")
    with pytest.raises(ModelError, match="quantized already: it holds MatMulNBits"):
        qtool.quantize("q.onnx", weight_only=True)


# ------------------------------------------------------------------------------------------------------------- files


def test_two_runs_give_the_same_bytes(work):
    for name, threads in (("a.onnx", 1), ("b.onnx", 2)):
        qtool.quantize("m.onnx", weight_only=True, weights="uint4", output=name, num_threads=threads)
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    metadata = {p.key: p.value for p in onnx.load("a.onnx").metadata_props}
    assert json.loads(metadata["qtool.config"])["weight_only"] is True
    assert not any(key.startswith("qtool.calibration") for key in metadata)


def test_c50_external_data(work):
    save_external(mlp(64), work / "e.onnx", "e.data")
    result = qtool.quantize("e.onnx", weight_only=True, weights="int4")
    assert result.model_path == Path("e.int4.onnx")
    assert Path("e.int4.onnx.data").exists()
    assert result.bytes_after < 0.5 * result.bytes_before


# ------------------------------------------------------------------------------------------------------------ the trial


def info(name: str, shape: tuple[int | str | None, ...], dtype: type = np.float32) -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), shape)


def test_trial_input_gives_one_symbol_one_size():
    feeds, remarks = trial_feeds((info("x", ("b", "s", 4)), info("m", ("b", "s"), np.int64), info("h", (2, "b", None))))
    assert remarks == []
    shapes = [{name: array.shape for name, array in batch.items()} for _, batch in feeds]
    assert shapes == [{"x": (1, n, 4), "m": (1, n), "h": (2, 1, n)} for n in (64, 8, 512)]
    assert len(trial_feeds((info("x", (None, 4)),))[0]) == 1


def test_a_model_that_takes_no_made_up_input_is_loaded_and_that_is_said():
    feeds, remarks = trial_feeds((info("text", ("b",), np.str_),))
    assert feeds == []
    assert remarks[0].startswith("the result was loaded, but not run: Input 'text' is text")
    proto = model(
        [helper.make_node("Reshape", ["x", "five"], ["r"], "r"), helper.make_node("MatMul", ["r", "w"], ["y"], "mm")],
        {"w": random(64, 64), "five": np.array([5, -1, 64])},
        inputs={"x": [1, "s", 64]},
        outputs={"y": [5, "t", 64]},
    )
    result = qtool.quantize(proto, weight_only=True)
    assert result.verified_samples == 0
    assert any("random input does not suit the model" in note for note in result.notes)
