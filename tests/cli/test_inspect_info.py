"""``qtool inspect`` and ``qtool info``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qtool import kernels
from tests.cli.fakes import strict_json


def test_inspect_by_operator(api, qtool_command):
    fake = api()
    ended = qtool_command("inspect", "m.onnx", "--config", "c.toml")
    names = (
        "target",
        "weights",
        "dynamic",
        "weight_only",
        "block",
        "scale_type",
        "matmul_nbits",
        "prepare",
        "overrides",
    )
    modes = dict.fromkeys(names)
    assert fake.calls == [("inspect", (Path("m.onnx"),), {"config": Path("c.toml")} | modes)]
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
    assert ended.err == "hint: -v lists every node; --show quantized or --show skipped some of them.\n"


def test_inspect_every_node_with_control_characters_spelled_out(api, qtool_command):
    api()
    ended = qtool_command("inspect", "m.onnx", "-v")
    assert "bad\\x1b[31mname" in ended.out
    assert "\x1b" not in ended.out


def test_inspect_as_json(api, qtool_command):
    api()
    assert strict_json(qtool_command("inspect", "m.onnx", "--json", "-").out)["opset"] == 17


def test_info(qtool_command):
    ended = qtool_command("info")
    assert ended.code == 0
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in ended.out.splitlines()}
    facts = kernels.isa_info()
    assert rows["kernels: kernel"] == facts.kernel
    assert rows["kernels: openmp"] == ("yes" if facts.openmp else "no")
    assert int(rows["threads"]) >= 1
    assert set(rows) >= {"qtool", "python", "numpy", "onnx", "onnx-ir", "onnxruntime", "kernels: features"}
    found = strict_json(qtool_command("info", "--json", "-").out)
    assert found["kernels"]["supported"] == list(facts.supported)


@pytest.mark.parametrize("name", ["mmx", "SCALAR"])
def test_an_unknown_instruction_set_is_refused(name):
    run = subprocess.run(
        [sys.executable, "-m", "qtool", "info"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"QTOOL_ISA": name},
        cwd=Path(__file__).resolve().parents[2],
    )
    assert (run.returncode, run.stdout) == (2, "")
    first, second = run.stderr.splitlines()
    assert first.startswith("error: QTOOL_ISA")
    assert second.startswith("hint:")
