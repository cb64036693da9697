"""The program ends at once, with its exit code, and loses nothing that it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = "import atexit, sys; from qtool.__main__ import command\n{before}\nsys.argv = ['qtool', *sys.argv[1:]]\ncommand()"


def program(before: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "error", "-c", RUN.format(before=before), *arguments]
    return subprocess.run(line, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_what_was_written_arrives(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        ended = program("print('kept ' * 5000)", "--version", stdout=out, stderr=subprocess.PIPE)
    first, second, *rest = (tmp_path / "out").read_text().splitlines()
    assert (ended.returncode, ended.stderr, first, rest) == (0, "", "kept " * 5000, [])
    assert second.startswith("qtool ")


def test_what_is_registered_for_the_end_runs() -> None:
    ended = program("atexit.register(lambda: sys.stderr.write('end'))", "--version", capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, "end")


def test_temporary_folders_are_removed(tmp_path: Path) -> None:
    before = f"import tempfile; kept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})"
    assert program(before, "--version", capture_output=True).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_taken_down() -> None:
    before = "class Last:\n    def __del__(self): sys.stderr.write('taken down')\nkept = Last()"
    assert program(before, "--version", capture_output=True).stderr == ""


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["quantize", "nofile", "--calib", "x"], 2)])
def test_the_exit_code_is_the_command_s(arguments: list[str], code: int) -> None:
    assert program("", *arguments, capture_output=True).returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        ended = program("", "info", stdout=full, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (2, "error: '<stdout>': No space left on device.\n")


def test_cycles_are_searched_as_before_once_a_command_has_ended() -> None:
    code = (
        "import gc, weakref\nfrom qtool.__main__ import main\nfrom qtool.cli import app\nbefore = gc.get_threshold()\n"
        "run = app.run\napp.run = lambda args: print(gc.get_threshold()[0] > before[0]) or run(args)\n"
        "main(['info', '--help'])\nprint(gc.get_threshold() == before)\n"
        "frozen = gc.get_freeze_count()\nclass Cycle: pass\n"
        "one = Cycle(); one.own = one; gone = weakref.ref(one); del one\n"
        "main(['info', '--help'])\nprint(0 < gc.get_freeze_count() <= frozen)\ngc.collect(); print(gone() is None)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in ended.stdout.splitlines() if line in ("True", "False")] == ["True"] * 5
