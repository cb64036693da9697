"""What ``qtool quantize`` says: how much was quantized, what was not and why, sizes, quality, time, what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.cli._output import Output, human_bytes
from qtool.targets import DEFAULT_TARGET, target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qtool.api import QuantizeResult
    from qtool.api.forecast import PlanTable
    from qtool.plan import Decision, Skip
    from qtool.plan.table import PlanRow

NAMES_SHOWN = 3


def show_summary(out: Output, source: Path, result: QuantizeResult) -> None:
    """Say what became of a model.

    Args:
        out: The sink; all of this is talk.
        source: The float model, for the next command.
        result: What the api returned.
    """
    out.say(f"{result.quantized} of {_nodes(result.total)} quantized")
    out.say()
    by_share = sorted(result.by_op.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
    # operators that stay float by design are in the list below the table
    surprising = {skip.op_type for skip in result.skips if not skip.expected}
    rows = [[op, str(done), str(total)] for op, (done, total) in by_share if done or op in surprising]
    out.say_table(["operator", "quantized", "of"], rows, right=["quantized", "of"])
    if result.skips:
        out.say()
        _show_skips(out, result.skips)
    out.say()
    for label, text in _facts(result, verbose=out.verbose):
        out.say(f"{label:<9} {text}")
    for note in result.notes:
        out.note(note)
    if result.model_path is not None:
        from qtool.runtime.paths import as_argument

        engine = ["--engine", result.engine] if result.engine != "ort" else []
        models = [as_argument(source), as_argument(result.model_path)]
        command = shlex.join(["qtool", "eval", *models, "--data", "EVAL.npz", *engine])
        calibrated = not (result.config.dynamic or result.config.weight_only)
        which = "samples that it was not calibrated on" if calibrated else "real samples"
        out.hint(f"Measure it on {which}: {command}")


def show_plan(out: Output, result: QuantizeResult, which: str = "all") -> None:
    """Show the plan of a dry run as a table on stdout, one row per node of the user's model.

    Args:
        out: The sink.
        result: What the api returned for ``dry_run=True``.
        which: Which nodes: ``quantized``, ``skipped`` or ``all``.
    """
    if result.table is not None:
        show_rows(out, result.table, which)
        out.data("")
        show_totals(out, result.table)
        for note in result.notes:
            out.note(note)
        if result.table.forecast is not None:
            now, then = result.bytes_before, result.table.forecast.file_bytes
            out.say(f"Size      {human_bytes(now)} -> {human_bytes(then)} expected")
        out.say(f"{result.quantized} of {_nodes(result.total)} would be quantized; nothing was written.")
        return
    planned = [[d.node, d.op_type, str(d.form), _remark(d)] for d in result.plan.decisions]
    skipped = [[s.node, s.op_type, "float", s.reason] for s in result.plan.skips]
    out.table(["node", "operator", "becomes", "remark"], [*planned, *skipped])
    for note in result.notes:
        out.note(note)
    for label, text in fusion_lines(result):
        out.say(f"{label:<9} {text}")
    out.say(f"{result.quantized} of {_nodes(result.total)} would be quantized; nothing was written.")


def show_rows(out: Output, table: PlanTable, which: str) -> None:
    """A plan as a table on stdout, one row per node: ``quantized``, ``skipped`` or ``all`` of them."""
    rows = [
        [r.node, r.op_type, r.becomes, r.activations, r.weights, r.sources, *_byte_cells(r), r.reason]
        for r in table.shown(which)
    ]
    heads = ["node", "operator", "becomes", "activations", "weights", "scales", "bytes", "then", "remark"]
    out.table(heads, rows, right=["bytes", "then"])


def show_totals(out: Output, table: PlanTable) -> None:
    """Nodes and bytes by operator on stdout."""
    rows = [[op, *map(str, numbers)] for op, *numbers in table.totals]
    columns = list(zip(*(numbers for _, *numbers in table.totals), strict=True))
    rows.append(["in all", *(str(sum(column)) for column in columns)])
    heads = ["operator", "nodes", "quantized", "bytes", "then"]
    out.table(heads, rows, right=heads[1:])


def _byte_cells(row: PlanRow) -> list[str]:
    after = "" if row.bytes_after is None else str(row.bytes_after)
    return [str(row.bytes_before), after] if row.bytes_before or row.bytes_after else ["", ""]


def group_skips(skips: Iterable[Skip]) -> dict[str, list[Skip]]:
    """Skips by reason: those a user may want to act on first, then the most frequent first."""
    groups: dict[str, list[Skip]] = {}
    for skip in skips:
        groups.setdefault(skip.reason, []).append(skip)
    order = sorted(groups.items(), key=lambda item: (all(s.expected for s in item[1]), -len(item[1]), item[0]))
    return dict(order)


def _show_skips(out: Output, skips: list[Skip]) -> None:
    out.say(f"Left in float: {_nodes(len(skips))}")
    cut = False
    for reason, group in group_skips(skips).items():
        names = [f"{s.node} ({s.op_type})" for s in group]
        shown = names if out.verbose else names[:NAMES_SHOWN]
        more = len(names) - len(shown)
        cut = cut or more > 0
        out.say(f"  {len(group):>4}  {reason}: {', '.join(shown)}{f' and {more} more' if more else ''}")
    if cut:
        out.say("        (-v lists all)")


def _facts(result: QuantizeResult, *, verbose: bool) -> Iterable[tuple[str, str]]:
    if result.config.target != DEFAULT_TARGET:
        yield "Target", target_line(result.config.target)
    ratio = result.bytes_before / result.bytes_after if result.bytes_after else float("nan")
    yield from fusion_lines(result)
    yield "Size", f"{human_bytes(result.bytes_before)} -> {human_bytes(result.bytes_after)} ({ratio:.2f}x smaller)"
    weights = result.plan.weights_db()
    if weights is not None:
        yield "Weights", f"{weights[0]:.1f} dB in all; least {weights[1]:.1f} dB: {weights[2]}"
    yield from _ranges(result, verbose=verbose)
    count = result.verified_samples
    samples = f"one {result.verified_on} sample" if count == 1 else f"{count} {result.verified_on} samples"
    for output, db in result.sqnr_db.items():
        yield "SQNR", f"{db:.1f} dB at output {output}, on {samples}"
    yield from costs(result.seconds, result.peak_rss_bytes)


def _ranges(result: QuantizeResult, *, verbose: bool) -> Iterable[tuple[str, str]]:
    """Which ranges ``auto`` came to, and with ``verbose`` what each method gave."""
    if result.auto is None:
        return
    yield "Ranges", result.auto.message()
    for trial in result.auto.trials if verbose else ():
        decibels = ", ".join(f"{value:.1f} dB at {output}" for output, value in trial.sqnr_db.items())
        gain = f"; gain {trial.gain.db:+.2f} dB, error {trial.gain.error:.2f}" if trial.gain is not None else ""
        yield "", f"  {trial.method} ({trial.samples}): {decibels or 'does not run'}{gain}"


def target_line(name: str) -> str:
    """A target with what it is, and whether its facts were measured: ``tensorrt (...; from documentation)``."""
    facts = target(name)
    return f"{name} ({facts.title}; {facts.evidence})"


def fusion_lines(result: QuantizeResult) -> Iterable[tuple[str, str]]:
    """Lines about what onnxruntime fuses: how many nodes, and why others are computed in float; (label, text)."""
    if result.fusion is None:
        return
    yield "Fusion", result.fusion.message()
    reasons: dict[str, list[str]] = {}
    for node in result.fusion.unfused:
        reasons.setdefault(node.reason or "", []).append(f"{node.node} ({node.op_type})")
    for reason, names in reasons.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield "", f"float: {', '.join(names[:NAMES_SHOWN])}{more}: {reason}"


def costs(seconds: Mapping[str, float], peak_rss_bytes: int) -> Iterable[tuple[str, str]]:
    """Lines about time, by stage, and memory: (label, text)."""
    yield "Time", _timings(seconds)
    if peak_rss_bytes:
        yield "Memory", f"{human_bytes(peak_rss_bytes)} at the peak"


def _timings(seconds: Mapping[str, float]) -> str:
    stages = ", ".join(f"{stage} {duration:.2f}" for stage, duration in seconds.items())
    return f"{sum(seconds.values()):.2f} s ({stages})"


def _remark(decision: Decision) -> str:
    parts = [f"with {', '.join(decision.absorbed)}"] if decision.absorbed else []
    return "; ".join([*parts, *([decision.note] if decision.note else [])])


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
