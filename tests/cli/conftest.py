"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import qtool
from qtool.__main__ import main
from tests.cli.fakes import Api


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines of stderr that are neither notes, warnings nor hints."""
        return [x for x in self.err.splitlines() if x.strip() and not x.startswith(("note:", "warning:", "hint:"))]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Api]:
    """Put a fake ``qtool.api`` in place: ``api(quantize=ModelError(...))``."""

    def install(**answers: Any) -> Api:
        fake = Api(**answers)
        monkeypatch.setitem(sys.modules, "qtool.api", fake)
        monkeypatch.setattr(qtool, "api", fake, raising=False)
        return fake

    return install


@pytest.fixture
def qtool_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run the command line in this process."""
    for name in ("QTOOL_NUM_THREADS", "QTOOL_DEBUG", "QTOOL_ISA", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    def run(*args: str) -> Ended:
        code = main(list(args))
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run
