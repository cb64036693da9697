"""``qtool inspect`` and ``qtool info``."""

from __future__ import annotations

from pathlib import Path

from qtool import kernels
from tests.cli.fakes import strict_json


def test_inspect_by_operator(api, qtool_command):
    fake = api()
    ended = qtool_command("inspect", "m.onnx", "--config", "c.toml")
    assert fake.calls == [("inspect", (Path("m.onnx"),), {"config": Path("c.toml")})]
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "m.onnx",
        "opset 17, IR version 8, domains ai.onnx",
        "26.5 kB in all, 24.0 kB of weights",
        "",
        "        name  type     shape",
        "input   x     float32  [N, 3, ?]",
        "output  y     float32  [N, 10]",
        "",
        "operator  nodes  quantized  left in float because",
        "Conv          2          1  its weight is not constant",
        "Shape         1          0  computes no floats",
        "",
        "1 of 3 nodes would be quantized",
    ]
    assert ended.err == "hint: -v lists every node.\n"


def test_inspect_every_node_with_control_characters_spelled_out(api, qtool_command):
    api()
    ended = qtool_command("inspect", "m.onnx", "-v")
    assert "bad\\x1b[31mname" in ended.out
    assert "\x1b" not in ended.out


def test_inspect_as_json(api, qtool_command):
    api()
    assert strict_json(qtool_command("inspect", "m.onnx", "--json", "-").out)["opset"] == 17


def test_info(qtool_command, monkeypatch):
    facts = {"active": "scalar", "supported": ["scalar", "avx2"], "openmp": True, "threads": 2}
    monkeypatch.setattr(kernels, "isa_info", lambda: facts, raising=False)
    ended = qtool_command("info")
    assert ended.code == 0
    rows = dict(line.rsplit("  ", 1) for line in ended.out.splitlines())
    rows = {key.strip(): value.strip() for key, value in rows.items()}
    assert rows["kernels: supported"] == "scalar, avx2"
    assert rows["kernels: openmp"] == "yes"
    assert set(rows) >= {"qtool", "python", "numpy", "onnx", "onnx-ir", "onnxruntime"}
    assert strict_json(qtool_command("info", "--json", "-").out)["kernels"] == facts


def test_info_with_an_unknown_instruction_set(qtool_command, monkeypatch):
    def refuse():
        raise ValueError("QTOOL_ISA is 'mmx'; expected one of scalar, avx2")

    monkeypatch.setattr(kernels, "isa_info", refuse, raising=False)
    ended = qtool_command("info")
    assert ended.code == 2
    assert ended.errors == ["error: QTOOL_ISA is 'mmx'; expected one of scalar, avx2"]
