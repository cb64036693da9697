"""A report as JUnit XML, which continuous integration shows as tests: a test case per gate.

One more case stands for what fails without a gate (a NaN that the float model does not have). There is no time of day
in it. Format: the elements that Jenkins, GitLab and GitHub's test reporters have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TextIO, TypeAlias
from xml.etree import ElementTree

from qtool.evaluate.candidates import Comparison, is_usable
from qtool.evaluate.report import Report
from qtool.evaluate.writers._text import one_line
from qtool.evaluate.writers.comparison import comparison_table

Case: TypeAlias = tuple[str, tuple[str, ...], str]
"""(name, what failed, what is said otherwise)."""

UNGATED = "checks that need no gate"


def write(report: Report, stream: TextIO) -> None:
    """Write the document and a final newline."""
    cases: list[Case] = [(gate.option, () if gate.passed else (gate.line,), gate.line) for gate in report.gates]
    cases.append((UNGATED, report.failures, ""))
    quantized = one_line(report.quantized_model or "model in memory")
    reference = one_line(report.float_model or "model in memory")
    _write("qtool eval", f"{quantized} against {reference}", f"qtool eval {PurePath(quantized).name}", cases, stream)


def write_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Write a document with a test case per candidate, which fails if the candidate is not usable."""
    shown = comparison_table(comparison)
    cases: list[Case] = []
    for index, report in enumerate(comparison.reports):
        lines = report.failures
        if not lines and not is_usable(report, comparison.accuracy):
            lines = (f"{report.metric(comparison.accuracy).title} is not a number, or not defined for any output.",)
        row = shown.rows[index + 1]
        said = ", ".join(f"{column}: {text}" for column, text in zip(shown.columns[1:], row[1:], strict=True))
        cases.append((comparison.name(index), lines, said))
    reference = one_line(comparison.float_model or "model in memory")
    _write("qtool compare", f"candidates against {reference}", "qtool compare", cases, stream)


def _write(tool: str, title: str, group: str, cases: Sequence[Case], stream: TextIO) -> None:
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(bool(lines) for _, lines, _ in cases)),
        "errors": "0",
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", {"name": tool, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": title, **counts})
    for name, lines, said in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": group, "name": one_line(name)})
        if lines:
            failure = ElementTree.SubElement(case, "failure", {"message": one_line(lines[0]), "type": "gate"})
            failure.text = "\n".join(map(one_line, lines))
        elif said:
            ElementTree.SubElement(case, "system-out").text = one_line(said)
    ElementTree.indent(root)
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    stream.write(ElementTree.tostring(root, encoding="unicode"))
    stream.write("\n")
