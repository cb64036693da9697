"""What a metric is: a named way to add up, batch by batch, how far a candidate is from a reference.

An accumulator keeps sums, never the arrays: a few numbers for each sample at most, from which
:mod:`qtool.evaluate.intervals` learns how much the value depends on the choice of samples. A metric has three kinds of
result besides a finite number:

- ``None``: not defined for this output (nothing was compared, no class axis, every label ignored). It is not a verdict.
- ``nan``: defined, and broken: one side holds a NaN or an infinity that the other side does not have.
- ``inf`` or ``-inf``: the limit of the formula (the SQNR of two equal arrays).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]


class LabelKind(Enum):
    """What labels are, told by their dtype and by their shape beside an output's; see ``evaluate.labels``."""

    CLASSES = "class indices"
    TOKENS = "class indices per position"
    MAP = "a label map"
    TARGETS = "regression targets"
    SEQUENCES = "sequences of ids"


@dataclass(frozen=True)
class Resampling:
    """How a metric's value follows from weighted samples: what a bootstrap needs.

    Attributes:
        samples: Number of samples, n.
        value: Weights (draws, n) of the samples to the metric's value of each draw, (draws,); nan if not defined.
        baseline: The same for the float model's own value; None for metrics that compare the two models.
        hits: Of metrics that are a mean over one right or wrong answer per sample: for each sample with an answer
            whether the float and the quantized model are right, (answers,) bool each. None for all other metrics.
    """

    samples: int
    value: Callable[[Floats], Floats]
    baseline: Callable[[Floats], Floats] | None = None
    hits: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None = None


class Accumulator(ABC):
    """The running sums of one metric on one output."""

    @abstractmethod
    def update(
        self, reference: Array, candidate: Array, labels: Array | None = None, *, samples: int | None = None
    ) -> None:
        """Add one batch.

        Args:
            reference: Output of the float model, any shape, any real dtype.
            candidate: Output of the quantized model, same shape.
            labels: What the output should be, for metrics that need labels; see :class:`LabelKind` for the shapes.
            samples: Into how many equal parts, one per sample, axis 0 can be cut; 1: all is one sample; None: the
                samples' shares cannot be told apart.

        Raises:
            ValueError: If the shapes differ.
            DataError: If a label cannot be one of this output.
        """

    @abstractmethod
    def result(self) -> float | None:
        """The value over all batches so far; see the module for ``None``, ``nan`` and ``inf``."""

    def baseline(self) -> float | None:
        """The float model's own value, where the metric judges each model by itself (labelled metrics)."""
        return None

    def resampling(self) -> Resampling | None:
        """How the value depends on the samples; None if it is no mean, or samples could not be told apart."""
        return None


@dataclass(frozen=True)
class Metric:
    """One row of the registry.

    Attributes:
        name: Key on the command line and in the JSON report.
        title: Column heading.
        unit: Unit of the value, empty for a pure number or for the unit of the output itself.
        higher_is_better: Direction: what a gate may demand and which output is the worst. None: nobody knows (a metric
            of the user's own that does not say).
        start: Makes an empty accumulator.
        needs_labels: Whether ``update`` reads labels.
        bounds: Smallest and largest value that the formula can give.
        kinds: The labels that it reads.
        default_for: Of these, the ones with which it is computed unasked.
        default: Whether it is computed unasked, for a metric without labels.
        share: Whether the value is a share, so that a difference of two can be told in percentage points.
        own: Whether it is one of the user's own, ``module:name``.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool | None
    start: Callable[[], Accumulator]
    needs_labels: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    kinds: frozenset[LabelKind] = frozenset()
    default_for: frozenset[LabelKind] = frozenset()
    default: bool = False
    share: bool = False
    own: bool = False

    def __call__(self, reference: Array, candidate: Array, labels: Array | None = None) -> float | None:
        """The value of one pair of arrays whose leading axis counts samples; see :meth:`Accumulator.update`."""
        accumulator = self.start()
        accumulator.update(reference, candidate, labels, samples=len(reference) if reference.ndim else 1)
        return accumulator.result()


CLASS_KINDS = frozenset({LabelKind.CLASSES, LabelKind.TOKENS, LabelKind.MAP})
"""Labels that name one class for each decision."""


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this dtype are real numbers (bool counts as 0 and 1; strings and complex do not)."""
    return dtype.kind in "biuf" or dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def require_same_shape(reference: Array, candidate: Array) -> None:
    """Raise ValueError unless both arrays have one shape: nothing here broadcasts."""
    if reference.shape != candidate.shape:
        raise ValueError(f"Shapes differ: reference {reference.shape}, candidate {candidate.shape}.")


def has_nan(array: Array) -> Array:
    """Whether each row along the last axis holds a NaN: shape ``array.shape[:-1]``, bool."""
    # a NaN is the only value that differs from itself, in every dtype
    nan: Array = np.any(array != array, axis=-1)
    return nan


def without_equal_specials(reference: Array, candidate: Array) -> tuple[Floats, Floats]:
    """Both in float64, 0 where both hold the same infinity or both a NaN: agreement that carries nothing."""
    x, y = reference.astype(np.float64), candidate.astype(np.float64)
    special = ~np.isfinite(x) & ((x == y) | (np.isnan(x) & np.isnan(y)))
    return np.where(special, 0.0, x), np.where(special, 0.0, y)


def absolute_error(reference: Array, candidate: Array) -> Floats:
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
