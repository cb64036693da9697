"""The one place that writes: stdout is data, stderr is talk.

Commands never print. Data (a path, a table, JSON) goes to stdout, so that it can be piped; everything said about it
goes to stderr, and ``--quiet`` leaves only the errors there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import typer

from qtool.cli import _targets
from qtool.cli._targets import check_targets, write_text

STDOUT = _targets.STDOUT


class Output:
    """Where a command's words go.

    Args:
        quiet: Say nothing but errors.
        verbose: Show what is otherwise summarized.
        color: Force colors on or off; by default a terminal gets them unless ``NO_COLOR`` is set.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, color: bool | None = None) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.color = color

    # ------------------------------------------------------------------------------------------------ data, to stdout

    def data(self, text: str) -> None:
        """One line of data."""
        _write(sys.stdout, clean(text) + "\n")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """A table as data."""
        self._lines(sys.stdout, headers, rows, right)

    def json(self, value: Any, target: str) -> None:
        """Strict JSON (no NaN, no Infinity) into a file, or to stdout for ``-``.

        Raises:
            ConfigError: If the file cannot be written.
        """
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if target == STDOUT:
            _write(sys.stdout, text)
            return
        # a file name that is not UTF-8 is shown by its escapes, which are JSON's own
        write_text(text, target, "JSON file")

    def text(self, text: str, target: str, kind: str) -> None:
        """A finished document into a file, or to stdout for ``-``.

        Raises:
            ConfigError: If the file cannot be written; ``kind`` is what it is called there.
        """
        if target == STDOUT:
            _write(sys.stdout, text)
        else:
            write_text(text, target, kind)

    # ------------------------------------------------------------------------------------------------ talk, to stderr

    def say(self, text: str = "") -> None:
        """Plain talk."""
        if not self.quiet:
            _write(sys.stderr, clean(text) + "\n")

    def say_table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """A table as talk."""
        if not self.quiet:
            self._lines(sys.stderr, headers, rows, right)

    def note(self, text: str) -> None:
        """Something worth knowing."""
        if not self.quiet:
            self._labelled("note", "cyan", text)

    def hint(self, text: str) -> None:
        """What to do next."""
        if not self.quiet:
            self._labelled("hint", "cyan", text)

    def error(self, text: str, *, hint: str | None = None) -> None:
        """What went wrong, on one line, and the way out on another. Said even when quiet."""
        self._labelled("error", "red", text)
        if hint:
            self._labelled("hint", "cyan", hint)

    def warning(self, text: str) -> None:
        """Something that may be wrong."""
        if not self.quiet:
            self._labelled("warning", "yellow", text)

    # -------------------------------------------------------------------------------------------------------- helpers

    def _labelled(self, label: str, color: str, text: str) -> None:
        shown = typer.style(f"{label}:", fg=color, bold=True) if self._colors(sys.stderr) else f"{label}:"
        _write(sys.stderr, f"{shown} {clean(one_line(text))}\n")

    def _lines(
        self, stream: TextIO, headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str]
    ) -> None:
        head, *body = format_table(headers, rows, right=right)
        if self._colors(stream):
            head = typer.style(head, bold=True)
        _write(stream, "".join(f"{line}\n" for line in [head, *body]))

    def _colors(self, stream: TextIO) -> bool:
        return self.color if self.color is not None else has_colors(stream)


def has_colors(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colors and whose user wants them (NO_COLOR, FORCE_COLOR, TERM)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Aligned lines, heading first. Nothing is ever cut: a table that is piped must hold whole names.

    Args:
        headers: Column titles.
        rows: Cells, as many per row as there are titles.
        right: Titles of the columns that are aligned to the right.
    """
    cells = [[clean(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    flush_right = [title in right for title in headers]
    return [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, flush_right, strict=True)).rstrip()
        for row in cells
    ]


def check_json_target(target: str | None, *others: str | os.PathLike[str] | None) -> None:
    """Refuse a ``--json`` file that cannot be written before any work is done.

    Args:
        target: The file, or ``-``.
        others: Files that the command reads or writes otherwise.

    Raises:
        ConfigError: If the folder does not exist or is not writable, or the target is a folder or one of ``others``.
    """
    check_targets({"JSON file": target}, *others)


def open_missing_streams() -> None:
    """Give a process that was started with closed stdout or stderr (``>&-``) a place to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - a device, open until the end


def one_line(text: str) -> str:
    """Text without line breaks: a message of several lines becomes one."""
    return " ".join(text.split())


def clean(text: str) -> str:
    """Text whose control characters are spelled out: names come from model files and may hold anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def human_bytes(count: int) -> str:
    """A number of bytes in decimal units: 26454 -> 26.5 kB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if round(value, 1) < 1000:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough; the work goes on, and its exit code counts
        discard_rest(stream)
    except OSError as error:
        discard_rest(stream)
        raise OSError(error.errno, error.strerror, stream.name) from error


def discard_rest(stream: TextIO) -> None:
    """Let a stream that cannot be written lead nowhere.

    What is still in its buffer would otherwise raise once more when the interpreter ends.
    """
    with open(os.devnull, "w") as devnull:  # noqa: PTH123 - a device, not a file
        os.dup2(devnull.fileno(), stream.fileno())
