"""The command line on the bundled model: what a new user does, and every mistake that one makes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.fakes import strict_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def work(examples, tmp_path, monkeypatch) -> Path:
    """A folder of its own with the example in it, as the current folder."""
    for name, source in {
        "m.onnx": "mnist_cnn.onnx",
        "calib.npz": "mnist_calib.npz",
        "eval.npz": "mnist_eval.npz",
    }.items():
        (tmp_path / name).write_bytes((examples / source).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def test_quantize_and_eval(work, qtool_command):
    before = snapshot(work)
    made = qtool_command("quantize", "m.onnx", "--calib", "calib.npz")
    assert (made.code, made.out) == (0, "m.int8.onnx\n")
    assert operators(work / "m.int8.onnx") >= {"QuantizeLinear", "QLinearConv", "DequantizeLinear"}
    assert made.err.splitlines()[0] == "9 of 9 nodes quantized"
    assert "SQNR" in made.err
    assert snapshot(work) == before | {"m.int8.onnx": snapshot(work)["m.int8.onnx"]}

    gates = ["--fail-under", "sqnr=20", "--fail-under", "top1_agreement=0.95", "--fail-under", "size_ratio=1"]
    args = ["m.onnx", "m.int8.onnx", "--data", "eval.npz", "--labels", "labels", *gates, "--json", "r.json"]
    judged = qtool_command("eval", *args)
    assert judged.code == 0, judged.err
    report = strict_json((work / "r.json").read_text())
    assert report["samples"] == 160
    (output,) = report["outputs"]
    assert output["values"]["sqnr"] >= 20
    assert set(output["values"]) >= {"top1", "top5", "top1_agreement", "cosine", "max_abs"}
    assert qtool_command("eval", "m.onnx", "m.int8.onnx", "--data", "eval.npz", "--fail-under", "sqnr=200").code == 1


def test_the_spec_engine_judges_as_onnxruntime_does(work, qtool_command):
    assert qtool_command("quantize", "m.onnx", "--calib", "calib.npz").code == 0
    args = ["eval", "m.onnx", "m.int8.onnx", "--data", "eval.npz", "--json", "-"]
    spec = strict_json(qtool_command(*args, "--engine", "spec").out)
    ort = strict_json(qtool_command(*args, "--no-latency").out)
    assert (spec["engine"], ort["engine"]) == ("spec", "ort")
    assert spec["latency"] is None
    (found,), (expected,) = spec["outputs"], ort["outputs"]
    assert found["values"]["sqnr"] == pytest.approx(expected["values"]["sqnr"], abs=0.01)
    shown = qtool_command("eval", "m.onnx", "m.int8.onnx", "--data", "eval.npz", "--engine", "spec")
    assert "Outputs, 160 samples, quantized model in engine spec" in shown.out


def test_an_unknown_engine(work, qtool_command):
    ended = qtool_command("eval", "m.onnx", "m.onnx", "--data", "eval.npz", "--engine", "tvm")
    assert ended.code == 2
    assert ended.errors == ["error: Unknown engine 'tvm'; expected one of ort, spec, spec-avx2."]


def test_qdq_from_another_folder_with_settings_from_a_file(work, qtool_command):
    (work / "c.toml").write_text('[quantize]\nformat = "qlinear"\nper_channel = false\n')
    (work / "sub").mkdir()
    os.chdir(work / "sub")
    args = ["--calib", "../calib.npz", "--config", "../c.toml", "--format", "qdq", "-o", "q.onnx", "--json", "-"]
    ended = qtool_command("quantize", "../m.onnx", *args)
    assert ended.code == 0, ended.err
    result = strict_json(ended.out)
    assert result["config"]["format"] == "qdq"
    assert result["config"]["per_channel"] is False
    assert "QLinearConv" not in operators(work / "sub" / "q.onnx")


def test_dry_run_writes_nothing(work, qtool_command):
    before = snapshot(work)
    ended = qtool_command("quantize", "m.onnx", "--dry-run")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[0].split() == [
        *("node", "operator", "becomes", "activations", "weights", "scales", "bytes", "then", "remark"),
    ]
    assert "operator" in ended.out.splitlines()[1]
    assert snapshot(work) == before


def test_inspect(work, qtool_command):
    ended = qtool_command("inspect", "m.onnx")
    assert ended.code == 0, ended.err
    assert "input Input3 float32 [1, 1, 28, 28]" in [" ".join(line.split()) for line in ended.out.splitlines()]
    names = {row["node"] for row in strict_json(qtool_command("inspect", "m.onnx", "--json", "-").out)["nodes"]}
    assert names
    listed = qtool_command("inspect", "m.onnx", "-v").out
    assert all(name in listed for name in names)


def damage(work: Path) -> None:
    """Files for the mistakes below."""
    data = (work / "m.onnx").read_bytes()
    (work / "truncated.onnx").write_bytes(data[: len(data) // 2])
    (work / "text.onnx").write_text("not a model\n")
    (work / "empty.onnx").write_bytes(b"")
    np.savez(work / "key.npz", Wrong=np.zeros((4, 1, 28, 28), np.float32))
    np.savez(work / "shape.npz", Input3=np.zeros((4, 3, 28, 28), np.float32))
    np.savez(work / "none.npz", Input3=np.zeros((0, 1, 28, 28), np.float32))
    nan = np.zeros((4, 1, 28, 28), np.float32)
    nan[2, 0, 3, 3] = np.nan
    np.savez(work / "nan.npz", Input3=nan)
    (work / "zip.npz").write_bytes((work / "calib.npz").read_bytes()[:1000])
    (work / "bad.toml").write_text("[quantize\n")
    (work / "key.toml").write_text("[quantize]\nformt = 'qdq'\n")
    (work / "there.onnx").write_bytes(b"somebody's")


CALIB = ("--calib", "calib.npz")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gone.onnx", *CALIB], "gone.onnx"),
        ([".", *CALIB], "."),
        (["truncated.onnx", *CALIB], "truncated.onnx"),
        (["text.onnx", *CALIB], "text.onnx"),
        (["empty.onnx", *CALIB], "empty.onnx"),
        (["m.onnx"], "calibration data"),
        (["m.onnx", "--calib", "gone.npz"], "gone.npz"),
        (["m.onnx", "--calib", "key.npz"], "Input3"),
        (["m.onnx", "--calib", "shape.npz"], "Input3"),
        (["m.onnx", "--calib", "none.npz"], "none.npz"),
        (["m.onnx", "--calib", "nan.npz"], "NaN"),
        (["m.onnx", "--calib", "zip.npz"], "zip.npz"),
        (["m.onnx", *CALIB, "--random-calib", "2"], "andom"),
        (["m.onnx", *CALIB, "--stats", "gone.npz"], "expected one of them"),
        (["m.onnx", "--stats", "gone.npz"], "gone.npz"),
        (["m.onnx", "--stats", "calib.npz"], "holds no statistics"),
        (["m.onnx", "--stats", "m.onnx"], "no zip archive"),
        (["m.onnx", *CALIB, "-o", "calib.npz", "--force"], "calib.npz"),
        (["m.onnx", *CALIB, "--format", "banana"], "qlinear, qdq"),
        (["m.onnx", *CALIB, "--activations", "banana"], "uint8, int8, uint16, int16"),
        (["m.onnx", *CALIB, "--activations", "int16"], "uint8/int8"),
        (["m.onnx", *CALIB, "--activations", "int8", "--weights", "uint8"], "int8/int8"),
        (["m.onnx", *CALIB, "--method", "banana"], "minmax"),
        (["m.onnx", *CALIB, "--exclude", "op:Cnov"], "op:Cnov"),
        (["m.onnx", *CALIB, "--include", "Convolution2"], "Convolution2"),
        (["m.onnx", *CALIB, "--config", "gone.toml"], "gone.toml"),
        (["m.onnx", *CALIB, "--config", "bad.toml"], "bad.toml"),
        (["m.onnx", *CALIB, "--config", "key.toml"], "formt"),
        (["m.onnx", *CALIB, "-o", "m.onnx"], "m.onnx"),
        (["m.onnx", *CALIB, "-o", "m.onnx", "--force"], "m.onnx"),
        (["m.onnx", *CALIB, "-o", "there.onnx"], "there.onnx"),
        (["m.onnx", *CALIB, "-o", "gone/q.onnx"], "gone"),
        (["m.onnx", *CALIB, "-o", "."], "."),
        (["m.onnx", *CALIB, "-o", "/proc/q.onnx"], "/proc"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(work, qtool_command, args, said):
    damage(work)
    before = snapshot(work)
    ended = qtool_command("quantize", *args)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert len(ended.errors) == 1, ended.err
    assert ended.errors[0].startswith("error: ")
    assert said in ended.errors[0]
    assert snapshot(work) == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["m.onnx"], "--data"),
        (["gone.onnx", "--data", "calib.npz"], "gone.onnx"),
        (["truncated.onnx", "--data", "calib.npz"], "truncated.onnx"),
        (["m.onnx", "--data", "gone.npz"], "gone.npz"),
        (["m.onnx", "--data", "key.npz"], "Input3"),
        (["m.onnx", "--data", "nan.npz"], "NaN"),
        (["m.onnx", "--data", "zip.npz"], "zip.npz"),
        (["m.onnx", "--data", "calib.npz", "--config", "bad.toml"], "bad.toml"),
        (["m.onnx", "--data", "calib.npz", "-o", "there.onnx"], "exists already"),
        (["m.onnx", "--data", "calib.npz", "-o", "m.onnx", "--force"], "input model itself"),
        (["m.onnx", "--data", "calib.npz", "-o", "calib.npz", "--force"], "calibrated from"),
        (["m.onnx", "--data", "calib.npz", "-o", "gone/s.npz"], "gone"),
        (["m.onnx", "--data", "calib.npz", "-o", "."], "directory"),
        (["m.onnx", "--data", "calib.npz", "--json", "m.stats.npz"], "m.stats.npz"),
    ],
)
def test_a_mistake_of_calibrate_is_one_line_and_leaves_nothing(work, qtool_command, args, said):
    damage(work)
    before = snapshot(work)
    ended = qtool_command("calibrate", *args)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert len(ended.errors) == 1, ended.err
    assert said in ended.errors[0]
    assert snapshot(work) == before


def test_calibrate_once_quantize_often(work, qtool_command):
    made = qtool_command("calibrate", "m.onnx", "--data", "calib.npz")
    assert (made.code, made.out) == (0, "m.stats.npz\n"), made.err
    assert "6 tensors observed on 128 samples" in made.err
    assert "qtool quantize m.onnx --stats m.stats.npz" in made.err
    for method in ("minmax", "mse"):
        given = qtool_command("quantize", "m.onnx", *CALIB, "--method", method, "-o", "data.onnx", "--force")
        saved = qtool_command(
            "quantize", "m.onnx", "--stats", "m.stats.npz", "--method", method, "-o", "stats.onnx", "--force"
        )
        assert (given.code, saved.code) == (0, 0), saved.err
        assert (work / "data.onnx").read_bytes() == (work / "stats.onnx").read_bytes()
    assert qtool_command("quantize", "m.onnx", "--stats", "m.stats.npz", "--dry-run").code == 0


@pytest.mark.parametrize(
    "args",
    [
        ["m.onnx", "gone.onnx", "--data", "eval.npz"],
        ["truncated.onnx", "m.onnx", "--data", "eval.npz"],
        ["m.onnx", "truncated.onnx", "--data", "eval.npz"],
        ["m.onnx", "m.onnx", "--data", "gone.npz"],
        ["m.onnx", "m.onnx", "--data", "key.npz"],
        ["m.onnx", "m.onnx", "--data", "shape.npz"],
        ["m.onnx", "m.onnx", "--data", "eval.npz", "--labels", "lables"],
        ["m.onnx", "m.onnx", "--data", "eval.npz", "--metric", "banana"],
        ["m.onnx", "m.onnx", "--data", "eval.npz", "--metric", "top1"],
    ],
)
def test_a_mistake_of_eval_is_one_line(work, qtool_command, args):
    damage(work)
    ended = qtool_command("eval", *args)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert len(ended.errors) == 1, ended.err


@pytest.mark.parametrize("name", ["gone.onnx", "truncated.onnx", "text.onnx", "empty.onnx", "."])
def test_a_mistake_of_inspect_is_one_line(work, qtool_command, name):
    damage(work)
    ended = qtool_command("inspect", name)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert len(ended.errors) == 1, ended.err


def test_force_overwrites(work, qtool_command):
    damage(work)
    assert qtool_command("quantize", "m.onnx", *CALIB, "-o", "there.onnx", "--force").code == 0
    onnx.checker.check_model(work / "there.onnx", full_check=True)


def test_nothing_to_quantize(work, qtool_command):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { y = Identity(x) }'
    onnx.save(onnx.parser.parse_model(text), work / "i.onnx")
    np.savez(work / "x.npz", x=np.ones((3, 4), np.float32))
    before = snapshot(work)
    ended = qtool_command("quantize", "i.onnx", "--calib", "x.npz")
    assert (ended.code, ended.out) == (1, "")
    assert "0 of 1 nodes" in ended.errors[0]
    assert snapshot(work) == before
    assert qtool_command("quantize", "i.onnx", "--calib", "x.npz", "--allow-empty").code == 0
    assert (work / "i.int8.onnx").is_file()


@pytest.mark.parametrize("delay", [0.3, 0.8])
def test_ctrl_c_leaves_nothing(work, delay):
    many = np.tile(np.load(work / "calib.npz")["Input3"], (200, 1, 1, 1))
    np.savez(work / "many.npz", Input3=many)
    before = snapshot(work)
    process = subprocess.Popen(
        [sys.executable, "-m", "qtool", "quantize", "m.onnx", "--calib", "many.npz"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted, nothing was written" in err
    assert "Traceback" not in err
    assert snapshot(work) == before
