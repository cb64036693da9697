"""How the process ends, seen from outside: signals, closed pipes, full disks, bugs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qtool.cli._errors import describe

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time, warnings
import qtool
from pathlib import Path
from tests.cli.fakes import Api, inspection, result
from qtool.__main__ import main
{setup}
sys.modules["qtool.api"] = qtool.api = Api({answers})
sys.exit(main(sys.argv[1:]))
"""
WAIT = """
def wait(*a, **k):
    print("started", flush=True)
    time.sleep(60)
"""
LATE = """
def late(*a, **k):
    time.sleep(0.5)
    return inspection()
"""
WARN = """
def warn(*a, **k):
    warnings.warn("old\\nthing", UserWarning)
    return result()
"""
UNWATCHED = """
def work(*a, progress=None, **k):
    assert progress is None
    return result()
"""


def start(*args: str, answers: str = "", setup: str = "", **options) -> subprocess.Popen[str]:
    code = PROGRAM.format(answers=answers, setup=setup)
    env = {k: v for k, v in os.environ.items() if k != "QTOOL_DEBUG"} | options.pop("env", {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", code, *args], cwd=ROOT, env=env, text=True, **streams)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_in_the_middle():
    process = start("quantize", "m.onnx", answers="quantize=wait", setup=WAIT)
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "", "error: interrupted, nothing was written\n")


CONVERTED = """
import signal
def convert(*a, **k):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise TypeError("incompatible function arguments")
"""


def test_ctrl_c_that_an_extension_module_made_an_error_of():
    process = start("quantize", "m.onnx", answers="quantize=convert", setup=CONVERTED)
    assert finish(process) == (130, "", "error: interrupted, nothing was written\n")


def test_ctrl_c_raised_by_the_api(api, qtool_command):
    api(quantize=KeyboardInterrupt())
    assert qtool_command("quantize", "m.onnx") == (130, "", "error: interrupted, nothing was written\n")


def test_a_bug_is_one_line(api, qtool_command):
    api(quantize=ZeroDivisionError("division by zero"))
    ended = qtool_command("quantize", "m.onnx")
    assert ended.code == 70
    assert ended.errors == ["error: Internal error: ZeroDivisionError: division by zero"]
    assert "QTOOL_DEBUG=1" in ended.err


def test_a_bug_with_its_traceback(api, qtool_command, monkeypatch):
    monkeypatch.setenv("QTOOL_DEBUG", "1")
    api(quantize=ZeroDivisionError("division by zero"))
    ended = qtool_command("quantize", "m.onnx")
    assert ended.code == 70
    assert "Traceback (most recent call last)" in ended.err
    assert ended.err.splitlines()[-2] == "error: Internal error: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device", "q.onnx"), 2, "'q.onnx': No space left on device."),
        (PermissionError(13, "Permission denied", "q.onnx"), 2, "'q.onnx': Permission denied."),
        (FileNotFoundError(2, "No such file or directory", "m.onnx"), 2, "'m.onnx': No such file or directory."),
        (OSError("odd"), 2, "odd."),
        (MemoryError(), 2, "Not enough memory."),
        (
            ModuleNotFoundError("No module named 'onnx_ir'", name="onnx_ir"),
            2,
            "The Python package 'onnx_ir' is not installed.",
        ),
        (ModuleNotFoundError("no", name="qtool._core"), 2, "The compiled core of qtool is not built."),
        (
            ModuleNotFoundError("no", name="qtool.x"),
            70,
            "Internal error: ModuleNotFoundError: no",
        ),
        (RuntimeError("QTOOL_ISA=amx is not supported here"), 2, "QTOOL_ISA=amx is not supported here"),
        (RuntimeError("odd"), 70, "Internal error: RuntimeError: odd"),
    ],
)
def test_endings(error, code, line):
    ending = describe(error)
    assert (ending.exit_code, ending.message) == (code, line)


def test_a_reader_that_stops_reading_is_no_error():
    process = start(
        "inspect",
        "m.onnx",
        answers="inspect=late",
        setup=LATE,
    )
    process.stdout.close()
    process.stdout = None
    code, _, err = finish(process)
    assert (code, err) == (0, "hint: -v lists every node; --show quantized or --show skipped some of them.\n")


@pytest.mark.parametrize("arguments", [["--help"], ["eval", "--help"], []])
def test_a_reader_that_has_seen_enough_of_the_help_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)  # as that of head, once it has its lines
    with os.fdopen(writer, "wb") as out:
        process = start(*arguments, stdout=out)
    assert finish(process) == (0, None, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full")
def test_a_full_disk_behind_stdout():
    with Path("/dev/full").open("w") as full:
        process = start("inspect", "m.onnx", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.splitlines() == ["error: '<stdout>': No space left on device."]


def test_warnings_of_libraries_are_labelled():
    code, out, err = finish(start("quantize", "m.onnx", answers="quantize=warn", setup=WARN))
    assert (code, out) == (0, "m.int8.onnx\n")
    assert err.splitlines()[0] == "warning: old thing"


def test_no_bars_and_no_colors_when_nobody_watches():
    code, out, err = finish(start("quantize", "m.onnx", answers="quantize=work", setup=UNWATCHED))
    assert (code, out) == (0, "m.int8.onnx\n")
    assert "\x1b" not in err


def test_a_name_that_the_terminal_cannot_show():
    process = start(
        "quantize",
        "m.onnx",
        answers="quantize=result(model_path=Path('m\\u00e4.onnx'))",
        env={"PYTHONIOENCODING": "ascii"},
    )
    code, out, _ = finish(process)
    assert (code, out) == (0, "m\\xe4.onnx\n")
