"""``qtool eval`` on real models: settings of a file, metrics of one's own, gates on accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.fakes import strict_json

MODEL = '<ir_version: 8, opset_import: ["" : 17]> m (float[N, 3] x) => (float[N, 3] y, float[N] s) {{ {} }}'
OWN = """
def gap(reference, candidate):
    return abs(reference - candidate).max()
def broken(reference, candidate):
    raise RuntimeError("out of luck")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, its rounded form, and 40 samples of which rounding turns 8 around."""
    axis = "axis = Constant<value_ints=[1]>()"
    for name, body in (("float", "y = Identity(x)"), ("quant", "r = Round(x) y = Identity(r)")):
        text = MODEL.format(f"{axis} {body} s = ReduceSum<keepdims=0>(y, axis)")
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    x = np.eye(3, dtype=np.float32)[np.arange(40) % 3]
    x[:8] = [0.6, 0.7, 0.1]  # class 1; rounded, a tie that class 0 wins
    np.savez(tmp_path / "data.npz", x=x, labels=x.argmax(-1))
    (tmp_path / "own_metrics_of_cli.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ARGS = ("eval", "float.onnx", "quant.onnx", "--data", "data.npz", "--no-latency")


def test_a_drop_is_measured_gated_and_doubted(work, qtool_command):
    ended = qtool_command(*ARGS, "--labels", "labels", "--fail-over", "drop=20pp", "--json", "r.json")
    assert ended.code == 0, ended.err
    document = strict_json((work / "r.json").read_text())
    output = document["outputs"][0]
    assert (output["float_values"]["top1"], output["values"]["top1"]) == (1.0, 0.8)
    found = output["statistics"]["top1"]
    assert (found["n"], found["lost"], found["gained"], found["p_value"]) == (40, 8, 0, 2 / 256)
    assert found["interval"][0] < -0.2 < found["interval"][1] < 0
    assert document["gates"][0]["value"] == 20.0
    ended = qtool_command(*ARGS, "--labels", "labels", "--fail-over", "drop=19.9pp", "--fail-over", "drop:f1=1%")
    assert ended.code == 1
    assert len(ended.errors) == 2
    assert ended.errors[0].startswith("error: drop of top1 of output 'y' is 20 pp, over 19.9 pp. Its 95 % interval is ")


def test_a_file_gates(work, qtool_command):
    (work / "qtool.toml").write_text(
        "[quantize]\nformat = 'qdq'\n[eval]\nlabels = 'labels'\noutput = 'y'\n"
        "fail_under = {sqnr = 5, 'own_metrics_of_cli:gap' = 0.1}\nmin_agreement = 80\n"
    )
    ended = qtool_command(*ARGS, "--config", "qtool.toml", "--json", "-")
    assert ended.code == 0, ended.err
    document = strict_json(ended.out)
    assert [output["name"] for output in document["outputs"]] == ["y"]
    assert document["outputs"][0]["values"]["own_metrics_of_cli:gap"] == pytest.approx(0.4)
    assert [gate["passed"] for gate in document["gates"]] == [True] * 3
    assert qtool_command(*ARGS, "--config", "qtool.toml", "--min-agreement", "81").code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--metric", "own_metrics_of_cli:broken"], "'own_metrics_of_cli:broken' raised RuntimeError: out of luck."),
        (["--metric", "own_metrics_of_cli:gone"], "module 'own_metrics_of_cli' has no 'gone'."),
        (["--metric", "gone_metrics:f"], "module 'gone_metrics' cannot be imported"),
        (["--output", "z"], "The model has no output 'z'; expected one of: y, s."),
        (["--metric", "sqnrr"], "did you mean 'sqnr'?"),
        (["--labels", "labels", "--metric", "r2"], "Metric 'r2' compares with regression targets"),
        (["--labels", "labels", "--metric", "wer"], "Metric 'wer' compares words"),
        (["--word-separator", "3"], "A word separator is given without labels."),
    ],
)
def test_mistakes_are_one_line(work, qtool_command, args, message):
    ended = qtool_command(*ARGS, *args)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert message in ended.errors[0]


def test_everything_at_once(work, qtool_command):
    ended = qtool_command(*ARGS, "--labels", "labels", "--metric", "all")
    assert ended.code == 0, ended.err
    assert "Flip margin" in ended.out
    assert "F1 (macro)" in ended.out
