"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import qtool
import qtool.api._checkpoint  # commands import these beside qtool.api, which may be a fake by then
import qtool.api.clock
from tests.cli.fakes import Api
from tests.ended import Ended, run_command


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

    return partial(run_command, capsys)
