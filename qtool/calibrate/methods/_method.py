"""What a range method is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qtool.calibrate.statistics import TensorStatistics
from qtool.dtypes import QDType
from qtool.errors import ConfigError


class RangeOf(Protocol):
    """The function of a method."""

    def __call__(
        self, stats: TensorStatistics, dtype: QDType, *, symmetric: bool, parameter: float | None
    ) -> tuple[float, float]:
        """The range (lo, hi), with lo <= 0 <= hi and inside the observed one; (0, 0) if nothing finite was seen."""


@dataclass(frozen=True)
class Method:
    """A way to choose a range.

    Attributes:
        name: As the user writes it.
        range_of: The function.
        needs_histogram: Whether the statistics must hold a histogram.
        default: Parameter if none is given; ``None`` if the method takes no parameter.
        limits: The parameter lies above the first and up to the second.
    """

    name: str
    range_of: RangeOf
    needs_histogram: bool
    default: float | None = None
    limits: tuple[float, float] = (0.0, 0.0)


def require_integer(name: str, dtype: QDType) -> None:
    """Refuse element types whose codes are not evenly spaced.

    Raises:
        ConfigError: If the type is no integer.
    """
    if not dtype.is_integer:
        raise ConfigError(
            f"Range method '{name}' is defined for integer types, not {dtype.name}.", hint="Use method minmax."
        )


def observed_range(stats: TensorStatistics) -> tuple[float, float]:
    """[min(0, min), max(0, max)]: all that was seen, and zero."""
    return min(stats.minimum, 0.0), max(stats.maximum, 0.0)
