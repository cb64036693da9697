"""What calibration knows about a tensor: counts, extremes and a histogram, all of them exactly mergeable.

Splitting the data, reordering it, or observing parts on different machines and merging never changes a bit. For the
histogram that takes bins whose width is a power of two, w = 2^(e-B): the index floor(x/w) is exact, and when a value
reaches 2^e, neighbouring bins are added in pairs and e grows by one. The histogram at the final e is therefore the
same for every order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import frexp, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool import kernels

HISTOGRAM_BITS = 12  # B: 2^12 bins on each side of zero
MIN_EXPONENT = -64  # values below 2^-64 share the bins next to zero; an all-zero tensor needs some exponent


@dataclass(eq=False)
class TensorStatistics:
    """Statistics of all values of one tensor.

    Attributes:
        count: Elements seen, NaN and infinities included.
        nan: NaNs among them.
        pos_inf: Positive infinities.
        neg_inf: Negative infinities.
        zeros: Exact zeros of either sign.
        minimum: Smallest finite value; ``inf`` if there is none.
        maximum: Largest finite value; ``-inf`` if there is none.
        histogram: int64, shape ``(2 * 2**HISTOGRAM_BITS,)``, counts of the finite values in bins of width
            :attr:`bin_width` from ``-2**exponent`` upwards; ``None`` if it was not asked for.
        exponent: e of the histogram's range [-2^e, 2^e); ``None`` without a histogram.
    """

    count: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    zeros: int = 0
    minimum: float = inf
    maximum: float = -inf
    histogram: npt.NDArray[np.int64] | None = None
    exponent: int | None = None

    @classmethod
    def empty(cls, *, histogram: bool) -> TensorStatistics:
        """Statistics of no values, the neutral element of :func:`merge`."""
        if not histogram:
            return cls()
        return cls(histogram=np.zeros(2 << HISTOGRAM_BITS, np.int64), exponent=MIN_EXPONENT)

    @classmethod
    def of(
        cls, array: npt.NDArray[Any], *, histogram: bool = False, num_threads: int | None = None
    ) -> TensorStatistics:
        """Statistics of one array of any shape; see :meth:`update`."""
        result = cls.empty(histogram=histogram)
        result.update(array, num_threads=num_threads)
        return result

    @property
    def finite(self) -> int:
        """Number of finite values."""
        return self.count - self.nan - self.pos_inf - self.neg_inf

    @property
    def bin_width(self) -> float:
        """Width of a histogram bin, a power of two."""
        assert self.exponent is not None, "Bug: statistics without a histogram have no bins"
        return 2.0 ** (self.exponent - HISTOGRAM_BITS)

    def update(self, array: npt.NDArray[Any], *, num_threads: int | None = None) -> None:
        """Add the values of an array (float32, float16 or bfloat16, any shape) in place."""
        seen = kernels.min_max(array, num_threads=num_threads)
        self.count += seen.count
        self.nan += seen.nan
        self.pos_inf += seen.pos_inf
        self.neg_inf += seen.neg_inf
        self.zeros += seen.zeros
        self.minimum = min(self.minimum, seen.min)  # inf and -inf if there is no finite value
        self.maximum = max(self.maximum, seen.max)
        if self.histogram is None or self.exponent is None:
            return
        needed = max(self.exponent, exponent_for(self.minimum, self.maximum))
        counts = kernels.histogram(array, needed, HISTOGRAM_BITS, num_threads=num_threads)
        self.histogram = _widened(self.histogram, needed - self.exponent) + counts
        self.exponent = needed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStatistics):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def to_dict(self, *, histograms: bool = True) -> dict[str, Any]:
        """JSON-ready; extremes are ``None`` if no finite value was seen."""
        seen = self.finite > 0
        row: dict[str, Any] = {
            "count": self.count,
            "nan": self.nan,
            "pos_inf": self.pos_inf,
            "neg_inf": self.neg_inf,
            "zeros": self.zeros,
            "minimum": self.minimum if seen else None,
            "maximum": self.maximum if seen else None,
        }
        if self.histogram is not None and histograms:
            row |= {"exponent": self.exponent, "histogram": self.histogram.tolist()}
        return row


def merge(a: TensorStatistics, b: TensorStatistics) -> TensorStatistics:
    """Statistics of the values of both, exactly; commutative and associative.

    Raises:
        ValueError: If one has a histogram and the other has not.
    """
    if (a.histogram is None) != (b.histogram is None):
        raise ValueError("Only one of the two statistics has a histogram.")
    merged = TensorStatistics(
        count=a.count + b.count,
        nan=a.nan + b.nan,
        pos_inf=a.pos_inf + b.pos_inf,
        neg_inf=a.neg_inf + b.neg_inf,
        zeros=a.zeros + b.zeros,
        minimum=min(a.minimum, b.minimum),
        maximum=max(a.maximum, b.maximum),
    )
    if a.histogram is not None and b.histogram is not None and a.exponent is not None and b.exponent is not None:
        merged.exponent = max(a.exponent, b.exponent)
        merged.histogram = _widened(a.histogram, merged.exponent - a.exponent) + _widened(
            b.histogram, merged.exponent - b.exponent
        )
    return merged


def exponent_for(minimum: float, maximum: float) -> int:
    """The smallest e with |x| < 2^e for both extremes, but at least MIN_EXPONENT."""
    widest = max(-minimum, maximum)
    return max(MIN_EXPONENT, frexp(widest)[1]) if widest > 0 else MIN_EXPONENT


def _widened(histogram: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
    """The same counts in a histogram whose exponent is larger by ``steps``."""
    quarter = len(histogram) // 4
    # after B + 1 steps all counts sit in the two bins beside zero, and stay there
    for _ in range(min(steps, HISTOGRAM_BITS + 1)):
        wider = np.zeros_like(histogram)
        wider[quarter : 3 * quarter] = histogram[0::2] + histogram[1::2]
        histogram = wider
    return histogram


@dataclass(frozen=True, eq=True)
class Statistics(Mapping[str, TensorStatistics]):
    """Statistics of the observed tensors of a model.

    Attributes:
        tensors: Tensor name -> its statistics, in the order asked for.
        samples: Samples that were run.
        notes: What a user should know about the samples; no part of the value.
    """

    tensors: Mapping[str, TensorStatistics] = field(default_factory=dict)
    samples: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __getitem__(self, name: str) -> TensorStatistics:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def merged(self, other: Statistics) -> Statistics:
        """Statistics of the samples of both.

        Raises:
            ValueError: If they are not about the same tensors.
        """
        if set(self.tensors) != set(other.tensors):
            raise ValueError("The two statistics are not about the same tensors.")
        tensors = {name: merge(one, other.tensors[name]) for name, one in self.tensors.items()}
        return Statistics(tensors, self.samples + other.samples, tuple(dict.fromkeys(self.notes + other.notes)))

    def to_dict(self, *, histograms: bool = True) -> dict[str, Any]:
        """JSON-ready."""
        tensors = {name: one.to_dict(histograms=histograms) for name, one in self.tensors.items()}
        return {"samples": self.samples, "tensors": tensors}
