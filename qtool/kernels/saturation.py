"""Products as a processor without VNNI computes them: pairs of products along K saturate to int16.

``vpmaddubsw`` multiplies unsigned by signed bytes and adds neighbours in 16 bits, which overflow where
``a0*b0 + a1*b1`` leaves int16. Runtimes use it on AVX2, and on AVX-512 without VNNI, for uint8 activations and int8
weights; other signs they compute exactly. These functions say what that does to a product; nothing else in qtool
computes so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.threads import effective_num_threads

Array = npt.NDArray[Any]

_MACS_PER_NS = 40  # of one core with AVX2; the portable row is slower, and its threads pay sooner


def matmul_saturating(
    a: Array, b: Array, *, counts: NDArray[np.int64] | None = None, num_threads: int | None = None
) -> NDArray[np.int32]:
    """``sum_i saturate16(a[2i]*b[2i] + a[2i+1]*b[2i+1])`` modulo 2^32.

    Args:
        a: (M, K), uint8, any strides.
        b: (K, N), int8, any strides. The last pair of an odd K has a zero.
        counts: (N,), int64: the numbers of :func:`count_saturating_pairs` are added to it, if given.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.

    Returns:
        (M, N), int32.

    Raises:
        KernelError: If types or shapes do not fit.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    left, right = _operands(a, b)
    if counts is not None and (counts.shape != (b.shape[1],) or counts.dtype != np.int64):
        raise KernelError(f"'counts' is {counts.dtype} {counts.shape}; expected int64 ({b.shape[1]},).")
    out = np.empty((a.shape[0], b.shape[1]), np.int32)
    found = None if counts is None else np.empty(counts.shape, np.int64)
    _core.saturating(left, right, out, found, _threads(num_threads, left, right))
    if counts is not None and found is not None:
        counts += found
    return out


def count_saturating_pairs(a: Array, b: Array, *, num_threads: int | None = None) -> NDArray[np.int64]:
    """How many pairs of :func:`matmul_saturating` leave int16, for each column of ``b``.

    Args:
        a: (M, K), uint8, any strides.
        b: (K, N), int8, any strides.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.

    Returns:
        (N,), int64; at most ``M * ceil(K / 2)`` each.

    Raises:
        KernelError: If types or shapes do not fit.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    left, right = _operands(a, b)
    counts = np.empty(b.shape[1], np.int64)
    _core.saturating(left, right, None, counts, _threads(num_threads, left, right))
    return counts


def _operands(a: Array, b: Array) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Both as contiguous bytes."""
    for name, value, dtype in (("a", a, np.uint8), ("b", b, np.int8)):
        if value.dtype != dtype:
            raise KernelError(
                f"'{name}' has type {value.dtype}; expected {np.dtype(dtype)}.",
                hint="Only products of uint8 and int8 saturate; other signs are computed exactly everywhere.",
            )
        if value.ndim != 2:
            raise KernelError(f"'{name}' has shape {value.shape}; expected 2 axes.")
    if a.shape[1] != b.shape[0]:
        raise KernelError(f"a of shape {a.shape} and b of shape {b.shape} do not multiply (numpy.matmul rules).")
    return np.ascontiguousarray(a), np.ascontiguousarray(b).view(np.uint8)


def _threads(num_threads: int | None, a: Array, b: Array) -> int:
    return effective_num_threads(num_threads, a.shape[0] * b.size // _MACS_PER_NS)
