"""Attribution and sensitivity as tables of ready text."""

from __future__ import annotations

import math

from qtool.evaluate.attribution.report import Attribution, LayerReport, Sensitivity
from qtool.evaluate.writers._cells import ABSENT, Table

MOST_ROWS = 20
"""Rows on the screen; JSON has all."""

MOST_NAMES = 5
"""Names in a note; JSON and HTML have all."""


def layer_tables(layers: Attribution | None, sensitivity: Sensitivity | None) -> tuple[Table, ...]:
    """The tables of what is there."""
    found = []
    if layers is not None:
        found.append(_layers(layers))
    if sensitivity is not None:
        found.append(_sensitivity(sensitivity))
    return tuple(found)


def layer_notes(layers: Attribution | None, sensitivity: Sensitivity | None) -> tuple[str, ...]:
    """What the reader should know, one line each."""
    notes: dict[str, None] = {}
    for one in (layers, sensitivity):
        if one is None:
            continue
        notes |= dict.fromkeys(one.notes)
        reasons: dict[str, list[str]] = {}
        for node, reason in one.left_out:
            reasons.setdefault(reason, []).append(f"'{node}'")
        for reason, names in reasons.items():
            shown, rest = names[:MOST_NAMES], len(names) - MOST_NAMES
            more = f" and {rest} more" if rest > 0 else ""
            notes[f"No row is about {', '.join(shown)}{more}: {reason}."] = None
    return tuple(notes)


def layer_commands(layers: Attribution | None, sensitivity: Sensitivity | None) -> tuple[tuple[str, str], ...]:
    """(command, why) to paste."""
    commands: dict[str, str] = {}
    for one in (layers, sensitivity):
        for command in () if one is None else one.commands:
            commands.setdefault(command.text, command.why)
    return tuple(commands.items())


def _layers(layers: Attribution) -> Table:
    there = layers.without_vnni
    rows = tuple(_row(layer, without_vnni=there) for layer in layers.layers[:MOST_ROWS])
    title = f"Layers, {_counted(layers.samples, len(layers.layers))}; dB of the output against each part"
    own = ("own", "no VNNI") if there else ("own",)
    return Table(
        f"{title}; shares without VNNI" if there else title,
        ("node", "share", *own, "weight", "clip", "round", "inherited", "total", "clipped", "codes", "cause"),
        rows,
    )


def _row(layer: LayerReport, *, without_vnni: bool) -> tuple[str, ...]:
    share = ABSENT if layer.share is None else f"{'' if layer.share_measured else '~'}{layer.share:.1%}"
    codes = ABSENT if layer.levels_used is None else f"{layer.levels_used}/{layer.levels}"
    return (
        layer.node,
        share,
        *(
            _decibels(value)
            for value in (
                layer.own_db,
                *([layer.own_there_db] if without_vnni else []),
                layer.weight_db,
                layer.clip_db,
                layer.round_db,
                layer.inherited_db,
                layer.total_db,
            )
        ),
        ABSENT if layer.clipped is None else f"{layer.clipped:.3%}" if layer.clipped else "0",
        codes,
        str(layer.cause),
    )


def _sensitivity(sensitivity: Sensitivity) -> Table:
    rows = tuple(
        (
            unit.node,
            unit.op_type,
            _decibels(unit.sqnr_db),
            ABSENT if math.isnan(unit.gain_db) else f"{unit.gain_db:+.2f}",
        )
        for unit in sensitivity.units[:MOST_ROWS]
    )
    count = _counted(sensitivity.samples, len(sensitivity.units))
    return Table(
        f"Sensitivity, {count}; {_decibels(sensitivity.sqnr_db)} dB with all quantized",
        ("node", "operator", "dB in float", "gain"),
        rows,
    )


def _gain(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:+.2f}"


def _counted(samples: int, rows: int) -> str:
    shown = f"the worst {MOST_ROWS} of {rows} operators" if rows > MOST_ROWS else f"{rows} operators"
    return f"{samples} sample{'' if samples == 1 else 's'}, {shown}"


def _decibels(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f}"
