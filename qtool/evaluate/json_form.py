"""Numbers and what holds them, as strict JSON."""

from __future__ import annotations

import math
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def encode(value: float | None) -> float | str | None:
    """A number as strict JSON: ``"inf"``, ``"-inf"`` or ``"nan"`` where JSON has no number; None stays."""
    return value if value is None or math.isfinite(value) else str(float(value))
