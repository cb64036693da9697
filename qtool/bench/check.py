"""Randomised exactness: each kernel against :mod:`qtool.reference`, on every instruction set and thread count.

A draw makes random operands (shapes around tile edges, types, zero points, granularities, strides, extremes), has the
reference compute them once, and returns a call of the kernel. To add a kernel, write a draw and a row in ``DRAWS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qtool import kernels, reference
from qtool.bench.cases.case import allowed_isas, capped
from qtool.dtypes import QDTYPES

Array = npt.NDArray[Any]
Rng = np.random.Generator
Call = Callable[[int], Any]
Draw = Callable[[Rng], tuple[Any, Call]]

EDGES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 129)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, 0.5, 1.5, -2.5], np.float32)
TARGETS = tuple(t for t in QDTYPES.values() if t.kind != "exponent")


@dataclass(frozen=True)
class Outcome:
    """What came of one kernel.

    Attributes:
        kernel: Its name.
        comparisons: Outputs compared.
        wrong: Those that differ somewhere.
        first: The first that did: seed of the draw, instruction set and threads; None without one.
    """

    kernel: str
    comparisons: int
    wrong: int
    first: str | None


def thread_counts(seed: int) -> tuple[int, ...]:
    """1 and 2; in every eighth draw also 3, which share out unevenly, and take turns on two processors."""
    return (1, 2) if seed % 8 else (1, 2, 3)


def check(kernel: str, comparisons: int, *, seed: int = 0) -> Outcome:
    """Compare one kernel with its reference.

    Args:
        kernel: A key of ``DRAWS``.
        comparisons: How many at least; a draw is compared on every instruction set and thread count.
        seed: Of the first draw; the next ones count up.
    """
    isas = allowed_isas()
    done = wrong = 0
    first = None
    while done < comparisons:
        expected, call = DRAWS[kernel](np.random.default_rng(seed))
        for isa in isas:
            with capped(isa):
                for threads in thread_counts(seed):
                    done += 1
                    if not same(call(threads), expected):
                        wrong += 1
                        first = first or f"seed {seed}, {isa}, {threads} threads"
        seed += 1
    return Outcome(kernel, done, wrong, first)


def same(found: Any, expected: Any) -> bool:
    """Same types, shapes and bits; of NaNs in float results, only that they are NaNs. Tuples part by part."""
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(same(f, e) for f, e in zip(found, expected, strict=True))
    a, b = np.asarray(found), np.asarray(expected)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    differs = _bits(a) != _bits(b)
    if not differs.any():
        return True
    if a.dtype.kind not in "fV":
        return False
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return not (differs & ~nan).any()


def _bits(a: Array) -> Array:
    return np.ascontiguousarray(a).view(np.dtype(f"u{a.dtype.itemsize}")).reshape(a.shape)


def _codes(rng: Rng, kind: Any, shape: tuple[int, ...]) -> Array:
    """All codes of an 8-bit type, sometimes its extremes alone, sometimes in another order in memory."""
    bounds = np.iinfo(kind)
    if rng.random() < 0.2:
        values = rng.choice(np.array([bounds.min, bounds.max], kind), shape)
    else:
        values = rng.integers(bounds.min, bounds.max, shape, kind, endpoint=True)
    if len(shape) >= 2 and rng.random() < 0.3:
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    return values


def _byte(rng: Rng) -> Any:
    return np.uint8 if rng.random() < 0.5 else np.int8


def _sizes(rng: Rng, count: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.choice(EDGES, count))


def _factors(rng: Rng, shape: tuple[int, ...]) -> Array:
    return (10.0 ** rng.uniform(-4, 0, shape)).astype(np.float32)


def _operands(rng: Rng) -> tuple[Array, Array, tuple[int, ...], tuple[int, ...]]:
    """A, B, and the shapes of their parameters: per tensor, per row of A, per column of B."""
    m, n, k = _sizes(rng, 3)
    if rng.random() < 0.1:
        k = int(rng.integers(130, 3000))
    batch = (int(rng.integers(1, 4)),) if rng.random() < 0.15 else ()
    a = _codes(rng, _byte(rng), (*batch, m, k))
    b = _codes(rng, _byte(rng), (*(batch if rng.random() < 0.5 else ()), k, n))
    return a, b, (m,) if rng.random() < 0.3 else (), (n,) if rng.random() < 0.5 else ()


def _matmul_integer(rng: Rng, *, packed: bool = False) -> tuple[Any, Call]:
    a, b, rows, columns = _operands(rng)
    b = b if not packed or b.ndim == 2 else b[0]
    zeros = (_codes(rng, a.dtype, rows), _codes(rng, b.dtype, columns))
    expected = reference.matmul_integer(a, b, *zeros)
    return expected, lambda t: kernels.matmul_integer(a, kernels.pack_b(b) if packed else b, *zeros, num_threads=t)


def _qlinear_matmul(rng: Rng, *, packed: bool = False) -> tuple[Any, Call]:
    a, b, rows, columns = _operands(rng)
    b = b if not packed or b.ndim == 2 else b[0]
    left = (a, _factors(rng, rows), _codes(rng, a.dtype, rows))
    right = (_factors(rng, columns), _codes(rng, b.dtype, columns))
    y = (_factors(rng, ()) * np.float32(100), _codes(rng, _byte(rng), ()))
    form: Any = "literal" if rng.random() < 0.2 else "multiplier"
    expected = reference.qlinear_matmul(*left, b, *right, *y, form=form)

    def call(threads: int) -> Array:
        second: Any = kernels.pack_b(b) if packed else b
        return kernels.qlinear_matmul(*left, second, *right, *y, form=form, num_threads=threads)

    return expected, call


def _conv(rng: Rng) -> tuple[Array, Array, dict[str, Any]]:
    rank = 1 if rng.random() < 0.2 else 2
    group, inputs, outputs = (int(n) for n in rng.integers(1, (4, 6, 9)))
    if rng.random() < 0.3:
        inputs, outputs, group = 1, int(rng.integers(1, 3)), int(rng.integers(2, 20))  # depthwise
    size = tuple(int(n) for n in rng.integers(5, 15, rank))
    kernel = tuple(int(n) for n in rng.integers(1, 4, rank))
    attributes: dict[str, Any] = {
        "group": group,
        "pads": [int(n) for n in rng.integers(0, 2, 2 * rank)],
        "strides": [int(n) for n in rng.integers(1, 3, rank)],
        "dilations": [int(n) for n in rng.integers(1, 3, rank)],
    }
    x = _codes(rng, _byte(rng), (int(rng.integers(1, 3)), inputs * group, *size))
    return x, _codes(rng, _byte(rng), (outputs * group, inputs, *kernel)), attributes


def _conv_integer(rng: Rng, *, packed: bool = False) -> tuple[Any, Call]:
    x, w, attributes = _conv(rng)
    zeros = (_codes(rng, x.dtype, ()), _codes(rng, w.dtype, (len(w),) if rng.random() < 0.5 else ()))
    expected = reference.conv_integer(x, w, *zeros, **attributes)

    def call(threads: int) -> Array:
        weights: Any = kernels.pack_conv_weights(w, attributes["group"]) if packed else w
        return kernels.conv_integer(x, weights, *zeros, num_threads=threads, **attributes)

    return expected, call


def _qlinear_conv(rng: Rng, *, packed: bool = False) -> tuple[Any, Call]:
    x, w, attributes = _conv(rng)
    channels = (len(w),) if rng.random() < 0.6 else ()
    bias = rng.integers(-(2**20), 2**20, len(w), np.int32) if rng.random() < 0.6 else None
    arguments = (
        *(x, _factors(rng, ()), _codes(rng, x.dtype, ())),
        *(w, _factors(rng, channels), _codes(rng, w.dtype, channels)),
        *(_factors(rng, ()) * np.float32(10), _codes(rng, _byte(rng), ())),
    )
    expected = reference.qlinear_conv(*arguments, bias, **attributes)

    def call(threads: int) -> Array:
        weights: Any = kernels.pack_conv_weights(w, attributes["group"]) if packed else w
        return kernels.qlinear_conv(*arguments[:3], weights, *arguments[4:], bias, num_threads=threads, **attributes)

    return expected, call


def _values(rng: Rng, shape: tuple[int, ...], kind: Any = np.float32) -> Array:
    """Floats with ties, specials and values far outside every range."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)
    values = np.where(rng.random(shape) < 0.3, np.rint(values * 2) / 2, values)
    values = np.where(rng.random(shape) < 0.05, rng.choice(SPECIAL, shape), values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32).astype(kind)


