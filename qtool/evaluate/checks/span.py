"""The range that a tensor was quantized for, and how far the values that came lie outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_SLACK = 0.5
"""Steps: a value half a step outside still rounds to the last code."""

Array = npt.NDArray[Any]


@dataclass
class Range:
    """What a QuantizeLinear can represent, and what came.

    Attributes:
        low: The value of its least code.
        high: The value of its largest.
        step: Its scale.
        least: The least value that came, inf if none did.
        most: The largest.
        outside: Values further outside than rounding explains.
        elements: Values that came; NaN is not among them.
    """

    low: float
    high: float
    step: float
    least: float = math.inf
    most: float = -math.inf
    outside: int = 0
    elements: int = 0

    def add(self, values: Array) -> None:
        """Add an array of floats."""
        if not values.size:
            return
        least, most = float(values.min()), float(values.max())
        if math.isnan(least):  # a NaN anywhere makes both so
            values = values[~np.isnan(values)]
            if not values.size:
                return
            least, most = float(values.min()), float(values.max())
        self.elements += values.size
        self.least, self.most = min(self.least, least), max(self.most, most)
        low, high = self.low - _SLACK * self.step, self.high + _SLACK * self.step
        if least < low:
            self.outside += int(np.count_nonzero(values < low))
        if most > high:
            self.outside += int(np.count_nonzero(values > high))

    def is_of(self, other: Range | None) -> bool:
        """Whether both stand for the same codes."""
        return other is not None and (self.low, self.high, self.step) == (other.low, other.high, other.step)

    @property
    def share(self) -> float:
        """Share of the values that lie outside."""
        return self.outside / self.elements if self.elements else 0.0

    @property
    def excess(self) -> float:
        """How far the farthest value lies outside, in widths of the range; 0 inside."""
        width = self.high - self.low
        beyond = max(self.low - self.least, self.most - self.high, 0.0)
        return 0.0 if beyond <= _SLACK * self.step else beyond / width
