"""Every range method on one tensor, side by side: what it chooses, what that costs, and what ``auto`` takes and why."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.calibrate.methods import METHODS
from qtool.calibrate.methods.auto import explained
from qtool.calibrate.methods.quality import quality
from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType

_PERCENTILES = (99.9, 99.99, 99.999)


@dataclass(frozen=True)
class MethodRow:
    """One method on one tensor.

    Attributes:
        name: As the user writes it.
        lo: Lower end of its range.
        hi: Upper end.
        clipped_fraction: Of the finite values, those outside.
        sqnr_db: Signal to quantization noise of the tensor's values.
        chosen: Whether it is the default method, whose range is taken unless another one is asked for.
        why: The reason of that range, where it is chosen.
    """

    name: str
    lo: float
    hi: float
    clipped_fraction: float
    sqnr_db: float
    chosen: bool
    why: str


def compare(stats: TensorStatistics, dtype: QDType, symmetric: bool) -> list[MethodRow]:
    """All methods, percentiles at their usual parameters; ``auto`` comes first, and is chosen.

    The SQNR is that of the tensor's own values, by which ``mse`` is the best. What ``auto`` looks at is the error at
    the readers, so it may well have a lower one: where single channels matter more, or clipping costs more than its
    square.

    Args:
        stats: With a histogram.
        dtype: An integer type.
        symmetric: Whether the zero point is fixed.

    Raises:
        ConfigError: If the type is no integer.
        ValueError: If the statistics hold no histogram.
    """
    rows = []
    for name, method in METHODS.items():
        parameters = [None] if method.default is None else list(_PERCENTILES)
        for parameter in parameters:
            if name == "auto":
                (low, high), why = explained(stats, dtype, symmetric=symmetric)
            else:
                (low, high), why = method.range_of(stats, dtype, symmetric=symmetric, parameter=parameter), ""
            lost = quality(stats, low, high, dtype, symmetric=symmetric)
            text = name if parameter is None else f"{name}:{parameter:g}"
            rows.append(MethodRow(text, low, high, lost.clipped_fraction, lost.sqnr_db, name == "auto", why))
    return rows
