"""What a metric is: a named way to add up, batch by batch, how far a candidate is from a reference.

An accumulator keeps a few sums, never the arrays, so an evaluation needs the memory of one batch whatever the number of
samples. A metric has three kinds of result besides a finite number:

- ``None``: not defined for this output (nothing was compared, no class axis, every label ignored). It is not a verdict.
- ``nan``: defined, and broken: one side holds a NaN or an infinity that the other side does not have.
- ``inf`` or ``-inf``: the limit of the formula (the SQNR of two equal arrays).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


class Accumulator(ABC):
    """The running sums of one metric on one output."""

    @abstractmethod
    def update(self, reference: Array, candidate: Array, labels: Array | None = None) -> None:
        """Add one batch.

        Args:
            reference: Output of the float model, any shape, any real dtype.
            candidate: Output of the quantized model, same shape.
            labels: Class indices, shape ``reference.shape[:-1]``, integer; only metrics that need labels read them.

        Raises:
            ValueError: If the shapes differ.
        """

    @abstractmethod
    def result(self) -> float | None:
        """The value over all batches so far; see the module for ``None``, ``nan`` and ``inf``."""

    def baseline(self) -> float | None:
        """The float model's own value, where the metric judges each model by itself (labelled metrics)."""
        return None


@dataclass(frozen=True)
class Metric:
    """One row of the registry.

    Attributes:
        name: Key on the command line and in the JSON report.
        title: Column heading.
        unit: Unit of the value, empty for a pure number or for the unit of the output itself.
        higher_is_better: Direction: what a gate may demand and which output is the worst.
        start: Makes an empty accumulator.
        needs_labels: Whether ``update`` reads labels.
        bounds: Smallest and largest value that the formula can give.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool
    start: Callable[[], Accumulator]
    needs_labels: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __call__(self, reference: Array, candidate: Array, labels: Array | None = None) -> float | None:
        """The value of one pair of arrays; see :meth:`Accumulator.update` for shapes."""
        accumulator = self.start()
        accumulator.update(reference, candidate, labels)
        return accumulator.result()


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this dtype are real numbers (bool counts as 0 and 1; strings and complex do not)."""
    return dtype.kind in "biuf" or dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def require_same_shape(reference: Array, candidate: Array) -> None:
    """Raise ValueError unless both arrays have one shape: nothing here broadcasts."""
    if reference.shape != candidate.shape:
        raise ValueError(f"Shapes differ: reference {reference.shape}, candidate {candidate.shape}.")


def absolute_error(reference: Array, candidate: Array) -> npt.NDArray[np.float64]:
    """``|x - y|`` per element in float64.

    The same infinity, or a NaN, on both sides at one place is agreement: 0. A NaN on one side gives ``nan``, an
    infinity on one side (or two of opposite sign) ``inf``. Integers are subtracted as integers, so that int64 values
    beyond 2^53 keep their difference.

    Args:
        reference: x, any shape, any real dtype.
        candidate: y, same shape.

    Raises:
        ValueError: If the shapes differ.
    """
    require_same_shape(reference, candidate)
    if reference.dtype == candidate.dtype and reference.dtype.kind in "iu":
        # the difference modulo 2^64 of the larger minus the smaller is the difference
        x, y = reference.astype(np.uint64), candidate.astype(np.uint64)
        with np.errstate(over="ignore"):
            return np.where(reference >= candidate, x - y, y - x).astype(np.float64)
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(same, 0.0, np.abs(a - b))
