"""An evaluation on the screen: the tables of ``qtool.evaluate.writers``, as data on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtool.cli._output import Output

if TYPE_CHECKING:
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
