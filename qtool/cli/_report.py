"""An evaluation on the screen and in files: the forms of ``qtool.evaluate.writers``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING

from qtool.cli._output import Output
from qtool.cli._targets import check_targets

if TYPE_CHECKING:
    from qtool.evaluate.candidates import Comparison
    from qtool.evaluate.report import Report


def show_report(out: Output, report: Report) -> None:
    """Print the tables of a report; notes and failures are talk, and the command's.

    Args:
        out: The sink.
        report: A finished evaluation.
    """
    from qtool.evaluate.writers.table import tables

    for number, table in enumerate(tables(report)):
        if number:
            out.data("")
        out.data(table.title)
        out.table(table.columns, table.rows, right=table.columns[1:] if table.figures else ())


FORMS = {"json": "JSON file", "markdown": "Markdown file", "junit": "JUnit file", "html": "HTML file"}
"""Writers that have an option, and what their files are called in messages."""


def check_forms(targets: Mapping[str, str | None], *others: str | os.PathLike[str] | None) -> None:
    """Refuse files that cannot be made or written before any work is done.

    Args:
        targets: A name of :data:`FORMS` -> the file, ``-`` for stdout, or None.
        others: Files that the command reads or writes otherwise.

    Raises:
        ConfigError: See :func:`check_targets`; also if what HTML is made with is not installed.
    """
    check_targets({FORMS[form]: target for form, target in targets.items()}, *others)
    if targets.get("html") is not None:
        from qtool.evaluate.writers.html import require

        require()


def write_forms(out: Output, report: Report, targets: Mapping[str, str | None]) -> None:
    """Write a report in every form that is wanted.

    Args:
        out: The sink.
        report: A finished evaluation.
        targets: See :func:`check_forms`.

    Raises:
        ConfigError: If a file cannot be written.
    """
    from qtool.evaluate.writers import WRITERS

    _write(out, {form: partial(WRITERS[form], report) for form in targets}, targets)


def write_comparison(out: Output, comparison: Comparison, targets: Mapping[str, str | None]) -> None:
    """Write a comparison of candidates in every form that is wanted; see :func:`write_forms`."""
    from qtool.evaluate.writers import COMPARISON_WRITERS

    _write(out, {form: partial(COMPARISON_WRITERS[form], comparison) for form in targets}, targets)


def _write(out: Output, writers: Mapping[str, Callable[[StringIO], None]], targets: Mapping[str, str | None]) -> None:
    """All texts first, then all files: who interrupts while one is drawn finds none of them."""
    texts = []
    for form, target in targets.items():
        if target is not None:
            text = StringIO()
            writers[form](text)
            texts.append((text.getvalue(), target, FORMS[form]))
    for ready in texts:
        out.text(*ready)


def show_next_steps(out: Output, report: Report) -> None:
    """Print the commands that the layers suggest, to be pasted, and what there is to know about them.

    Args:
        out: The sink.
        report: A finished evaluation.
    """
    from qtool.evaluate.writers.layers import layer_commands, layer_notes

    commands = layer_commands(report.layers, report.sensitivity)
    if commands:
        out.data("")
        out.data("What to type next")
    for text, why in commands:
        out.data(f"  # {why}")
        out.data(f"  {text}")
    for note in layer_notes(report.layers, report.sensitivity):
        out.note(note)
