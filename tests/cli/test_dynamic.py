"""``--dynamic`` on the command line: what is said and written, and how it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.fakes import strict_json
from tests.models import build, normal

CALIBRATED = "is about calibrated activations; dynamic mode calibrates none."
TEXT = """m (float[A,64] x) => (float[A,32] y) {
    [fc] h = MatMul(x, w)
    [bias] g = Add(h, b)
    [t] u = Transpose(g)
    [scores] s = MatMul(g, u)
    [more] z = MatMul(s, g)
    [out] y = Relu(z)
}"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and samples, as the current folder."""
    onnx.save(build(TEXT, {"w": normal(64, 32), "b": normal(32, seed=1)}), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(8, 64, seed=2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_data(work, qtool_command):
    made = qtool_command("quantize", "m.onnx", "--dynamic")
    assert (made.code, made.out) == (0, "m.int8.onnx\n")
    lines = made.err.splitlines()
    assert lines[0] == "1 of 6 nodes quantized"
    # C34: one line for all products of activations
    assert [line for line in lines if "activations" in line] == [
        "     2  both operands are activations: scores (MatMul), more (MatMul)"
    ]
    assert any(line.startswith("SQNR") and line.endswith("at output y, on 2 random samples") for line in lines)
    assert "hint: Measure it on real samples: qtool eval m.onnx m.int8.onnx --data EVAL.npz" in lines
    judged = qtool_command("eval", "m.onnx", "m.int8.onnx", "--data", "d.npz", "--fail-under", "sqnr=25")
    assert judged.code == 0, judged.err


def test_given_data_verify(work, qtool_command):
    made = qtool_command("quantize", "m.onnx", "--dynamic", "--calib", "d.npz", "--json", "r.json")
    assert made.code == 0, made.err
    assert "on 4 given samples" in made.err
    found = strict_json((work / "r.json").read_text())
    assert (found["verified_samples"], found["verified_on"], found["config"]["dynamic"]) == (4, "given", True)


def test_dry_run_and_inspect(work, qtool_command):
    planned = qtool_command("quantize", "m.onnx", "--dynamic", "--dry-run")
    assert planned.code == 0
    assert planned.out.splitlines()[1].split()[:5] == ["fc", "MatMul", "dynamic", "uint8", "->"]
    seen = qtool_command("inspect", "m.onnx", "--dynamic", "-v")
    rows = [line.split(maxsplit=3) for line in seen.out.splitlines() if line.startswith(("fc ", "scores "))]
    assert [row[:3] for row in rows] == [["fc", "MatMul", "dynamic"], ["scores", "MatMul", "float"]]
    assert rows[1][3] == "both operands are activations"
    assert seen.out.splitlines()[-1] == "1 of 6 nodes would be quantized"
    assert sorted(p.name for p in work.iterdir()) == ["d.npz", "m.onnx"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stats", "d.npz"], "Option --stats is about calibration; dynamic mode calibrates nothing."),
        (["--random-calib", "4"], "Option --random-calib is about calibration; dynamic mode calibrates nothing."),
        (["--batch", "2"], "Option --batch is about calibration; dynamic mode calibrates nothing."),
        (["--on-nan", "skip"], "Option --on-nan is about calibration; dynamic mode calibrates nothing."),
        (["--max-memory", "4G"], "Option --max-memory is about calibration; dynamic mode calibrates nothing."),
        (["--samples", "4"], "A number of samples is given without calibration data to choose from."),
        (["--shuffle", "0"], "A shuffle is given without calibration data to choose from."),
        (["--weight-only"], "Dynamic mode and weight-only mode are asked for; expected one of them."),
        (["--block", "32"], "Option --block belongs to weight-only mode; expected --weight-only with it."),
        (["--method", "auto"], f"Option 'method' {CALIBRATED}"),
        (["--method", "x=mse"], f"Option 'tensor_methods' {CALIBRATED}"),
        (["--activations", "int8"], "Dynamic mode quantizes activations to uint8; found int8."),
        (["--weights", "int4", "--format", "qdq"], "Dynamic mode has weights of int8 or uint8; found int4."),
        (["--method", "mse"], f"Option 'method' {CALIBRATED}"),
        (["--symmetric"], f"Option 'symmetric_activations' {CALIBRATED}"),
        (["--dedicated-qdq"], f"Option 'dedicated_qdq' {CALIBRATED}"),
        (["--exclude", "fcc"], "--exclude 'fcc' matches no node of the model."),
    ],
)  # fmt: skip
def test_bad_combinations_are_one_line(work, qtool_command, args, said):
    ended = qtool_command("quantize", "m.onnx", "--dynamic", *args)
    assert (ended.code, ended.errors) == (2, [f"error: {said}"])
    assert sorted(p.name for p in work.iterdir()) == ["d.npz", "m.onnx"]


def test_nothing_is_exit_1(work, qtool_command):
    ended = qtool_command("quantize", "m.onnx", "--dynamic", "--exclude", "fc")
    assert ended.code == 1
    assert ended.errors[0].startswith("error: 0 of 6 nodes were quantized: excluded by 'fc'.")
