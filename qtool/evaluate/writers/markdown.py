"""A report as markdown: short enough for a comment on a change, with the verdict first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TextIO

from qtool.evaluate.attribution.report import Attribution, Sensitivity
from qtool.evaluate.report import Report
from qtool.evaluate.writers import _markdown as md
from qtool.evaluate.writers._cells import cell, format_bytes, heading
from qtool.evaluate.writers._text import change, decibels, interval, one_line, share_text
from qtool.evaluate.writers.checks import flagged
from qtool.evaluate.writers.layers import layer_commands

LAYERS_SHOWN = 5


def write(report: Report, stream: TextIO) -> None:
    """Verdict, gates, quality, cost, the first layers and what to type next; notes are folded."""
    lines = [f"## {'✅' if report.passed else '❌'} qtool eval: {verdict(report)}", "", _subject(report)]
    lines += _failures(report) + _gates(report) + _quality(report) + _confidence(report) + _checks(report)
    if report.layers is not None:
        lines += _layers(report.layers)
    if report.sensitivity is not None:
        lines += _sensitivity(report.sensitivity)
    lines += _next(layer_commands(report.layers, report.sensitivity))
    if report.notes:
        lines += ["", "<details><summary>Notes</summary>", "", *(f"- {md.plain(note)}" for note in report.notes)]
        lines += ["", "</details>"]
    stream.write("\n".join(lines) + "\n")


def verdict(report: Report) -> str:
    """The outcome in a few words."""
    failed = sum(not gate.passed for gate in report.gates)
    if report.failures:
        return "unusable"
    if failed:
        return f"{failed} of {len(report.gates)} gates failed"
    if not report.gates:
        return "measured, no gates"
    return f"{len(report.gates)} gate{' holds' if len(report.gates) == 1 else 's hold'}"


def _subject(report: Report) -> str:
    count = f"{report.samples} sample{'' if report.samples == 1 else 's'}"
    engine = "" if report.engine == "ort" else f", engine {md.plain(report.engine)}"
    names = [md.code(name or "model in memory") for name in (report.quantized_model, report.float_model)]
    sizes, latency = report.sizes, report.latency
    line = (
        f"{names[0]} against {names[1]}, {count}{engine}: **{sizes.ratio:.2f}× smaller** "
        f"({format_bytes(sizes.float_bytes)} → {format_bytes(sizes.quantized_bytes)})"
    )
    if latency is not None:
        line += (
            f", **{latency.ratio:.2f}× as fast** ({latency.float_ms:.4g} → {latency.quantized_ms:.4g} ms, "
            f"batch {latency.batch_size})"
        )
    return f"{line}."


def _failures(report: Report) -> list[str]:
    return ["", *(f"- ❌ {md.plain(line)}" for line in report.failures)] if report.failures else []


def _gates(report: Report) -> list[str]:
    if not report.gates:
        return []
    rows = [["✅" if gate.passed else "❌", md.code(gate.option), md.plain(gate.line)] for gate in report.gates]
    return ["", *md.table(["", "gate", "found"], rows, left=3)]


def _quality(report: Report) -> list[str]:
    metrics = [report.metric(name) for name in report.metrics]
    rows = [[md.code(output.name), *(md.plain(cell(output, m)) for m in metrics)] for output in report.outputs]
    return ["", *md.table(["output", *(md.plain(heading(metric)) for metric in metrics)], rows)]


def _confidence(report: Report) -> list[str]:
    rows = []
    for output in report.outputs:
        for name, statistic in output.statistics.items():
            metric = report.metric(name)
            figures = (str(statistic.n), change(statistic.delta, metric), interval(statistic, metric))
            rows.append([md.code(output.name), md.plain(metric.title), *map(md.plain, figures)])
    if not rows:
        return []
    table = md.table(["output", "metric", "n", "quantized − float", "95 % interval"], rows, left=2)
    return ["", "<details><summary>Confidence</summary>", "", *table, "", "</details>"]


def _checks(report: Report) -> list[str]:
    if not report.checks:
        return []
    marks = {"ok": "✅", "flagged": "⚠️", "skipped": "➖"}
    rows = [[marks[check.state], md.plain(check.title), md.plain(check.summary)] for check in report.checks]
    lines = ["", *md.table(["", "runtime check", "found"], rows, left=3)]
    found = [
        [md.code(finding.subject), md.plain(finding.text), md.code(finding.suggestion)]
        for _, finding in flagged(report.checks)[:LAYERS_SHOWN]
    ]
    return [*lines, "", *md.table(["where", "what", "what to type"], found, left=3)] if found else lines


def _layers(found: Attribution) -> list[str]:
    if not found.layers:
        return []
    shown = found.layers[:LAYERS_SHOWN]
    rows = [
        [md.code(one.node), md.plain(one.op_type), md.plain(share_text(one)), decibels(one.own_db),
         *([decibels(one.own_there_db)] if found.without_vnni else []), decibels(one.total_db),
         md.plain(str(one.cause)), md.code(one.suggestion or "")]
        for one in shown
    ]  # fmt: skip
    title = f"Where the noise comes from ({len(shown)} of {len(found.layers)} quantized operators)"
    there = ["without VNNI"] if found.without_vnni else []
    columns = ["node", "operator", "share", "own dB", *there, "total dB", "cause", "suggestion"]
    notes = [f"{md.plain(note)}\n" for note in found.notes if found.without_vnni and "VNNI" in note]
    return ["", f"### {title}", "", *notes, *md.table(columns, rows, left=2)]


def _sensitivity(found: Sensitivity) -> list[str]:
    if not found.units:
        return []
    shown = found.units[:LAYERS_SHOWN]
    rows = [[md.code(one.node), md.plain(one.op_type), f"{one.sqnr_db:.2f}", f"{one.gain_db:+.2f}"] for one in shown]
    title = f"What each gains alone in float ({len(shown)} of {len(found.units)}; now {found.sqnr_db:.2f} dB)"
    return ["", f"### {title}", "", *md.table(["node", "operator", "dB", "gain dB"], rows, left=2)]


def _next(commands: Sequence[tuple[str, str]]) -> list[str]:
    if not commands:
        return []
    lines = [line for text, why in commands for line in (f"# {one_line(why)}", one_line(text))]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return ["", "### What to try next", "", f"{fence}sh", *lines, fence]
