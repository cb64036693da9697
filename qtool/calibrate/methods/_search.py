"""The search for the range with the smallest squared error, which ``mse`` and ``auto`` share.

    E(lo, hi) = sum_b h_b * e_b,    e_b = (x_b - Q(x_b))^2 + w_b^2 / 12    where the step s is wider than the bin
                                    e_b = s^2 / 12                         where it is narrower

x_b is the middle of bin b, h_b its weight, w_b its width. The second form is the first one averaged over the bin: a
middle says nothing about steps finer than the bin. Clipped bins take the distance to the end of the range, times
``clip_weight``.

E is searched with an estimate of it that needs no pass over the bins: clipping by running sums of h, h x and h x^2,
rounding as s^2 / 12 of every value that is not rounded to zero, and x^2 of one that is. The estimate is only wrong for
data of few different values; so its best points are judged by E itself, beside the full range, which wins ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtool.calibrate.methods._bins import Bins, Floats, folded, folded_signs
from qtool.dtypes import QDType

_COARSE = 2.0 ** -np.arange(0.0, 12.1, 0.5)  # outliers lie orders of magnitude beyond the bulk
_FINER = tuple(2.0 ** (np.arange(-3.0, 3.1) * step) for step in (0.125, 0.03125))
_NEAR = tuple(2.0 ** (power / 64) for power in (-6, -4, -2, -1, 1, 2, 4, 6))


class RangeSearch:
    """The error of ranges of one tensor, and the range of the least.

    Args:
        bins: Filled bins without zeros; their counts are the weights h_b.
        low: Smallest value, at most 0.
        high: Largest value, at least 0, not both 0.
        dtype: An integer type.
        symmetric: Whether the zero point is fixed.
        clip_weight: By how much more the squared error of a clipped value counts.
        coherence: c of a further term, c * (sum_b h_b d_b)^2 / sum_b h_b with signed errors d_b: what the mean error
            costs where readers sum many values.
        zeros: Weight of exact zeros, which have no error, in that mean.
    """

    def __init__(
        self,
        bins: Bins,
        low: float,
        high: float,
        dtype: QDType,
        *,
        symmetric: bool,
        clip_weight: float = 1.0,
        coherence: float = 0.0,
        zeros: float = 0.0,
    ) -> None:
        self._observed = low, high
        self._coherence, self._zeros = coherence, zeros
        self._symmetric, self._clip_weight = symmetric, clip_weight
        if symmetric:
            self._bins, self._signs = folded(bins), folded_signs(bins)
            self._steps = (1 << (dtype.bits - 1)) - 1 if dtype.bits >= 8 else 1 << (dtype.bits - 1)
            self._low, self._high = 0.0, max(-low, high)
        else:
            self._bins, self._signs = bins, np.ones(len(bins.counts))
            self._steps = int(dtype.qmax - dtype.qmin)
            self._low, self._high = low, high
        order = np.argsort(self._bins.centers, kind="stable")
        self._x = self._bins.centers[order]
        weights, variances = self._bins.counts[order], self._bins.widths[order] ** 2 / 12
        powers = (weights, weights * self._x, weights * (self._x**2 + variances))
        self._sums = [np.concatenate([[0.0], np.cumsum(terms)]) for terms in powers]

    def best(self) -> tuple[float, float]:
        """The range of least error that was found."""
        lows, highs = self._axis(self._low, _COARSE), self._axis(self._high, _COARSE)
        low, high = self._estimated_best(lows, highs)
        for factors in _FINER:
            low, high = self._estimated_best(self._around(low, factors), self._around(high, factors))
        found = [(self._low, self._high), (low, high)]
        found += [(max(low * factor, self._low), min(high * factor, self._high)) for factor in _NEAR]
        low, high = found[int(np.argmin(self._errors(*np.asarray(found).T)))]
        if self._symmetric:
            return max(self._observed[0], -high), min(self._observed[1], high)
        return low, high

    def errors(self, ranges: Sequence[tuple[float, float]]) -> Floats:
        """E of some ranges, shape (ranges,)."""
        lows, highs = np.asarray(ranges, np.float64).T
        if self._symmetric:
            lows, highs = np.zeros(len(ranges)), np.maximum(-lows, highs)
        return self._errors(lows, highs)

    def _axis(self, end: float, factors: Floats) -> Floats:
        return end * factors if end else np.zeros(1)

    def _around(self, end: float, factors: Floats) -> Floats:
        """Ends near one, none of them beyond the data; only 0 near 0."""
        return np.unique(np.clip(end * factors, self._low, self._high))

    def _estimated_best(self, lows: Floats, highs: Floats) -> tuple[float, float]:
        grid_low, grid_high = (axis.ravel() for axis in np.meshgrid(lows, highs, indexing="ij"))
        best = int(np.argmin(self._estimates(grid_low, grid_high)))
        return float(grid_low[best]), float(grid_high[best])

    def _estimates(self, lows: Floats, highs: Floats) -> Floats:
        """Estimates of E of each candidate (lo, hi): shape (candidates,)."""
        scale = (highs - lows) / self._steps
        below, above = np.searchsorted(self._x, lows), np.searchsorted(self._x, highs, side="right")
        first, last = np.searchsorted(self._x, -scale / 2), np.searchsorted(self._x, scale / 2, side="right")
        number, total, squares = self._sums
        under = squares[below] - 2 * lows * total[below] + lows**2 * number[below]
        over = squares[-1] - squares[above] - 2 * highs * (total[-1] - total[above])
        over += highs**2 * (number[-1] - number[above])
        clipped = np.maximum(under, 0.0) + np.maximum(over, 0.0)
        to_zero = squares[last] - squares[first]
        rounded = number[above] - number[below] - (number[last] - number[first])
        return np.asarray(self._clip_weight * clipped + to_zero + np.maximum(rounded, 0.0) * scale**2 / 12)

    def _errors(self, lows: Floats, highs: Floats) -> Floats:
        """E of each candidate (lo, hi): shape (candidates,)."""
        scale = ((highs - lows) / self._steps)[:, np.newaxis]
        bottom = np.rint(lows[:, np.newaxis] / scale)  # code of lo, as seen from the zero point: zero is exact
        top = bottom + self._steps
        codes = self._bins.centers / scale
        rounded = np.clip(np.rint(codes), bottom, top)
        signed = (rounded - codes) * scale
        each = signed**2 + self._bins.widths**2 / 12
        inside = (codes >= bottom - 0.5) & (codes <= top + 0.5)
        each = np.where(inside, np.where(scale < self._bins.widths, scale**2 / 12, each), each * self._clip_weight)
        error = each @ self._bins.counts
        if self._coherence:
            # where a bin is wider than a step, its errors are of either sign
            signed = np.where(inside & (scale < self._bins.widths), 0.0, signed)
            total = signed @ (self._bins.counts * self._signs)
            error = error + self._coherence * total**2 / (float(self._bins.counts.sum()) + self._zeros)
        return np.asarray(error)
