"""``--target`` on the command line: recorded, shown, refused, and the same from statistics."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool.targets import TARGETS
from tests.ended import Ended, run_command
from tests.targets.models import conv_net


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    model, samples = conv_net()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples)
    monkeypatch.chdir(tmp_path)
    for name in ("QTOOL_NUM_THREADS", "NO_COLOR", "FORCE_COLOR", "QTOOL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def command(capsys) -> Callable[..., Ended]:
    return partial(run_command, capsys)


def test_a_target_is_recorded_and_shown(work, command):
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "--target", "tensorrt")
    assert ended.code == 0, ended.err
    assert "Target    tensorrt (NVIDIA TensorRT, explicit quantization; from documentation)" in ended.err
    recorded = json.loads({p.key: p.value for p in onnx.load("m.int8.onnx").metadata_props}["qtool.config"])
    assert recorded == qtool.QuantConfig(target="tensorrt").to_dict()
    assert "Target" not in command("quantize", "m.onnx", "--calib", "c.npz", "--force").err


def test_avx2_says_which_layers_have_seven_bits(work, command):
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "--target", "avx2", "--json", "r.json")
    assert "int16 sums saturate without VNNI on 16 samples: 7-bit weights in 3 layers (" in " ".join(ended.err.split())
    decisions = json.loads(Path("r.json").read_text())["plan"]["decisions"]
    assert [d["node"] for d in decisions if "7-bit" in (d["note"] or "")] == ["node_Conv", "node_Conv_2", "node_Gemm"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--target", "tensorrt", "--format", "qlinear"], "target tensorrt takes qdq."),
        (["--target", "tensorrt", "--asymmetric"], "target tensorrt takes zero points of 0 only."),
        (["--target", "qnn", "--activations", "int8"], "target qnn takes uint8, uint16."),
        (["--target", "opnvino"], f"expected one of {', '.join(TARGETS)}."),
    ],
)
def test_what_cannot_be_is_refused_with_the_choices(work, command, args, said):
    ended = command("quantize", "m.onnx", "--calib", "c.npz", *args)
    assert ended.code == 2
    assert said in ended.err
    assert not Path("m.int8.onnx").exists()
    if args[1] == "opnvino":
        assert "hint: Did you mean 'openvino'?" in ended.err


def test_options_win_where_they_are_legal(work, command):
    Path("q.toml").write_text('[quantize]\ntarget = "ort-arm"\n')
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "--config", "q.toml", "--asymmetric", "--json", "-")
    config = json.loads(ended.out)["config"]
    assert (config["target"], config["activations"], config["symmetric_activations"]) == ("ort-arm", "int8", False)


def test_inspect_says_what_would_be_quantized_there(work, command):
    reasons = {}
    for target in ("ort-x64", "tensorrt"):
        ended = command("inspect", "m.onnx", "--target", target, "--json", "-")
        found = json.loads(ended.out)
        assert found["target"] == target
        reasons[target] = {n["node"]: n["decision"] for n in found["nodes"]}
    # a Relu has no place in a symmetric Conv, and behind a float result the pool has no codes to read
    differ = {node for node, decision in reasons["tensorrt"].items() if decision != reasons["ort-x64"][node]}
    assert differ == {"node_Relu", "node_Relu_1", "node_GlobalAveragePool"}
    shown = command("inspect", "m.onnx", "--target", "tensorrt").out
    assert "for target tensorrt (NVIDIA TensorRT, explicit quantization; from documentation)" in shown
    assert "for target" not in command("inspect", "m.onnx").out


def test_statistics_are_made_for_a_target(work, command):
    args = ("--target", "tensorrt")
    assert command("calibrate", "m.onnx", "--data", "c.npz", "-o", "s.npz", *args).code == 0
    for name, origin in (("a.onnx", ("--calib", "c.npz")), ("b.onnx", ("--stats", "s.npz"))):
        assert command("quantize", "m.onnx", *origin, "-o", name, *args).code == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert set(qtool.load_stats("s.npz").statistics) == {"x", "r1", "r2", "p", "g", "f"}


def test_help_lists_the_targets(command):
    words = " ".join(command("quantize", "--help").out.replace("│", " ").split())
    names = list(TARGETS)
    assert f"{', '.join(names[:-1])} or {names[-1]}" in words
