"""Arguments that are sorted without typer call a command as typer does; all others are left to it."""

from __future__ import annotations

import functools
import inspect
import shlex
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import typer

from qtool.cli import app
from qtool.cli._quick import parsed
from qtool.errors import ConfigError

PLAIN = [
    "quantize m.onnx",
    "quantize m.onnx --calib a.npz -o q.onnx --force -q",
    "quantize --calib a.npz --calib b.npz --samples 7 --shuffle 0 m.onnx --method mse --method 'x*=minmax' -v",
    "quantize m.onnx --calib=a.npz --output=q.onnx --format qdq --per-tensor --symmetric --dry-run --json -",
    "quantize m.onnx --weight-only --weights int4 --block 32 --include '/a/*' --exclude op:Gemm --no-prepare",
    "quantize m.onnx --stats s.npz --override '/h/*=float' --config c.toml --target qnn --color --threads 2",
    "calibrate m.onnx --data a.npz --data x=b.npy --checkpoint 5 --batch auto --max-memory 1G --on-nan skip --no-color",
    "calibrate m.onnx --data a.npz --method percentile:99.9 -o s.npz --force --json r.json -q",
    "eval a.onnx b.onnx --data e.npz --metric sqnr --fail-under sqnr=30 --labels y --layers --no-sensitivity",
    "eval a.onnx b.onnx --data e.npz --html - --checks none --layer-samples 3",
    "inspect m.onnx --show all --json -",
    "prepare m.onnx -o p.onnx --force",
    "convert m.onnx --to qdq -o c.onnx",
    "diff a.onnx b.onnx",
    "info",
]
ODD = [
    "quantize",
    "quantize --help",
    "quantize m.onnx -h",
    "quantize m.onnx n.onnx",
    "quantize m.onnx --samples 0",
    "quantize m.onnx --samples x",
    "quantize m.onnx --samples 1_0",
    "quantize m.onnx --samples 1 --samples 2",
    "quantize m.onnx --force=yes",
    "quantize m.onnx -fq",
    "quantize m.onnx --calib",
    "quantize m.onnx --calib --force",
    "quantize m.onnx --calib ''",
    "quantize m.onnx --output -x",
    "quantize ''",
    "quantize -- m.onnx",
    "quantize m.onnx --zzz",
    "compare a.onnx b.onnx c.onnx --data e.npz",
]


def command(words: str) -> tuple[Any, list[str]]:
    name, *args = shlex.split(words)
    file, function = app._COMMANDS[name]
    return getattr(import_module(f"qtool.cli.{file}"), function), args


def by_typer(monkeypatch: pytest.MonkeyPatch, words: str) -> dict[str, Any]:
    """What typer calls a command with."""
    function, _ = command(words)
    calls: list[dict[str, Any]] = []

    @functools.wraps(function)
    def record(**values: Any) -> None:
        calls.append(values)

    given = shlex.split(words)
    monkeypatch.setattr(inspect.getmodule(function), function.__name__, record)
    app.build_app(given[:1])(args=given, prog_name="qtool", standalone_mode=False)
    monkeypatch.undo()
    (values,) = calls
    return values


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("QTOOL_NUM_THREADS", raising=False)


@pytest.mark.parametrize("words", PLAIN)
def test_plain_arguments_are_what_typer_makes_of_them(monkeypatch, words):
    expected = by_typer(monkeypatch, words)
    found = parsed(*command(words))
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in expected.items()}


@pytest.mark.parametrize("words", ODD)
def test_others_are_left_to_typer(words):
    assert parsed(*command(words)) is None


def test_so_is_a_variable_of_the_environment(monkeypatch):
    monkeypatch.setenv("QTOOL_NUM_THREADS", "3")
    assert parsed(*command("calibrate m.onnx --data a.npz")) is None
    assert by_typer(monkeypatch, "calibrate m.onnx --data a.npz")["threads"] == 3


def test_a_parser_refuses_when_the_rest_is_right():
    with pytest.raises(ConfigError, match="Output 'gone/' is a folder"):
        parsed(*command("quantize m.onnx -o gone/"))
    assert parsed(*command("quantize m.onnx -o gone/ --samples x")) is None


def test_a_callback_is_called(monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr("qtool.api.register_custom_ops", seen.append, raising=False)
    found = parsed(*command("quantize m.onnx --custom-ops a.so --custom-ops b.so"))
    assert seen == found["custom_ops"] == ["a.so", "b.so"]


def test_every_option_has_a_known_form():
    for name in app._COMMANDS:
        function, _ = command(name)
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            info = parameter.annotation.__metadata__[0]
            assert isinstance(info, typer.models.ParameterInfo)
            assert info.click_type is None if hasattr(info, "click_type") else True


def test_pydantic_is_not_imported():
    code = "import sys; from qtool.__main__ import main; main(['diff', 'a', 'b']); print('pydantic' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
