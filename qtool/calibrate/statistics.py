"""What calibration knows about a tensor: counts, extremes and a histogram, all of them exactly mergeable.

Splitting the data, reordering it, or observing parts on different machines and merging never changes a bit. For the
histogram that takes bins whose width is a power of two, w = 2^(e-B): the index floor(x/w) is exact, and when a value
reaches 2^e, neighbouring bins are added in pairs and e grows by one. The histogram at the final e is therefore the
same for every order of arrival. Sums of the extremes of single samples are kept as integers, in units of the smallest
positive float32, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import frexp, inf, ldexp
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.calibrate.wanted import Wanted
from qtool.runtime.blocked import out_of_blocks

HISTOGRAM_BITS = 12  # B: 2^12 bins on each side of zero
MIN_EXPONENT = -64  # values below 2^-64 share the bins next to zero; an all-zero tensor needs some exponent
FIXED_POINT_BITS = 149  # 2^-149, the smallest float32: every float32, float16 and bfloat16 is a multiple of it
_LONG_SAMPLE = 4096  # elements from which a call of a kernel for each sample costs nothing beside its work


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
        sample_ranges: Samples that hold a finite value.
        sample_min_sum: Sum over these samples of their smallest finite value, in units of 2^-149.
        sample_max_sum: The same of their largest one.
        channel_axis: The axis that weighted consumers sum over, possibly negative; ``None`` if it was not asked for.
        channel_absmax: float32, shape ``(K,)``: of each channel the largest finite magnitude, 0 if there is none;
            ``None`` if it was not asked for, or the number of channels is not known yet.
        channel_energy: float64, shape ``(K,)``: what :class:`Wanted` said of the channels' weights.
        clip_weight: What :class:`Wanted` said of clipped values.
        floor: What :class:`Wanted` said of low values.
        coherence: What :class:`Wanted` said of mean errors.
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
    sample_ranges: int = 0
    sample_min_sum: int = 0
    sample_max_sum: int = 0
    channel_axis: int | None = None
    channel_absmax: npt.NDArray[np.float32] | None = None
    channel_energy: npt.NDArray[np.float64] | None = None
    clip_weight: float = 1.0
    floor: float = -inf
    coherence: float = 0.0

    @classmethod
    def empty(cls, *, histogram: bool, wanted: Wanted | None = None) -> TensorStatistics:
        """Statistics of no values, the neutral element of :func:`merge`."""
        result = cls()
        if histogram:
            result.histogram, result.exponent = np.zeros(2 << HISTOGRAM_BITS, np.int64), MIN_EXPONENT
        if wanted is not None:
            result.channel_axis, result.channel_energy = wanted.channel_axis, wanted.channel_energy
            result.clip_weight, result.floor = wanted.clip_weight, wanted.floor
            result.coherence = wanted.coherence
            if wanted.channel_energy is not None:
                result.channel_absmax = np.zeros(len(wanted.channel_energy), np.float32)
        return result

    @classmethod
    def of(
        cls,
        array: npt.NDArray[Any],
        *,
        histogram: bool = False,
        wanted: Wanted | None = None,
        rows: int = 1,
        num_threads: int | None = None,
    ) -> TensorStatistics:
        """Statistics of one array of any shape; see :meth:`update`."""
        result = cls.empty(histogram=histogram, wanted=wanted)
        result.update(array, rows=rows, num_threads=num_threads)
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

    @property
    def mean_minimum(self) -> float:
        """Mean over the samples of their smallest finite value, rounded once; ``inf`` if there is none."""
        return self.sample_min_sum / (self.sample_ranges << FIXED_POINT_BITS) if self.sample_ranges else inf

    @property
    def mean_maximum(self) -> float:
        """Mean over the samples of their largest finite value, rounded once; ``-inf`` if there is none."""
        return self.sample_max_sum / (self.sample_ranges << FIXED_POINT_BITS) if self.sample_ranges else -inf

    def update(
        self,
        array: npt.NDArray[Any],
        *,
        rows: int = 1,
        shared: bool = False,
        num_threads: int | None = None,
        blocked: int | None = None,
    ) -> None:
        """Add the values of an array in place.

        Args:
            array: float32, float16 or bfloat16, any shape.
            rows: Samples in it: equal parts along axis 0.
            shared: The array has no sample axis and is the same for each of the samples: it is counted ``rows`` times.
            num_threads: Threads of the kernels; the result does not depend on it.
            blocked: The array holds this many channels in blocks: its shape is ``(N, ceil(channels / b), .., b)``,
                which stands for ``(N, channels, ..)``.

        Raises:
            ValueError: If axis 0 does not divide into ``rows`` samples, or the number of channels changed.
        """
        if rows < 1:
            raise ValueError(f"{rows} samples in an array; expected 1 or more.")
        parts = 1 if shared else rows
        repeats = rows if shared else 1
        if parts > 1 and (array.ndim == 0 or array.shape[0] % parts):
            raise ValueError(f"An array of shape {list(array.shape)} does not divide into {parts} samples.")
        todo = self._observation(array, rows, shared, blocked) if num_threads == 1 else None
        if todo is not None:
            self._take(todo, kernels.observe_all([todo], HISTOGRAM_BITS)[0])
            return
        if blocked is not None:
            array = out_of_blocks(array, blocked)
        seen = _counts(array, parts, num_threads)
        self._add(seen, repeats)
        if self.channel_axis is not None:
            channels = _channel_absmax(array, self.channel_axis, finite=seen.finite == seen.count, threads=num_threads)
            self.channel_absmax = _larger(self.channel_absmax, channels)
        if self.histogram is None or self.exponent is None:
            return
        needed = max(self.exponent, exponent_for(self.minimum, self.maximum))
        self.histogram = _widened(self.histogram, needed - self.exponent)
        self.exponent = needed
        if repeats == 1:
            kernels.histogram(array, needed, HISTOGRAM_BITS, out=self.histogram, num_threads=num_threads)
        else:
            self.histogram += repeats * kernels.histogram(array, needed, HISTOGRAM_BITS, num_threads=num_threads)

    def _add(self, seen: TensorStatistics, repeats: int = 1) -> None:
        """Add counts and extremes."""
        self.count += seen.count * repeats
        self.nan += seen.nan * repeats
        self.pos_inf += seen.pos_inf * repeats
        self.neg_inf += seen.neg_inf * repeats
        self.zeros += seen.zeros * repeats
        self.minimum = min(self.minimum, seen.minimum)  # inf and -inf if there is no finite value
        self.maximum = max(self.maximum, seen.maximum)
        self.sample_ranges += seen.sample_ranges * repeats
        self.sample_min_sum += seen.sample_min_sum * repeats
        self.sample_max_sum += seen.sample_max_sum * repeats

    def _observation(
        self, array: npt.NDArray[Any], rows: int, shared: bool, blocked: int | None
    ) -> kernels.Observation | None:
        """How an array is counted while it is read from memory once; None if it has to be counted in another way."""
        if (shared and rows > 1) or not kernels.observable(array):
            return None
        if rows > 1 and (array.ndim == 0 or array.shape[0] % rows or array.size // rows < _LONG_SAMPLE):
            return None
        axis = self.channel_axis
        if blocked is not None and (len(array) != rows or axis not in (None, 1, 2 - array.ndim)):
            return None
        exponent = MIN_EXPONENT if self.exponent is None else self.exponent
        return kernels.Observation(array, axis, exponent, self.histogram, rows, blocked)

    def _take(self, todo: kernels.Observation, seen: kernels.Observed) -> None:
        """Add what was observed."""
        self.count += seen.size
        self.nan += seen.nan
        self.pos_inf += seen.pos_inf
        self.neg_inf += seen.neg_inf
        self.zeros += seen.zeros
        for least, greatest in seen.ranges:
            if least <= greatest:
                self.minimum = min(self.minimum, least)
                self.maximum = max(self.maximum, greatest)
                self.sample_ranges += 1
                self.sample_min_sum += _fixed_point(least)
                self.sample_max_sum += _fixed_point(greatest)
        if self.exponent is not None:
            self.exponent = seen.exponent
        if self.channel_axis is None:
            return
        channels = seen.absmax
        if channels is None:
            array, axis = todo.x, self.channel_axis
            if todo.blocked is not None:
                array, axis = out_of_blocks(array, todo.blocked), 1
            channels = _channel_absmax(array, axis, finite=False, threads=1)
        self.channel_absmax = _larger(self.channel_absmax, channels)

    def without_channels(self) -> TensorStatistics:
        """The same with nothing about channels and readers, so that tensors of different layouts can be merged."""
        return replace(
            self,
            histogram=None if self.histogram is None else self.histogram.copy(),  # update() adds in place
            channel_axis=None,
            channel_absmax=None,
            channel_energy=None,
            clip_weight=1.0,
            floor=-inf,
            coherence=0.0,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStatistics):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]  # mutable

    def to_dict(self, *, histograms: bool = True) -> dict[str, Any]:
        """JSON-ready; extremes are ``None`` if no finite value was seen.

        Args:
            histograms: Whether to give what has an entry for each bin or channel.
        """
        seen = self.finite > 0
        row: dict[str, Any] = {
            "count": self.count,
            "nan": self.nan,
            "pos_inf": self.pos_inf,
            "neg_inf": self.neg_inf,
            "zeros": self.zeros,
            "minimum": self.minimum if seen else None,
            "maximum": self.maximum if seen else None,
            "mean_minimum": self.mean_minimum if self.sample_ranges else None,
            "mean_maximum": self.mean_maximum if self.sample_ranges else None,
            "sample_ranges": self.sample_ranges,
        }
        if not histograms:
            return row
        row |= {
            "clip_weight": self.clip_weight if self.clip_weight < inf else None,
            "floor": self.floor if self.floor > -inf else None,
            "coherence": self.coherence,
        }
        if self.histogram is not None:
            row |= {"exponent": self.exponent, "histogram": self.histogram.tolist()}
        if self.channel_axis is not None:
            row |= {
                "channel_axis": self.channel_axis,
                "channel_absmax": None if self.channel_absmax is None else self.channel_absmax.tolist(),
                "channel_energy": None if self.channel_energy is None else self.channel_energy.tolist(),
            }
        return row


class Arrival(NamedTuple):
    """An array on its way to its statistics; see :meth:`TensorStatistics.update`."""

    to: TensorStatistics
    array: npt.NDArray[Any]
    rows: int = 1
    shared: bool = False
    blocked: int | None = None


def update_all(arrivals: Iterable[Arrival]) -> None:
    """Add arrays to statistics, each to another, on one thread: that of other calls is not held up in between.

    Raises:
        ValueError: See :meth:`TensorStatistics.update`.
    """
    owners, todo = [], []
    for one in arrivals:
        to, array, rows, shared, blocked = one
        observation = to._observation(array, rows, shared, blocked)
        if observation is None:
            to.update(array, rows=rows, shared=shared, num_threads=1, blocked=blocked)
        else:
            owners.append(to)
            todo.append(observation)
    for to, observation, seen in zip(owners, todo, kernels.observe_all(todo, HISTOGRAM_BITS), strict=True):
        to._take(observation, seen)


def merge(a: TensorStatistics, b: TensorStatistics) -> TensorStatistics:
    """Statistics of the values of both, exactly; commutative and associative.

    Raises:
        ValueError: If one has a histogram and the other has not, or they say different things about channels.
    """
    if (a.histogram is None) != (b.histogram is None):
        raise ValueError("Only one of the two statistics has a histogram.")
    if a.channel_axis != b.channel_axis:
        raise ValueError(f"The two statistics have channel axes {a.channel_axis} and {b.channel_axis}.")
    if not _same(a.channel_energy, b.channel_energy):
        raise ValueError("The two statistics have different channel energies.")
    if (a.clip_weight, a.floor, a.coherence) != (b.clip_weight, b.floor, b.coherence):
        raise ValueError("The two statistics say different things about the readers of the tensor.")
    merged = TensorStatistics(
        count=a.count + b.count,
        nan=a.nan + b.nan,
        pos_inf=a.pos_inf + b.pos_inf,
        neg_inf=a.neg_inf + b.neg_inf,
        zeros=a.zeros + b.zeros,
        minimum=min(a.minimum, b.minimum),
        maximum=max(a.maximum, b.maximum),
        sample_ranges=a.sample_ranges + b.sample_ranges,
        sample_min_sum=a.sample_min_sum + b.sample_min_sum,
        sample_max_sum=a.sample_max_sum + b.sample_max_sum,
        channel_axis=a.channel_axis,
        channel_absmax=_larger(a.channel_absmax, b.channel_absmax),
        channel_energy=a.channel_energy,
        clip_weight=a.clip_weight,
        floor=a.floor,
        coherence=a.coherence,
    )
    if a.histogram is not None and b.histogram is not None and a.exponent is not None and b.exponent is not None:
        merged.exponent = max(a.exponent, b.exponent)
        merged.histogram = _widened(a.histogram, merged.exponent - a.exponent) + _widened(
            b.histogram, merged.exponent - b.exponent
        )
    return merged


def _counts(array: npt.NDArray[Any], parts: int, num_threads: int | None) -> TensorStatistics:
    """Counts and extremes of an array, and those of its samples, in one pass where samples are long."""
    if parts > 1 and array.size // parts >= _LONG_SAMPLE:
        length = array.shape[0] // parts
        total = TensorStatistics()
        for start in range(0, array.shape[0], length):
            total = merge(total, _counts(array[start : start + length], 1, num_threads))
        return total
    seen = kernels.min_max(array, num_threads=num_threads)
    if parts == 1:
        return _of_one_sample(seen)
    total = TensorStatistics(seen.count, seen.nan, seen.pos_inf, seen.neg_inf, seen.zeros, seen.min, seen.max)
    if not seen.finite:
        return total
    samples = array.reshape(parts, -1)
    if seen.finite == seen.count:
        lows, highs = samples.min(axis=1), samples.max(axis=1)
    else:
        kept = np.isfinite(samples)
        some = kept.any(axis=1)
        samples, kept = samples[some].astype(np.float32), kept[some]
        lows, highs = np.where(kept, samples, inf).min(axis=1), np.where(kept, samples, -inf).max(axis=1)
    total.sample_ranges = len(lows)
    total.sample_min_sum = sum(map(_fixed_point, lows.tolist()))
    total.sample_max_sum = sum(map(_fixed_point, highs.tolist()))
    return total


def _of_one_sample(seen: kernels.MinMax) -> TensorStatistics:
    """Counts and extremes of a sample."""
    one = TensorStatistics(seen.count, seen.nan, seen.pos_inf, seen.neg_inf, seen.zeros, seen.min, seen.max)
    if seen.finite:
        one.sample_ranges = 1
        one.sample_min_sum, one.sample_max_sum = _fixed_point(seen.min), _fixed_point(seen.max)
    return one


def _fixed_point(value: float) -> int:
    """A finite float32 in units of 2^-149, exactly."""
    return int(ldexp(value, FIXED_POINT_BITS))


def _channel_absmax(
    array: npt.NDArray[Any], axis: int, *, finite: bool, threads: int | None
) -> npt.NDArray[np.float32]:
    if not finite:
        array = np.where(np.isfinite(array), array, array.dtype.type(0))
    return kernels.absmax(array, axis, num_threads=threads)


def _larger(a: npt.NDArray[np.float32] | None, b: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32] | None:
    if a is None or b is None:
        return b if a is None else a
    if a.shape != b.shape:
        raise ValueError(f"The number of channels is {len(a)} in one array and {len(b)} in another.")
    return np.maximum(a, b)


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray) and a == b


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
