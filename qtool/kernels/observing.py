"""Counts, range, histogram and channel maxima of arrays, each in one pass over its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.elementwise import MinMax

_FLOAT32 = np.dtype(np.float32)
_IN_ONE_PIECE = 0x101  # NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED
_LEAST_EXPONENT = -126  # of a histogram that is widened: below, numbers are subnormal


class Observation(NamedTuple):
    """What is to be observed of an array.

    Attributes:
        x: float32, contiguous, any shape.
        axis: Of ``absmax``, negative from the back; None if it is not wanted.
        exponent: Of the histogram so far, -126 or more.
        out: The histogram, int64, shape ``(2 * 2^bits,)``, added to in place. If a value lies outside its range, its
            neighbouring bins are joined until it has room, which changes ``exponent``. None if it is not wanted.
        parts: How many equal parts along the first axis have ranges of their own.
        blocked: x holds this many channels in blocks, its shape being ``(parts, ceil(blocked / b), .., b)``: what fills
            the last block up is not looked at. ``axis`` has no meaning then, and ``absmax`` is that of the channels.
    """

    x: NDArray[np.float32]
    axis: int | None
    exponent: int
    out: NDArray[np.int64] | None
    parts: int = 1
    blocked: int | None = None


class Observed(NamedTuple):
    """What one pass tells.

    Attributes:
        size: Elements.
        nan: NaNs among them.
        pos_inf: Positive infinities.
        neg_inf: Negative infinities.
        zeros: Exact zeros of either sign.
        ranges: (least, greatest) finite value of each part, (inf, -inf) if it has none.
        exponent: Of the histogram, after it was widened.
        absmax: float32, shape (x.shape[axis],), as ``absmax`` has it; None if it was not asked for, or if NaN or Inf is
            among the values.
    """

    size: int
    nan: int
    pos_inf: int
    neg_inf: int
    zeros: int
    ranges: list[tuple[float, float]]
    exponent: int
    absmax: NDArray[np.float32] | None

    @property
    def values(self) -> MinMax:
        """Counts and range of all parts, as ``min_max`` has them."""
        least, greatest = min(low for low, _ in self.ranges), max(high for _, high in self.ranges)
        return MinMax(self.size, self.nan, self.pos_inf, self.neg_inf, self.zeros, least, greatest)


def observable(x: npt.NDArray[Any]) -> bool:
    """Whether :func:`observe` takes an array: float32 in one piece."""
    return x.dtype == _FLOAT32 and x.flags.num & _IN_ONE_PIECE == _IN_ONE_PIECE


def observe(
    x: NDArray[np.float32], axis: int | None, exponent: int, bits: int, out: NDArray[np.int64] | None
) -> Observed:
    """``min_max``, ``absmax`` and ``histogram`` together, on one thread; see :class:`Observation`.

    Args:
        x: float32, contiguous, any shape.
        axis: Of ``absmax``.
        exponent: Of the histogram so far.
        bits: Logarithm of the number of bins per side, 1 to 16.
        out: The histogram.

    Raises:
        KernelError: If an argument is none of that.
    """
    return observe_all([Observation(x, axis, exponent, out)], bits)[0]


def observe_all(observations: Sequence[Observation], bits: int) -> list[Observed]:
    """:func:`observe` for arrays one after the other, and without the GIL from the first to the last.

    Args:
        observations: Arrays, with a histogram of its own for each.
        bits: Logarithm of the number of bins per side of all histograms, 1 to 16.

    Raises:
        KernelError: If an argument is none of that.
    """
    if not observations:
        return []
    tasks = [_task(one, bits) for one in observations]
    results = []
    for task, (nan, pos_inf, neg_inf, zeros, ranges, exponent) in zip(tasks, _core.observe(tasks, bits), strict=True):
        x, _, n, _, group, best, _, _ = task
        size = x.size if group == 1 else x.size // (-(-n // group) * group) * n
        finite = not (nan or pos_inf or neg_inf)
        absmax = None if best is None or not finite else best.view(_FLOAT32)
        results.append(Observed(size, nan, pos_inf, neg_inf, zeros, ranges, exponent, absmax))
    return results


_Task = tuple[NDArray[np.float32], int, int, int, int, "NDArray[np.int32] | None", "NDArray[np.int64] | None", int]


def _task(one: Observation, bits: int) -> _Task:
    """What the core takes.

    Raises:
        KernelError: See :func:`observe_all`.
    """
    x, axis, exponent, out, parts, blocked = one
    if not observable(x):
        raise KernelError(f"x is {x.dtype}{list(x.shape)}; expected contiguous float32.")
    if not (_LEAST_EXPONENT <= exponent <= 128 and 1 <= bits <= 16):
        raise KernelError(f"exponent is {exponent} and bits is {bits}; expected -126 to 128, and 1 to 16.")
    if out is not None and (
        out.dtype != np.int64 or out.shape != (2 << bits,) or not out.flags.c_contiguous or not out.flags.writeable
    ):
        raise KernelError(f"out is {out.dtype}{list(out.shape)}; expected writable, contiguous int64{[2 << bits]}.")
    if parts < 1 or (parts > 1 and (x.ndim == 0 or x.shape[0] % parts)):
        raise KernelError(f"x has the shape {list(x.shape)}; expected {parts} equal parts along its first axis.")
    n = inner = group = 1
    best = None
    if blocked is not None:
        group = x.shape[-1] if x.ndim >= 3 else 0
        if x.ndim < 3 or x.shape[0] != parts or group < 2 or x.shape[1] != -(-blocked // group):
            raise KernelError(
                f"x has the shape {list(x.shape)}; expected {parts} parts of {blocked} channels in blocks."
            )
        n, inner = blocked, math.prod(x.shape[2:-1])
        best = np.zeros(n, np.int32)
    elif axis is not None:
        if not -x.ndim <= axis < x.ndim:
            raise KernelError(f"axis is {axis}; expected an axis of an array of rank {x.ndim}.")
        axis %= x.ndim
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        best = np.zeros(n, np.int32)
    return x.reshape(-1), parts, n, inner, group, best, out, exponent
