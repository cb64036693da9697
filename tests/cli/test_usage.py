"""Mistakes in the command line: one line, a hint, exit code 2, no box."""

from __future__ import annotations

import pytest
import typer

from qtool.cli.app import app


@pytest.mark.parametrize(
    ("args", "line", "hint"),
    [
        (["quantise", "m.onnx"], "error: No such command 'quantise'.", "hint: Did you mean quantize?"),
        (["quantize", "m.onnx", "--fromat", "qdq"], "error: No such option: --fromat.", "hint: Did you mean --format?"),
        (["quantize", "m.onnx", "--zzz"], "error: No such option: --zzz.", "hint: Run 'qtool quantize --help'"),
        (["zzz"], "error: No such command 'zzz'.", "hint: Run 'qtool --help'"),
        (["quantize"], "error: Missing argument 'MODEL'.", "hint: Run 'qtool quantize --help'"),
        (["eval", "m.onnx"], "error: Missing argument 'QUANT'.", "hint: Run 'qtool eval --help'"),
        (
            ["quantize", "m.onnx", "--calib"],
            "error: Option '--calib' requires an argument.",
            "hint: Run 'qtool --help'",
        ),
        (["quantize", "a", "b"], "error: Got unexpected extra argument(s) (b).", "hint: Run 'qtool quantize --help'"),
        (["quantize", "m.onnx", "--threads", "0"], "error: Invalid value for '--threads'", "hint: Run 'qtool quantize"),
        (["quantize", "m.onnx", "--threads", "x"], "error: Invalid value for '--threads'", "hint: Run 'qtool quantize"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(qtool_command, args, line, hint):
    ended = qtool_command(*args)
    assert ended.code == 2
    assert ended.out == ""
    first, second = ended.err.splitlines()
    assert first.startswith(line)
    assert second.startswith(hint)


def test_several_near_names(qtool_command):
    ended = qtool_command("eval", "a", "b", "--fail-ove", "x")
    assert ended.err.splitlines()[0] == "error: No such option: --fail-ove."
    assert "--fail-over" in ended.err.splitlines()[1]


def test_threads_from_the_environment(qtool_command, monkeypatch, api):
    monkeypatch.setenv("QTOOL_NUM_THREADS", "many")
    ended = qtool_command("quantize", "m.onnx")
    assert ended.code == 2
    assert "QTOOL_NUM_THREADS" in ended.errors[0]
    fake = api()
    monkeypatch.setenv("QTOOL_NUM_THREADS", "3")
    assert qtool_command("quantize", "m.onnx").code == 0
    assert fake.calls[0][2]["num_threads"] == 3
    assert qtool_command("quantize", "m.onnx", "--threads", "1").code == 0
    assert fake.calls[1][2]["num_threads"] == 1


@pytest.mark.parametrize(
    "words",
    [
        "quantize m.onnx --calib c.npz -o gone/",
        "calibrate m.onnx --data c.npz -o gone/",
        "prepare m.onnx --output gone/",
        "convert m.onnx --to qdq -o gone/",
        "stats merge a.npz b.npz -o gone/",
    ],
)
def test_a_folder_that_is_not_there_is_no_output(qtool_command, api, words):
    fake = api()
    ended = qtool_command(*words.split())
    assert (ended.code, ended.errors) == (2, ["error: Output 'gone/' is a folder; expected the name of a file."])
    assert fake.calls == []


def test_a_terminal_that_says_it_has_no_columns(qtool_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert "Usage: qtool" in qtool_command("--help").out


def test_no_arguments_print_the_help(qtool_command):
    ended = qtool_command()
    assert ended.code == 0
    assert ended.err == ""
    assert "Usage: qtool" in ended.out
    assert ended.out.strip() == qtool_command("--help").out.strip()


COMMANDS = ("quantize", "calibrate", "eval", "compare", "inspect", "info", "convert", "diff", "bench kernels")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(qtool_command, command):
    ended = qtool_command(*command.split(), "-h")
    assert ended.code == 0
    assert ended.out == qtool_command(*command.split(), "--help").out
    assert f"$ qtool {command}" in ended.out
    assert f"{command.split()[0]} " in qtool_command("-h").out


def test_version(qtool_command):
    import qtool

    assert qtool_command("--version") == (0, f"qtool {qtool.__version__}\n", "")


def test_help_shows_the_choices_and_defaults_of_the_config(qtool_command):
    from qtool import config
    from qtool.calibrate.methods import METHODS

    shown = qtool_command("quantize", "--help").out
    words = " ".join(shown.replace("│", " ").split())
    default = config.QuantConfig()
    assert "|".join(config.FORMATS) in words
    for choices in (config.ACTIVATION_DTYPES, config.WEIGHT_DTYPES):
        assert f"{', '.join(choices[:-1])} or {choices[-1]}" in words
    methods = "|".join(m.name if m.default is None else f"{m.name}[:P]" for m in METHODS.values())
    assert methods in words
    for value in (default.format, default.activations, default.weights, default.method):
        assert f"[default: ({value})]" in words
    assert default.per_channel
    assert "[default: (per-channel)]" in words
    assert not default.symmetric_activations
    assert "[default: (asymmetric)]" in words
    for panel in ("Calibration", "Quantization", "Which nodes", "Run and output"):
        assert f"─ {panel} ─" in shown


def test_the_app_runs_under_typers_own_runner():
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["--version"])
    assert isinstance(app, typer.Typer)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("qtool ")