def _float_type(rng: Rng) -> Any:
    kinds = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    return kinds[int(rng.choice(3, p=(0.6, 0.2, 0.2)))]


def _granularity(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Shape, shape of the scale, and the attributes that say so."""
    shape = _sizes(rng, int(rng.integers(1, 4)))
    shape = (*shape[:-1], int(rng.integers(1, 300))) if len(shape) == 1 else shape
    axis = int(rng.integers(0, len(shape)))
    which = rng.random()
    if which < 0.4:
        return shape, (), {"axis": axis}
    if which < 0.7:
        return shape, (shape[axis],), {"axis": axis}
    block = int(rng.choice([1, 2, 8, 16, 32, 33]))
    return (
        shape,
        tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape)),
        {"axis": axis, "block_size": block},
    )


def _target_codes(rng: Rng, target: Any, shape: tuple[int, ...]) -> Array:
    """Codes of an element type, in its storage type."""
    wide = np.asarray(rng.integers(0, 1 << target.bits, shape), np.uint16 if target.bits == 16 else np.uint8)
    return wide.view(target.numpy)


def _quantize(rng: Rng) -> tuple[Any, Call]:
    shape, scale_shape, how = _granularity(rng)
    target = TARGETS[int(rng.integers(len(TARGETS)))]
    x, scale = _values(rng, shape, _float_type(rng)), _factors(rng, scale_shape).astype(_float_type(rng))
    zero = None if rng.random() < 0.2 else _target_codes(rng, target, scale_shape)
    saturate, packed = bool(rng.random() < 0.8), bool(rng.random() < 0.3)
    options: dict[str, Any] = {**how, "output_dtype": target, "saturate": saturate, "packed": packed}
    expected = reference.quantize_linear(x, scale, zero, **options)
    return expected, lambda t: kernels.quantize(x, scale, zero, num_threads=t, **options)


def _dequantize(rng: Rng) -> tuple[Any, Call]:
    shape, scale_shape, how = _granularity(rng)
    target = TARGETS[int(rng.integers(len(TARGETS)))]
    x, scale = _target_codes(rng, target, shape), _factors(rng, scale_shape).astype(_float_type(rng))
    zero = None if rng.random() < 0.2 else _target_codes(rng, target, scale_shape)
    options: dict[str, Any] = {**how, "output_dtype": _float_type(rng)}
    expected = reference.dequantize_linear(x, scale, zero, **options)
    return expected, lambda t: kernels.dequantize(x, scale, zero, num_threads=t, **options)


def _pack(rng: Rng) -> tuple[Any, Call]:
    target = TARGETS[int(rng.integers(len(TARGETS)))]
    shape = (int(rng.integers(0, 2000)),)
    codes = _target_codes(rng, target, shape)
    raw = reference.pack(codes, target)

    def call(threads: int) -> tuple[Array, Array]:
        packed = kernels.pack(codes, target, num_threads=threads)
        return packed, kernels.unpack(packed, target, shape, num_threads=threads)

    return (raw, reference.unpack(raw, target, shape)), call


def _min_max(rng: Rng) -> tuple[Any, Call]:
    x = _values(rng, (int(rng.integers(0, 3000)),), _float_type(rng))
    expected = tuple(np.float64(n) for n in reference.min_max(x))
    return expected, lambda t: _numbers(kernels.min_max(x, num_threads=t))


def _numbers(found: kernels.MinMax) -> tuple[np.float64, ...]:
    numbers = (found.count, found.nan, found.pos_inf, found.neg_inf, found.zeros, found.min, found.max)
    return tuple(np.float64(n) for n in numbers)


def _absmax(rng: Rng) -> tuple[Any, Call]:
    shape = _sizes(rng, int(rng.integers(1, 4)))
    x = _values(rng, shape, _float_type(rng))
    axis = None if rng.random() < 0.3 else int(rng.integers(0, len(shape)))
    return reference.absmax(x, axis), lambda t: kernels.absmax(x, axis, num_threads=t)


def _abs_mean(rng: Rng) -> tuple[Any, Call]:
    shape = _sizes(rng, int(rng.integers(1, 4)))
    shape = (int(rng.integers(1000, 2100)), *shape[1:2]) if rng.random() < 0.1 else shape  # more than a block of rows
    x = _values(rng, shape, _float_type(rng))
    axis = int(rng.integers(0, len(shape)))
    return reference.abs_mean(x, axis), lambda t: kernels.abs_mean(x, axis, num_threads=t)


def _histogram(rng: Rng) -> tuple[Any, Call]:
    x = (rng.standard_normal(int(rng.integers(0, 3000))) * 10.0 ** rng.integers(-3, 4)).astype(_float_type(rng))
    largest = float(np.abs(x.astype(np.float64)).max(initial=1.0))
    exponent, bits = int(np.frexp(largest)[1]) + int(rng.integers(0, 3)), int(rng.integers(1, 13))
    expected = reference.power_of_two_histogram(x, exponent, bits)
    return expected, lambda t: kernels.histogram(x, exponent, bits, num_threads=t)


def _observe(rng: Rng, *, blocked: bool = False) -> tuple[Any, Call]:
    shape = _sizes(rng, 4 if blocked else int(rng.integers(1, 5)))
    shape = (1 + shape[0] % 3, max(1, shape[1]), *shape[2:]) if blocked else shape
    x = np.ascontiguousarray(_values(rng, shape))
    if rng.random() < 0.7:
        x = np.where(np.isfinite(x), x, np.float32(0))
    axis, bits = 1 if blocked else int(rng.integers(0, len(shape))), int(rng.integers(1, 13))
    fed, channels = (_in_blocks(x, int(rng.choice([2, 8, 16]))), x.shape[1]) if blocked else (x, None)
    parts = x.shape[0] if blocked else 1
    largest = float(np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0))
    before = int(rng.integers(-60, 20))
    exponent = max(before, int(np.frexp(largest)[1])) if largest else before
    maxima = reference.absmax(x, axis) if np.isfinite(x).all() else np.zeros(0, np.float32)
    counts = reference.power_of_two_histogram(x, exponent, bits)
    numbers = tuple(np.float64(n) for n in reference.min_max(x))

    def call(threads: int) -> tuple[Any, ...]:
        del threads  # those who count share the arrays out among themselves
        histogram = np.zeros(2 << bits, np.int64)
        todo = kernels.Observation(fed, axis, before, histogram, parts, channels)
        (seen,) = kernels.observe_all([todo], bits)
        found = np.zeros(0, np.float32) if seen.absmax is None else seen.absmax
        return _numbers(seen.values), found, histogram, np.int64(seen.exponent)

    return (numbers, maxima, counts, np.int64(exponent)), call


def _in_blocks(x: Array, block: int) -> Array:
    """x, (N, C, ..), as (N, ceil(C / block), .., block), filled up with NaN."""
    n, channels, *rest = x.shape
    filled = np.full((n, -(-channels // block) * block, *rest), np.nan, np.float32)
    filled[:, :channels] = x
    return np.ascontiguousarray(np.moveaxis(filled.reshape(n, -1, block, *rest), 2, -1))


def _dynamic_quantize(rng: Rng) -> tuple[Any, Call]:
    values = _values(rng, (int(rng.integers(0, 2000)),))
    x = np.where(np.isfinite(values), values, np.float32(0)).astype(np.float32)
    return reference.dynamic_quantize_linear(x), lambda t: kernels.dynamic_quantize_linear(x, num_threads=t)


DRAWS: dict[str, Draw] = {
    "matmul_integer": _matmul_integer,
    "matmul_integer, B packed": lambda rng: _matmul_integer(rng, packed=True),
    "qlinear_matmul": _qlinear_matmul,
    "qlinear_matmul, B packed": lambda rng: _qlinear_matmul(rng, packed=True),
    "conv_integer": _conv_integer,
    "conv_integer, weights packed": lambda rng: _conv_integer(rng, packed=True),
    "qlinear_conv": _qlinear_conv,
    "qlinear_conv, weights packed": lambda rng: _qlinear_conv(rng, packed=True),
    "dynamic_quantize_linear": _dynamic_quantize,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "pack, unpack": _pack,
    "min_max": _min_max,
    "absmax": _absmax,
    "abs_mean": _abs_mean,
    "histogram": _histogram,
    "observe": _observe,
    "observe, channels in blocks": lambda rng: _observe(rng, blocked=True),
}
