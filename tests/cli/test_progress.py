"""Progress lines on terminals of several widths: one line per stage, and all of it."""

from __future__ import annotations

import io
import re

import pytest

from qtool.cli._output import Output
from qtool.cli._progress import progress_bars

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STAGES = ("prepare", "calibrate", "weights", "verify", "evaluate", "layers", "sensitivity", "save")
BAR = "━"


class Terminal(io.StringIO):
    """Somebody who watches."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def drawn(monkeypatch):
    """Draw the stages on a terminal of so many columns; the last lines that were on it, as they were drawn."""

    def draw(columns: int, stages: tuple[str, ...], done: int, total: int) -> list[str]:
        terminal = Terminal()
        for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "40")
        monkeypatch.setattr("sys.stderr", terminal)
        with progress_bars(Output()) as update:
            assert update is not None
            for stage in stages:
                update(stage, done, total)
        # each drawing begins with going back to where the one before began
        lines = [line for line in re.split(r"[\r\n]+", CONTROL.sub("", terminal.getvalue())) if line]
        return lines[-len(stages) :]

    return draw


@pytest.mark.parametrize("columns", [40, 49])
@pytest.mark.parametrize("stage", STAGES)
def test_narrow_lines_hold_the_stage_the_count_and_the_time_left(drawn, stage, columns):
    (line,) = drawn(columns, (stage,), 12, 640)
    assert re.fullmatch(rf"{stage} +12/640 left (-:--:--|\d:\d\d:\d\d)", line.rstrip())
    assert len(line) <= columns


@pytest.mark.parametrize("stage", STAGES)
def test_a_narrow_line_has_room_for_a_hundred_thousand_samples(drawn, stage):
    (line,) = drawn(40, (stage,), 99_999, 100_000)
    assert re.fullmatch(rf"{stage} +99999/100000 left (-:--:--|\d:\d\d:\d\d)", line.rstrip())


def test_narrow_lines_of_several_stages_stand_below_each_other(drawn):
    lines = drawn(40, STAGES, 3, 4)
    assert [line.split()[:2] for line in lines] == [[stage, "3/4"] for stage in STAGES]
    assert {line.index("3/4") for line in lines} == {lines[0].index("3/4")}
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("columns", [40, 80])
def test_a_total_that_is_not_known(drawn, columns):
    (line,) = drawn(columns, ("calibrate",), 7, 0)
    assert re.search(r"\b7/\?", line)
    assert len(line) <= columns


@pytest.mark.parametrize("columns", [50, 80])
def test_wide_lines_have_a_bar_and_the_time_that_was_taken(drawn, columns):
    (line,) = drawn(columns, ("sensitivity",), 320, 640)
    assert BAR in line
    assert re.search(r" 320/640 \d:\d\d:\d\d left (-:--:--|\d:\d\d:\d\d)$", line.rstrip())
    assert len(line) <= columns
