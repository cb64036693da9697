"""The range with the smallest squared error of the values themselves; formula and search are in ``_search.py``."""

from __future__ import annotations

from qtool.calibrate.methods._bins import filled_bins
from qtool.calibrate.methods._method import Method, observed_range, require_integer
from qtool.calibrate.methods._search import RangeSearch
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType


def range_of(
    stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
) -> tuple[float, float]:
    """The range of smallest squared error for an integer type.

    Raises:
        ConfigError: If the type is no integer.
    """
    del parameter
    require_integer("mse", dtype)
    low, high = observed_range(stats)
    if low == high:
        return low, high
    return RangeSearch(filled_bins(stats), low, high, dtype, symmetric=symmetric).best()


METHOD = Method("mse", range_of, needs_histogram=True)
