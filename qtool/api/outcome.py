"""Small answers that every mode of quantize() gives: where the result goes, why there is none, why it is poor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.config import QuantConfig

if TYPE_CHECKING:
    from qtool.plan import Plan

_USELESS_DB = 10.0  # output SQNR below which no task metric survives


def destination_of(source: Path | None, output: str | os.PathLike[str] | None, settings: QuantConfig) -> Path | None:
    """Where the result goes: what is asked for, or beside a model that is a file, or nowhere (memory)."""
    from qtool.publish import default_output

    if output is not None:
        return Path(output)
    if source is None:
        return None
    return default_output(source, settings.weights) if settings.weight_only else default_output(source)


def why_nothing(plan: Plan) -> str:
    """The reason that speaks for most nodes, a telling one before an expected one, that of products before others."""
    from qtool.runtime.products import FLOAT_PRODUCTS

    if not plan.skips:
        return "the model has no nodes"
    counts = Counter((s.expected, s.op_type not in FLOAT_PRODUCTS, s.reason) for s in plan.skips)
    (*_, reason), _ = min(counts.items(), key=lambda row: (*row[0][:2], -row[1], row[0][2]))
    return reason


def quality_notes(sqnr_db: Mapping[str, float], samples: str, remedy: str) -> list[str]:
    """A line if an output is so far from the float model that the file is of little use.

    Args:
        sqnr_db: Decibels by output.
        samples: What kind of samples they were measured on.
        remedy: What a user can do.
    """
    poor = {name: value for name, value in sqnr_db.items() if value < _USELESS_DB}
    if not poor:
        return []
    name = min(poor, key=lambda output: poor[output])
    others = f" ({len(poor) - 1} more outputs are)" if len(poor) > 1 else ""
    text = (
        f"output '{name}' is {poor[name]:.1f} dB from the float model on the {samples} samples; below "
        f"{_USELESS_DB:.0f} dB a model is usually broken{others}. {remedy}."
    )
    return [text]
