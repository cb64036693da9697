"""Running the command line in the process of the tests."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from qtool.__main__ import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines of stderr that are neither notes, warnings nor hints."""
        return [x for x in self.err.splitlines() if x.strip() and not x.startswith(("note:", "warning:", "hint:"))]


def run_command(capsys: pytest.CaptureFixture[str], *args: str) -> Ended:
    """Run ``qtool`` with these arguments."""
    code = main(list(args))
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err)
