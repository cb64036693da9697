"""A report as JUnit XML, which continuous integration shows as tests: a test case per gate.

One more case stands for what fails without a gate (a NaN that the float model does not have). There is no time of day
in it. Format: the elements that Jenkins, GitLab and GitHub's test reporters have in common.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TextIO
from xml.etree import ElementTree

from qtool.evaluate.report import Report
from qtool.evaluate.writers._text import one_line

UNGATED = "checks that need no gate"


def write(report: Report, stream: TextIO) -> None:
    """Write the document and a final newline."""
    cases: list[tuple[str, tuple[str, ...], str]] = [
        (gate.option, () if gate.passed else (gate.line,), gate.line) for gate in report.gates
    ]
    cases.append((UNGATED, report.failures, ""))
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(bool(lines) for _, lines, _ in cases)),
        "errors": "0",
        "skipped": "0",
    }
    quantized = one_line(report.quantized_model or "model in memory")
    reference = one_line(report.float_model or "model in memory")
    root = ElementTree.Element("testsuites", {"name": "qtool eval", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": f"{quantized} against {reference}", **counts})
    for name, lines, said in cases:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"qtool eval {PurePath(quantized).name}", "name": one_line(name)}
        )
        if lines:
            failure = ElementTree.SubElement(case, "failure", {"message": one_line(lines[0]), "type": "gate"})
            failure.text = "\n".join(map(one_line, lines))
        elif said:
            ElementTree.SubElement(case, "system-out").text = one_line(said)
    ElementTree.indent(root)
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    stream.write(ElementTree.tostring(root, encoding="unicode"))
    stream.write("\n")
