"""The range of all that was observed: nothing is clipped."""

from __future__ import annotations

from qtool.calibrate.methods._method import Method, observed_range
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """[min(0, min), max(0, max)]; whoever wants it symmetric widens it when the scale is made."""
    del dtype, symmetric, parameter
    return observed_range(stats)


METHOD = Method("minmax", range_of, needs_histogram=False)
