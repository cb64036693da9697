"""Runtime checks as tables of ready text."""

from __future__ import annotations

from collections.abc import Sequence

from qtool.evaluate.checks.result import CheckResult, Finding
from qtool.evaluate.writers._cells import Table

MOST_ROWS = 5
"""Findings of a check on the screen; JSON has all."""


def check_tables(checks: Sequence[CheckResult] | None) -> tuple[Table, ...]:
    """A row per check, and a row per finding of those that flag something."""
    if not checks:
        return ()
    rows = tuple((check.name, check.state, check.summary) for check in checks)
    found = [(check, finding) for check in checks if check.state == "flagged" for finding in check.findings[:MOST_ROWS]]
    tables = [Table("Runtime checks", ("check", "outcome", "found"), rows, figures=False)]
    if found:
        cells = tuple(
            (check.name, finding.subject, finding.text, finding.suggestion or "-") for check, finding in found
        )
        tables.append(Table("Findings", ("check", "where", "what", "what to type"), cells, figures=False))
    return tuple(tables)


def flagged(checks: Sequence[CheckResult] | None) -> list[tuple[CheckResult, Finding]]:
    """Findings of the checks that flag something, with their check."""
    return [(check, finding) for check in checks or () if check.state == "flagged" for finding in check.findings]
