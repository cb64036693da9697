"""Checks of what a runtime does with a quantized model: one file each, and the registry.

To add a check, write a file with ``NAME``, ``TITLE`` and ``check(subject)`` and add its row. A check computes, and says
what it found as plain data (:class:`CheckResult`); it decides nothing, and what it cannot do it says as ``skipped``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qtool.errors import ConfigError, QtoolError
from qtool.evaluate.checks import fusion, memory, miscompile, ranges, saturation
from qtool.evaluate.checks.result import CheckResult, Finding
from qtool.evaluate.checks.subject import Subject

__all__ = ["CHECKS", "Check", "CheckResult", "Finding", "Subject", "run_checks", "select_checks"]


@dataclass(frozen=True)
class Check:
    """A row of the registry.

    Attributes:
        name: What the command line calls it.
        title: Its heading.
        quick: Whether it costs little beside the evaluation itself, and is done unless told otherwise.
        run: Does it.
    """

    name: str
    title: str
    quick: bool
    run: Callable[[Subject], CheckResult]


CHECKS = {
    module.NAME: Check(module.NAME, module.TITLE, quick, module.check)
    for module, quick in ((miscompile, True), (fusion, True), (ranges, True), (saturation, False), (memory, False))
}


def select_checks(names: str | Sequence[str]) -> tuple[Check, ...]:
    """Checks by name, in the order of the registry.

    Args:
        names: Names, ``quick``, ``all`` or ``none``; a text may hold several, with commas between.

    Raises:
        ConfigError: If there is no such check.
    """
    words = [word.strip() for text in ([names] if isinstance(names, str) else names) for word in text.split(",")]
    chosen: set[str] = set()
    for word in filter(None, words):
        if word == "all":
            chosen.update(CHECKS)
        elif word == "quick":
            chosen.update(name for name, check in CHECKS.items() if check.quick)
        elif word in CHECKS:
            chosen.add(word)
        elif word != "none":
            raise ConfigError(f"There is no check '{word}'; expected quick, all, none or {', '.join(CHECKS)}.")
    return tuple(check for name, check in CHECKS.items() if name in chosen)


def run_checks(subject: Subject, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """Do checks one after the other; one that fails is reported as skipped, and the others still run.

    The sessions of one are given back before the next.

    Raises:
        MemoryError: If there is no memory.
    """
    results = []
    for check in checks:
        try:
            results.append(check.run(subject))
        except QtoolError as error:
            results.append(CheckResult(check.name, check.title, "skipped", error.message))
        finally:
            subject.close()
    return tuple(results)
