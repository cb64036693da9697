"""Results as rows of text and as JSON. Computes nothing that is not in :class:`qtool.bench.run.Result`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qtool.bench.gate import Verdict
from qtool.bench.run import Result, Skipped

HEADERS = ("kernel", "ms", "rate", "unit", "times as fast as")
RIGHT = ("ms", "rate")


def rows(results: Iterable[Result | Skipped]) -> list[list[str]]:
    """Cells of the table, under ``HEADERS``."""
    found: list[list[str]] = []
    for result in results:
        if isinstance(result, Skipped):
            found.append([result.case.name, "", "", "", f"skipped: {result.reason}"])
            continue
        others = ", ".join(_opponent(result, name) for name in result.others)
        rate, milliseconds = result.rate(), 1e3 * result.seconds()
        found.append([result.case.name, _figure(milliseconds), _figure(rate), result.case.unit, others])
    return found


def _opponent(result: Result, name: str) -> str:
    text = f"{name} {result.ratio(name):.2f} ({_figure(result.rate(name))})"
    return f"{text}, whose output differs" if name in result.differs else text


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def heading(facts: dict[str, Any]) -> list[str]:
    """Lines that say where the figures are from."""
    kernels = facts["kernels"]
    versions = ", ".join(f"{name} {number or 'not installed'}" for name, number in facts["packages"].items())
    load = "unknown" if facts["load"] is None else f"{facts['load']:.2f}"
    return [
        f"{facts['cpu']}, {facts['cpus']} processors, load average {load}",
        f"qtool {facts['qtool']}, kernel {kernels['kernel']} ({kernels['reason']})",
        f"instruction sets: {', '.join(kernels['supported'])}; cap {kernels['cap']}",
        f"python {facts['python']}, {versions}",
    ]


def to_dict(
    facts: dict[str, Any], results: Iterable[Result | Skipped], verdicts: Iterable[Verdict], not_judged: str | None
) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "machine": facts,
        "results": [_result(result) for result in results],
        "verdicts": [verdict.__dict__ | {"status": verdict.status} for verdict in verdicts],
        "not_judged": not_judged,
    }


def _result(result: Result | Skipped) -> dict[str, Any]:
    case = result.case
    common = {"case": case.name, "unit": case.unit, "work": case.work, "isa": case.isa}
    if isinstance(result, Skipped):
        return common | {"skipped": result.reason}
    engines = {
        name: {
            "median_s": result.seconds(name),
            "best_s": min(times),
            "samples_s": list(times),
            "rate": result.rate(name),
        }
        for name, times in result.samples.items()
    }
    ratios = {name: result.ratio(name) for name in result.others}
    return common | {
        "threads": result.threads,
        "engines": engines,
        "ratios": ratios,
        "differs": list(result.differs),
    }
