"""``qtool eval --checks``: on the screen, in JSON, in markdown and in HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.models import build

QDQ = """
g (float[N,8] x) => (float[N,1] y) {
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis=1>(w, sw, zw)
  [product] y = MatMul(xd, wd)
}"""
ARRAYS: dict[str, Any] = {
    "w": np.full((8, 1), 127, np.int8),
    "sx": np.float32(1 / 255),
    "zx": np.uint8(0),
    "sw": np.full(1, 1 / 127, np.float32),
    "zw": np.zeros(1, np.int8),
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Case 63: weights and inputs of 1."""
    reference = build("g (float[N,8] x) => (float[N,1] y) { y = MatMul(x, w) }", {"w": np.ones((8, 1), np.float32)})
    onnx.save(reference, tmp_path / "float.onnx")
    onnx.save(build(QDQ, ARRAYS), tmp_path / "quantized.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((2, 8), np.float32))
    return [str(tmp_path / "float.onnx"), str(tmp_path / "quantized.onnx"), "--data", str(tmp_path / "data.npz")]


def test_quick_checks_are_on_the_screen_and_in_json(files: list[str], qtool_command: Any, tmp_path: Path) -> None:
    ended = qtool_command("eval", *files, "--no-latency", "--json", str(tmp_path / "r.json"))
    assert ended.code == 0
    assert "Runtime checks" in ended.out
    assert "onnxruntime computes 1 of 1 quantized products (MatMul) on codes." in " ".join(ended.out.split())
    found = json.loads((tmp_path / "r.json").read_text())["checks"]
    assert [(check["name"], check["state"]) for check in found] == [
        ("miscompile", "ok"),
        ("fusion", "ok"),
        ("ranges", "ok"),
    ]


def test_chosen_checks_show_findings_in_every_form(files: list[str], qtool_command: Any, tmp_path: Path) -> None:
    targets = {form: str(tmp_path / form) for form in ("json", "markdown", "html")}
    options = [arg for form, name in targets.items() for arg in (f"--{form}", name)]
    ended = qtool_command("eval", *files, "--no-latency", "--checks", "saturation", "--checks", "fusion", *options)
    assert ended.code == 0
    assert "Findings" in ended.out
    for target in targets.values():
        text = Path(target).read_text()
        assert "8 of 8 pairs saturate" in text
        assert "--target avx2" in text
    found = json.loads(Path(targets["json"]).read_text())["checks"]
    assert [(check["name"], check["state"]) for check in found] == [("fusion", "ok"), ("saturation", "flagged")]
    assert "| ⚠️ | Accuracy on a processor without VNNI |" in Path(targets["markdown"]).read_text()


def test_none_and_a_wrong_name(files: list[str], qtool_command: Any, tmp_path: Path) -> None:
    ended = qtool_command("eval", *files, "--no-latency", "--checks", "none", "--json", str(tmp_path / "r.json"))
    assert ended.code == 0
    assert json.loads((tmp_path / "r.json").read_text())["checks"] is None
    wrong = qtool_command("eval", *files, "--checks", "speed")
    assert wrong.code == 2
    assert wrong.errors == [
        "error: There is no check 'speed'; expected quick, all, none or miscompile, fusion, ranges, saturation, memory."
    ]


def test_another_engine_shows_the_other_processor(files: list[str], qtool_command: Any, tmp_path: Path) -> None:
    values = {}
    for engine in ("spec", "spec-avx2"):
        target = str(tmp_path / f"{engine}.json")
        ended = qtool_command("eval", *files, "--engine", engine, "--checks", "none", "--json", target)
        assert ended.code == 0
        values[engine] = json.loads(Path(target).read_text())["outputs"][0]["values"]["max_abs"]
    assert values["spec"] < 1e-5
    assert values["spec-avx2"] == pytest.approx(8 - 4 * 32767 / (255 * 127), abs=1e-4)
