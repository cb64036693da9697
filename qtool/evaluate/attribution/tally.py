"""The running sums of one unit: its parts, and what its inputs look like beside their ranges.

Everything here runs on one thread: several units are worked on at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qtool import kernels
from qtool.calibrate.statistics import TensorStatistics
from qtool.evaluate.attribution.energy import difference_energy, energy
from qtool.evaluate.attribution.graph import Array
from qtool.evaluate.attribution.operator import Operator
from qtool.evaluate.attribution.report import HISTOGRAM_BINS, InputHistogram
from qtool.evaluate.attribution.saturation import Indices
from qtool.evaluate.attribution.units import Codes, Operand, Unit
from qtool.evaluate.attribution.walk import Arrays

PARTS = ("own", "weight", "clip", "round", "inherited", "total")


def read(array: Array, params: Codes | None) -> Array:
    """A value of the quantized model as floats."""
    if params is None or array.dtype.kind == "f":
        return array
    return kernels.dequantize(array, params.scale, params.zero, num_threads=1)


@dataclass
class InputTally:
    """One quantized activation: what its float values are, and what its codes make of them."""

    operand: Operand
    statistics: TensorStatistics = field(default_factory=lambda: TensorStatistics.empty(histogram=True))
    outside: int = 0
    lost: float = 0.0  # energy of what is cut beside that of the values
    used: Array | None = None

    def update(self, x: Array) -> tuple[Array, Array | None]:
        """Count a batch of float values.

        Returns:
            Q(x), and c(x): x without what lies more than half a step outside the range; None where that is all of x.
        """
        self.statistics.update(x, num_threads=1)
        params = self.operand.params
        if params is None:  # the running model chooses the range of what it gets: nothing is outside
            codes, scale, zero = kernels.dynamic_quantize_linear(np.ascontiguousarray(x, np.float32), num_threads=1)
            self._count(codes, 0, 256)
            return kernels.dequantize(codes, scale, zero, num_threads=1).astype(x.dtype, copy=False), None
        low, high = params.bounds
        scale = params.scale.astype(x.dtype)
        codes = kernels.quantize(x, scale, params.zero, num_threads=1)
        self._count(codes, low, high - low + 1)
        half = float(params.scale) / 2
        bottom, top = params.low - half, params.high + half
        clamped = None
        if self.statistics.minimum < bottom or self.statistics.maximum > top:
            clamped = np.clip(x, np.float32(bottom), np.float32(top)).astype(x.dtype, copy=False)
            outside = int(np.count_nonzero(clamped != x)) - int(np.count_nonzero(np.isnan(x)))
            self.outside += outside
            self.lost += difference_energy(clamped, x) / (energy(x) or 1.0)
            clamped = clamped if outside else None
        return kernels.dequantize(codes, scale, params.zero, num_threads=1), clamped

    def _count(self, codes: Array, low: int, number: int) -> None:
        if self.used is None:
            self.used = np.zeros(number, bool)
        if self.used.all():
            return
        if codes.dtype.itemsize == 1:
            seen = np.bincount(codes.reshape(-1).view(np.uint8), minlength=256)[:256] > 0
            if low < 0:
                seen = np.roll(seen, -low)
            self.used |= seen[:number]
        else:
            self.used[codes.reshape(-1).astype(np.int64) - low] = True

    @property
    def clipped(self) -> float:
        """Share of the finite values more than half a step outside the range."""
        return self.outside / self.statistics.finite if self.statistics.finite else 0.0

    def report(self) -> InputHistogram:
        """As plain data."""
        low, high, counts = coarse(self.statistics, HISTOGRAM_BINS)
        params = self.operand.params
        return InputHistogram(
            tensor=self.operand.tensor,
            low=low,
            high=high,
            counts=counts,
            range_low=None if params is None else params.low,
            range_high=None if params is None else params.high,
            scale=None if params is None else float(params.scale),
            clipped=self.clipped,
            used=0 if self.used is None else int(np.count_nonzero(self.used)),
            codes=0 if self.used is None else len(self.used),
        )


def coarse(statistics: TensorStatistics, bins: int) -> tuple[float, float, tuple[int, ...]]:
    """A histogram of at most ``bins`` bins of equal width over what was seen: (low, high, counts)."""
    assert statistics.histogram is not None, "Bug: statistics without a histogram"
    filled = np.flatnonzero(statistics.histogram)
    half, width = len(statistics.histogram) // 2, statistics.bin_width
    if not len(filled):
        return 0.0, 1.0, (0,)
    first, last = int(filled[0]), int(filled[-1])
    group = -(-(last + 1 - first) // bins)
    number = -(-(last + 1 - first) // group)
    padded = np.zeros(group * number, np.int64)
    padded[: last + 1 - first] = statistics.histogram[first : last + 1]
    counts = padded.reshape(number, group).sum(axis=1)
    low = (first - half) * width
    return low, low + group * number * width, tuple(int(n) for n in counts)


class UnitTally:
    """Sums of one unit over batches.

    Args:
        unit: The unit.
        operator: Its operator.
        inputs: Tallies of the quantized activations by :func:`input_key`, shared between units.
    """

    def __init__(self, unit: Unit, operator: Operator) -> None:
        self.unit = unit
        self.operator = operator
        self.signal = 0.0
        self.energies = dict.fromkeys(PARTS, 0.0)
        self.elements = 0
        self.saturable: tuple[Indices, ...] | None = None  # columns of its products; not known yet
        self.saturated = 0
        self.saturation = 0.0  # energy of what it changes; not part of the own noise
        self.inputs = [InputTally(o) for o in unit.operands if o.params is not None or o.dynamic]
        self.output = InputTally(Operand(unit.output, unit.source, "", unit.params)) if unit.owns_output else None

    def update(self, arrays: Arrays, feeds: Mapping[str, Array], *, wanted: bool) -> Array | None:
        """Add a batch.

        Args:
            arrays: What the two models have.
            feeds: What they were fed.
            wanted: Whether the error is wanted.

        Returns:
            The error that is the unit's own, if it is wanted; None if shapes do not fit.
        """
        unit, operator = self.unit, self.operator
        exact = {o.tensor: arrays.expected[o.tensor] for o in unit.operands}
        y = arrays.expected[unit.output]
        found = read(arrays.found[unit.source], unit.params)
        if found.shape != y.shape:
            return None
        rounded, clamped = dict(exact), dict(exact)
        clips = False
        for tally in self.inputs:
            name = tally.operand.tensor
            rounded[name], inside = tally.update(exact[name])
            clamped[name] = exact[name] if inside is None else inside
            clips |= inside is not None
        self.signal += energy(y)
        self.elements += y.size
        # arrays are dropped as soon as they are added up: for large activations they are what memory goes to
        self._add("total", found, y)
        del found
        self._add("inherited", operator.exact(self._quantized(arrays), feeds), y)
        weighted = operator.stored(exact, feeds) if operator.has_own_weights else y
        if weighted.shape != y.shape:
            return None
        self._add("weight", weighted, y)
        within = operator.stored(clamped, feeds) if clips else weighted
        del clamped
        own = operator.stored(rounded, feeds) if self.inputs else within
        del rounded
        if self.output is not None:
            params = unit.params
            assert params is not None, "Bug: an output without codes"
            # what the output's own range does is the unit's, too: no other unit reads these codes
            self.output.update(y)
            half = float(params.scale) / 2
            within = np.clip(within, np.float32(params.low - half), np.float32(params.high + half))
            codes = kernels.quantize(own, params.scale, params.zero, num_threads=1)
            own = kernels.dequantize(codes, params.scale, params.zero, num_threads=1)
        self._add("clip", within, weighted)
        del weighted
        self._add("round", own, within)
        del within
        self._add("own", own, y)
        return own - y if wanted else own

    def _add(self, part: str, a: Array, b: Array) -> None:
        if a is not b:
            self.energies[part] += difference_energy(a, b)

    def _quantized(self, arrays: Arrays) -> dict[str, Array]:
        return {o.tensor: read(arrays.found[o.source], o.params) for o in self.unit.operands}

    def add_saturation(self, count: int, changed: float) -> None:
        """Add the pairs of a batch that saturate, and the energy of what that changes."""
        self.saturated += count
        self.saturation += changed

    @property
    def saturation_dominates(self) -> bool:
        """Whether it is more than all other noise of the unit."""
        return self.saturation > self.energies["own"]

    def noise_to_signal(self, *, saturation: bool) -> float:
        """Own noise beside the output, with or without that of saturation; NaN counts as infinite."""
        own = self.energies["own"] + (self.saturation if saturation else 0.0)
        if math.isnan(own):
            return math.inf
        return own / self.signal if self.signal else (math.inf if own else 0.0)
