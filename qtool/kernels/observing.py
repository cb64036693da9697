"""Counts, range, histogram and channel maxima of an array in one pass over its memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.elementwise import MinMax

_LEAST_EXPONENT = -126  # of a histogram that is widened: below, numbers are subnormal


class Observed(NamedTuple):
    """What one pass tells.

    Attributes:
        values: Counts and range, as ``min_max`` has them.
        exponent: Of the histogram, after it was widened.
        absmax: float32, shape (x.shape[axis],), as ``absmax`` has it; None if no axis was given, or if NaN or Inf is
            among the values.
    """

    values: MinMax
    exponent: int
    absmax: NDArray[np.float32] | None


def observable(x: npt.NDArray[Any]) -> bool:
    """Whether :func:`observe` takes an array: float32 in one piece."""
    return x.dtype == np.float32 and x.flags.c_contiguous and x.flags.aligned


def observe(
    x: NDArray[np.float32], axis: int | None, exponent: int, bits: int, out: NDArray[np.int64] | None
) -> Observed:
    """``min_max``, ``absmax`` and ``histogram`` together, on one thread.

    Args:
        x: float32, contiguous, any shape.
        axis: Of ``absmax``, negative from the back; None if it is not wanted.
        exponent: Of the histogram so far, -126 or more.
        bits: Logarithm of the number of bins per side, 1 to 16.
        out: The histogram, int64, shape ``(2 * 2^bits,)``, added to in place. If a value lies outside its range, its
            neighbouring bins are joined until it has room, which changes ``exponent``. None if it is not wanted.

    Raises:
        KernelError: If an argument is none of that.
    """
    _require(x, exponent, bits, out)
    n = inner = 1
    best = None
    if axis is not None:
        if not -x.ndim <= axis < x.ndim:
            raise KernelError(f"axis is {axis}; expected an axis of an array of rank {x.ndim}.")
        axis %= x.ndim
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        best = np.zeros(n, np.int32)
    return _observed(x, n, inner, 1, best, exponent, bits, out)


def observe_blocks(x: NDArray[np.float32], exponent: int, bits: int, out: NDArray[np.int64] | None) -> Observed:
    """:func:`observe` for channels that lie in blocks, the last axis going through those of a block.

    Args:
        x: float32, contiguous, shape ``(channels / b, .., b)`` with blocks of b channels.
        exponent: As :func:`observe` has it.
        bits: The same.
        out: The same.

    Returns:
        The maxima of all channels among it, shape ``(channels,)``.

    Raises:
        KernelError: If an argument is none of that.
    """
    _require(x, exponent, bits, out)
    if x.ndim < 2:
        raise KernelError(f"x is float32{list(x.shape)}; expected blocks of channels, two axes or more.")
    n = x.shape[0] * x.shape[-1]
    return _observed(x, n, math.prod(x.shape[1:-1]), x.shape[-1], np.zeros(n, np.int32), exponent, bits, out)


def _require(x: npt.NDArray[Any], exponent: int, bits: int, out: npt.NDArray[Any] | None) -> None:
    if not observable(x):
        raise KernelError(f"x is {x.dtype}{list(x.shape)}; expected contiguous float32.")
    if not (_LEAST_EXPONENT <= exponent <= 128 and 1 <= bits <= 16):
        raise KernelError(f"exponent is {exponent} and bits is {bits}; expected -126 to 128, and 1 to 16.")
    if out is not None and (
        out.dtype != np.int64 or out.shape != (2 << bits,) or not out.flags.c_contiguous or not out.flags.writeable
    ):
        raise KernelError(f"out is {out.dtype}{list(out.shape)}; expected writable, contiguous int64{[2 << bits]}.")


def _observed(
    x: NDArray[np.float32],
    n: int,
    inner: int,
    group: int,
    best: NDArray[np.int32] | None,
    exponent: int,
    bits: int,
    out: NDArray[np.int64] | None,
) -> Observed:
    *counts, least, most, exponent = _core.observe(x.reshape(-1), n, inner, group, best, out, exponent, bits)
    nan, pos_inf, neg_inf, zeros = counts
    finite = not (nan or pos_inf or neg_inf)
    return Observed(
        MinMax(x.size, nan, pos_inf, neg_inf, zeros, least + 0.0, most + 0.0),  # + 0.0: a zero has no sign
        exponent,
        None if best is None or not finite else best.view(np.float32),
    )
