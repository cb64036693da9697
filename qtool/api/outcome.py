"""Small answers that every mode of quantize() gives: where the result goes, and why there is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qtool.plan import Plan


def destination_of(source: Path | None, output: str | os.PathLike[str] | None) -> Path | None:
    """Where the result goes: what is asked for, or beside a model that is a file, or nowhere (memory)."""
    from qtool.publish import default_output

    if output is not None:
        return Path(output)
    return None if source is None else default_output(source)


def why_nothing(plan: Plan) -> str:
    """The reason that speaks for most nodes, a telling one before an expected one."""
    if not plan.skips:
        return "the model has no nodes"
    counts: dict[tuple[bool, str], int] = {}
    for s in plan.skips:
        key = (s.expected, s.reason)
        counts[key] = counts.get(key, 0) + 1
    (_, reason), _ = min(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1]))
    return reason
