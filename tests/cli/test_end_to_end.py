"""The README's flow in processes of its own, whole commands, and the documents held against the program."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer

import qtool
from qtool.cli.app import app
from qtool.evaluate.metrics import METRICS
from tests.cli.fakes import strict_json

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "quantize",
    "calibrate",
    "eval",
    "compare",
    "inspect",
    "prepare",
    "convert",
    "diff",
    "info",
    "bench kernels",
    "stats show",
    "stats merge",
    "stats diff",
)
CALIB = ("--calib", "calib.npz")


def example(examples: Path, folder: Path) -> Path:
    for name, source in {
        "model.onnx": "mnist_cnn.onnx",
        "calib.npz": "mnist_calib.npz",
        "eval.npz": "mnist_eval.npz",
    }.items():
        (folder / name).write_bytes((examples / source).read_bytes())
    return folder


@pytest.fixture
def work(examples, tmp_path) -> Path:
    """The example under the names that the README uses."""
    return example(examples, tmp_path)


@pytest.fixture(scope="module")
def judged(examples, tmp_path_factory) -> Path:
    """The same with the quantized model beside it, for tests that write elsewhere."""
    folder = example(examples, tmp_path_factory.mktemp("judged"))
    qtool.quantize(folder / "model.onnx", folder / "calib.npz", num_threads=1)
    return folder


def run(work: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("QTOOL_DEBUG", "QTOOL_NUM_THREADS", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "qtool", *args],
        cwd=work,
        env=clean | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_flow_of_the_readme(work):
    made = run(work, "quantize", "model.onnx", *CALIB)
    assert (made.returncode, made.stdout) == (0, "model.int8.onnx\n"), made.stderr
    # the hint is a command that works, with data in place of EVAL.npz
    (hint,) = [line for line in made.stderr.splitlines() if line.startswith("hint:")]
    command = shlex.split(hint[hint.index("qtool eval") :].replace("EVAL.npz", "eval.npz"))
    assert command[0] == "qtool"
    judged = run(work, *command[1:], "--labels", "labels", "--json", "-")
    assert judged.returncode == 0, judged.stderr
    report = strict_json(judged.stdout)
    values = report["outputs"][0]["values"]
    assert values["sqnr"] > 30
    assert values["top1"] > 0.9
    assert values["top1_agreement"] > 0.97
    assert report["sizes"]["quantized_bytes"] == (work / "model.int8.onnx").stat().st_size
    assert report["sizes"]["float_bytes"] == (work / "model.onnx").stat().st_size


@pytest.mark.parametrize(
    ("gates", "code", "failures"),
    [
        (["--fail-under", "sqnr=20", "--fail-under", "top1=0.9"], 0, 0),
        (["--fail-under", "sqnr=200"], 1, 1),
        (["--fail-under", "sqnr=200", "--fail-under", "top1=0.9", "--fail-over", "max_abs=1e-6"], 1, 2),
        (["--fail-under", "size_ratio=2"], 0, 0),
        (["--fail-under", "size_ratio=50"], 1, 1),
    ],
)
def test_gates(judged, qtool_command, monkeypatch, tmp_path, gates, code, failures):
    monkeypatch.chdir(judged)
    args = ["eval", "model.onnx", "model.int8.onnx", "--data", "eval.npz", "--labels", "labels", "--no-latency"]
    ended = qtool_command(*args, "--json", str(tmp_path / "r.json"), *gates)
    assert ended.code == code
    assert sum(line.startswith("error: ") for line in ended.err.splitlines()) == failures
    assert strict_json((tmp_path / "r.json").read_text())["samples"] == 160  # complete although a gate failed


def test_json_is_strict_everywhere(work, qtool_command, monkeypatch):
    monkeypatch.chdir(work)
    commands = [
        ["info"],
        ["inspect", "model.onnx"],
        ["quantize", "model.onnx", "--dry-run"],
        ["quantize", "model.onnx", *CALIB, "--exclude", "*", "--allow-empty", "-o", "same.onnx"],  # SQNR inf
        ["eval", "model.onnx", "same.onnx", "--data", "eval.npz", "--no-latency"],
    ]
    for command in commands:
        ended = qtool_command(*command, "--json", "-")
        assert ended.code == 0, ended.err
        strict_json(ended.out)
        again = qtool_command(*command, "--json", "out.json", *(["--force"] if "-o" in command else []))
        assert again.code == 0, again.err
        assert strict_json((work / "out.json").read_text()).keys() == strict_json(ended.out).keys()
    result = strict_json(qtool_command(*commands[3], "--force", "--json", "-").out)
    assert list(result["sqnr_db"].values()) == ["inf"]


def test_inspect_and_info(work):
    ended = run(work, "inspect", "model.onnx")
    assert (ended.returncode, "9 of 9 nodes would be quantized" in ended.stdout) == (0, True)
    ended = run(work, "info")
    assert ended.returncode == 0
    assert qtool.__version__ in ended.stdout
    assert "onnxruntime" in ended.stdout
    assert run(work, "--version").stdout == f"qtool {qtool.__version__}\n"


def test_dry_run_needs_no_samples_and_writes_nothing(work):
    before = sorted(p.name for p in work.iterdir())
    ended = run(work, "quantize", "model.onnx", "--dry-run")
    assert ended.returncode == 0
    assert sorted(p.name for p in work.iterdir()) == before
    # given samples are checked all the same
    assert run(work, "quantize", "model.onnx", "--dry-run", "--calib", "gone.npz").returncode == 2


def test_a_reader_that_has_seen_enough(work):
    line = f'"{sys.executable}" -m qtool inspect model.onnx -v | head -n 1'
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=work, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "model.onnx\n")
    assert "Broken" not in ended.stderr


WRONG = {
    "no command": (["quantise"], 2),
    "unknown option": (["quantize", "model.onnx", "--bogus"], 2),
    "missing argument": (["quantize"], 2),
    "missing value": (["quantize", "model.onnx", "--calib"], 2),
    "too many arguments": (["quantize", "model.onnx", "b", *CALIB], 2),
    "threads 0": (["quantize", "model.onnx", *CALIB, "--threads", "0"], 2),
    "threads text": (["quantize", "model.onnx", *CALIB, "--threads", "two"], 2),
    "random 0": (["quantize", "model.onnx", "--random-calib", "0"], 2),
    "no samples": (["quantize", "model.onnx"], 2),
    "parameter of percentile": (["quantize", "model.onnx", *CALIB, "--method", "percentile:200"], 2),
    "parameter of minmax": (["quantize", "model.onnx", *CALIB, "--method", "minmax:3"], 2),
    "empty pattern": (["quantize", "model.onnx", *CALIB, "--exclude", ""], 2),
    "everything excluded": (["quantize", "model.onnx", *CALIB, "--exclude", "*"], 1),
    "samples are a folder": (["quantize", "model.onnx", "--calib", "."], 2),
    "samples are a model": (["quantize", "model.onnx", "--calib", "model.onnx"], 2),
    "samples are integers": (["quantize", "model.onnx", "--calib", "int.npz"], 2),
    "samples are text": (["quantize", "model.onnx", "--calib", "str.npz"], 2),
    "samples are complex": (["quantize", "model.onnx", "--calib", "complex.npz"], 2),
    "no arrays": (["quantize", "model.onnx", "--calib", "empty.npz"], 2),
    "a flipped bit": (["quantize", "model.onnx", "--calib", "flipped.npz"], 2),
    "model is samples": (["quantize", "calib.npz", *CALIB], 2),
    "output below a file": (["quantize", "model.onnx", *CALIB, "-o", "model.onnx/q.onnx"], 2),
    "json is the model": (["quantize", "model.onnx", *CALIB, "--json", "model.onnx"], 2),
    "json in no folder": (["inspect", "model.onnx", "--json", "gone/r.json"], 2),
    "gate without value": (["eval", "model.onnx", "model.onnx", "--data", "eval.npz", "--fail-under", "sqnr"], 2),
    "gate of text": (["eval", "model.onnx", "model.onnx", "--data", "eval.npz", "--fail-under", "sqnr=high"], 2),
    "gate of nothing": (["eval", "model.onnx", "model.onnx", "--data", "eval.npz", "--fail-under", "psnr=3"], 2),
    "gate without labels": (["eval", "model.onnx", "model.onnx", "--data", "eval.npz", "--fail-under", "top1=1"], 2),
    "eval without data": (["eval", "model.onnx", "model.onnx"], 2),
    "eval of another model": (["eval", "model.onnx", "other.onnx", "--data", "eval.npz"], 2),
}


@pytest.fixture
def damaged(work) -> Path:
    """Samples that are none, and a model that is another one."""
    x = np.load(work / "calib.npz")["Input3"]
    np.savez(work / "int.npz", Input3=x.astype(np.int64))
    np.savez(work / "str.npz", Input3=np.full(x.shape, "a"))
    np.savez(work / "complex.npz", Input3=x.astype(np.complex64))
    np.savez(work / "empty.npz")
    flipped = bytearray((work / "calib.npz").read_bytes())
    flipped[len(flipped) // 2] ^= 255
    (work / "flipped.npz").write_bytes(flipped)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { y = Identity(x) }'
    onnx.save(onnx.parser.parse_model(text), work / "other.onnx")
    return work


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_error_line_and_an_exit_code(damaged, qtool_command, monkeypatch, case):
    monkeypatch.chdir(damaged)
    before = {p.name: p.read_bytes() for p in damaged.iterdir()}
    args, code = WRONG[case]
    ended = qtool_command(*args)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert len(ended.errors) == 1, ended.err
    assert ended.errors[0].startswith("error: ")
    assert "Traceback" not in ended.err
    assert {p.name: p.read_bytes() for p in damaged.iterdir()} == before


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [("QTOOL_NUM_THREADS", "two", "QTOOL_NUM_THREADS"), ("QTOOL_ISA", "zzz", "QTOOL_ISA")],
)
def test_mistakes_in_the_environment(work, variable, value, said):
    ended = run(work, "quantize", "model.onnx", *CALIB, **{variable: value})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr.splitlines()[0]
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr


# ------------------------------------------------------------------------------------------------------- documents


def options(command: str) -> set[str]:
    """Every long option of a command."""
    group = typer.main.get_command(app)
    for name in command.split():
        group = group.commands[name]  # type: ignore[attr-defined]
    found = group.params
    return {
        name for p in found for name in (*p.opts, *p.secondary_opts) if name.startswith("--")
    }  # fmt: skip


def documented(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


def test_every_option_is_documented_and_every_documented_option_exists():
    document = (ROOT / "docs" / "cli.md").read_text()
    known = {name for command in COMMANDS for name in options(command)} | {"--version", "--help"}
    assert documented(document) == known


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md", "docs/quantization.md", "CONTRIBUTING.md"])
def test_commands_in_the_documents_use_options_that_exist(name):
    seen = 0
    for line in (ROOT / name).read_text().splitlines():
        found = re.search(rf"\bqtool ({'|'.join(COMMANDS)})\b([^`#]*)", line)
        if found is not None:
            assert documented(found[2]) <= options(found[1]) | {"--help"}, line
            seen += 1
    assert seen or name not in ("README.md", "docs/cli.md")


def test_every_setting_and_metric_is_documented():
    document = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"`{name}`" in document for name in METRICS)
    toml = document[document.index("```toml") :]
    flags = {"format", "activations", "weights", "per_channel", "symmetric_activations", "method", "exclude"}
    assert flags <= {f.name for f in fields(qtool.QuantConfig)}
    assert all(f"{name} = " in toml for name in flags)
