"""Every range method on one tensor, side by side: what it chooses, what that costs, and which one is taken."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.calibrate.methods import METHODS
from qtool.calibrate.methods.quality import quality
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType


@dataclass(frozen=True)
class MethodRow:
    """One method on one tensor.

    Attributes:
        name: As the user writes it.
        lo: Lower end of its range.
        hi: Upper end.
        clipped_fraction: Of the finite values, those outside.
        sqnr_db: Signal to quantization noise of the tensor's values.
        chosen: Whether it is the best one.
        why: The reason, where it is chosen.
    """

    name: str
    lo: float
    hi: float
    clipped_fraction: float
    sqnr_db: float
    chosen: bool
    why: str


def compare(stats: TensorStatistics, dtype: QDType, symmetric: bool) -> list[MethodRow]:
    """All methods; the chosen one loses least of the values, and the first of equals is taken.

    Args:
        stats: With a histogram.
        dtype: An integer type.
        symmetric: Whether the zero point is fixed.
    """
    found = []
    for name, method in METHODS.items():
        low, high = method.range_of(stats, dtype, symmetric=symmetric, parameter=method.default)
        found.append((name, low, high, quality(stats, low, high, dtype, symmetric=symmetric)))
    best = max(range(len(found)), key=lambda index: found[index][3].sqnr_db)
    return [
        MethodRow(
            name, low, high, q.clipped_fraction, q.sqnr_db, number == best, "least error" if number == best else ""
        )
        for number, (name, low, high, q) in enumerate(found)
    ]
