"""The oracle: every kernel once more, short, slow and obvious, in NumPy.

Each function is one of the numbered equations of docs/quantization.md. Nothing here is fast, nothing here is clever.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool.dtypes import BFLOAT16, BY_STORAGE, FLOAT16, QDTYPES, FloatFormat, QDType
from qtool.errors import KernelError
from qtool.granularity import PerAxis, PerBlock, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[Any]

# -------------------------------------------------------------------------------------------------- element by element

_FLOAT32 = np.dtype(np.float32)
_HALVES: dict[np.dtype[Any], FloatFormat] = {np.dtype(np.float16): FLOAT16, np.dtype(ml_dtypes.bfloat16): BFLOAT16}


def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: QDType | None = None,
    saturate: bool = True,
    precision: npt.DTypeLike | None = None,
    packed: bool = False,
) -> Array:
    """Equation (1): y = saturate(rint(x / scale) + zero_point), or the small float nearest to x / scale + zero_point.

    x and the scale are first cast to the precision of the division: ``precision``, else the type of the scale (float32
    for an e8m0 scale, by which every division is exact but for underflow). A float target without a zero point keeps
    -0; with a zero point of +0 the sum is +0, as in ``test_quantizelinear_float4e2m1``.

    Args:
        x: Any shape; float32, float16, bfloat16 or int32.
        scale: Scalar, 1-D, or blocked (rank of x); float32, float16, bfloat16 or e8m0.
        zero_point: Shape of the scale, type of the result; None is zero.
        axis: Quantized axis.
        block_size: Elements per scale along the axis, 0 if not blocked.
        output_dtype: Result type; None is that of the zero point, else uint8.
        saturate: For float8, whether overflow becomes the largest value (else NaN or Inf).
        precision: Type of the division.
        packed: Whether the result is what :func:`pack` makes of the codes.

    Returns:
        Codes of shape x.shape in the storage type of the result; or their bytes, packed.
    """
    target = output_dtype or (BY_STORAGE[zero_point.dtype.name] if zero_point is not None else QDTYPES["uint8"])
    divide_in = np.dtype(precision) if precision is not None else _arithmetic_type(scale)
    if zero_point is not None:
        zero_point = _spread(zero_point, x.shape, axis, block_size)
    with np.errstate(all="ignore"):
        scale = _cast(_spread(scale, x.shape, axis, block_size), divide_in)
        # float16 and bfloat16 are divided in float32 and rounded once more. That is the correctly rounded quotient:
        # 24 >= 2p + 2 bits for p = 11 and p = 8, and a midpoint of their subnormal grids is farther than 2^-22
        # (relative) from any other quotient.
        quotient = _cast(x, divide_in) / scale
        if target.is_integer:
            z = np.float32(0) if zero_point is None else _values(zero_point)
            codes = np.clip(np.rint(quotient.astype(np.float64)) + z, target.qmin, target.qmax)
            codes = np.where(np.isnan(codes), target.qmin, codes).astype(np.int32)
            return pack(_as_storage(codes, target), target) if packed else _as_storage(codes, target)
        if zero_point is not None:
            quotient = quotient + _cast(_values(zero_point), divide_in)
        # A NaN has the sign of x, whatever sign the processor gives to 0/0.
        quotient = np.where(np.isnan(quotient), np.copysign(np.nan, x.astype(np.float64)), quotient.astype(np.float64))
    codes = _as_storage(_round_to(quotient, _format(target), saturate), target)
    return pack(codes, target) if packed else codes


def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: npt.DTypeLike | None = None,
) -> Array:
    """Equation (2): y = (x - zero_point) * scale, the scale cast to the output type and the product rounded once to it.

    The difference is a float32, exact for integers of up to 16 bits; an int32 x is rounded to float32.

    Args:
        x: Codes, any shape and element type, or int32 (without zero point).
        scale: Scalar, 1-D, or blocked; float32, float16, bfloat16 or e8m0.
        zero_point: Shape of the scale, type of x; None is zero.
        axis: Quantized axis.
        block_size: Elements per scale along the axis, 0 if not blocked.
        output_dtype: float32, float16 or bfloat16; None is the type of the scale.

    Returns:
        Values of shape x.shape.

    Raises:
        KernelError: If the scale is e8m0 and there is no ``output_dtype``.
    """
    if output_dtype is None and scale.dtype.name not in ("float32", "float16", "bfloat16"):
        raise KernelError(f"Scale is {scale.dtype.name}; expected output_dtype with it.")
    out = np.dtype(output_dtype if output_dtype is not None else scale.dtype)
    with np.errstate(all="ignore"):
        scale = _cast(_spread(scale, x.shape, axis, block_size), out)
        difference = _values(x)
        if zero_point is not None:
            difference = difference - _values(_spread(zero_point, x.shape, axis, block_size))
        if out == _FLOAT32:
            return np.asarray(difference * scale)
        return _cast(difference.astype(np.float64) * scale.astype(np.float64), out)  # exact, then rounded once


def pack(codes: Array, dtype: QDType) -> NDArray[np.uint8]:
    """``raw_data`` of codes: a stream of ``dtype.bits`` bits per element, low bits first, the last byte zero-filled."""
    raw = codes.ravel().view(np.uint16 if dtype.bits == 16 else np.uint8).astype(np.int64)
    bits = (raw[:, None] >> np.arange(dtype.bits)) & 1
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack(raw: NDArray[np.uint8], dtype: QDType, shape: tuple[int, ...]) -> Array:
    """Codes of ``shape`` from ``raw_data``; the inverse of ``pack``."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.unpackbits(raw, count=count * dtype.bits, bitorder="little").reshape(count, dtype.bits)
    return _as_storage(bits.astype(np.int64) @ (1 << np.arange(dtype.bits)), dtype).reshape(shape)


def to_e8m0(x: Array, *, rounding: Literal["up", "down", "nearest"] = "up", saturate: bool = True) -> Array:
    """Powers of two by the Cast document.

    0 and values below 2^-127 become 2^-127, Inf and values above 2^127 become 2^127; without saturation all of them
    become NaN. ``nearest`` rounds its ties (1.5 * 2^n) up.

    Args:
        x: Any shape, float32, not negative.
        rounding: Direction of rounding.
        saturate: Whether out-of-range values are clamped.

    Returns:
        float8_e8m0fnu, shape of x.

    Raises:
        KernelError: If a value is negative: the document leaves it unspecified.
    """
    if (x < 0).any():
        raise KernelError("Value below zero; expected none: e8m0 has no sign.")
    mantissa, exponent = np.frexp(x.astype(np.float64))  # mantissa in [0.5, 1)
    threshold = {"up": 0.5, "down": 1.0, "nearest": 0.75 - 2.0**-50}[rounding]
    codes = exponent - 1 + 127 + (mantissa > threshold)
    codes = np.where(x < 2.0**-127, 0 if saturate else 255, codes)
    codes = np.where(x > 2.0**127, 254 if saturate else 255, codes)
    return _as_storage(np.where(np.isnan(x), 255, codes), QDTYPES["float8e8m0"])


def min_max(x: Array) -> tuple[int, int, int, int, int, float, float]:
    """Count, NaNs, +Infs, -Infs, zeros, and the smallest and largest finite value (+Inf and -Inf if there is none)."""
    v = x.astype(np.float64)
    finite = v[np.isfinite(v)]
    low = float(finite.min()) + 0.0 if finite.size else np.inf  # + 0.0: a zero has no sign here
    high = float(finite.max()) + 0.0 if finite.size else -np.inf
    counts = [int(c.sum()) for c in (np.isnan(v), v == np.inf, v == -np.inf, v == 0)]
    return v.size, counts[0], counts[1], counts[2], counts[3], low, high


def power_of_two_histogram(x: Array, exponent: int, bits: int) -> NDArray[np.int64]:
    """Counts of floor(x / 2^(exponent - bits)) in 2 * 2^bits bins over [-2^exponent, 2^exponent); NaN and Inf left out.

    Raises:
        KernelError: If a finite value lies outside the range.
    """
    v = x.astype(np.float64).ravel()
    v = v[np.isfinite(v)]
    if ((v < -(2.0**exponent)) | (v >= 2.0**exponent)).any():
        raise KernelError(f"Value outside [-2^{exponent}, 2^{exponent}); expected none.")
    index = np.floor(np.ldexp(v, bits - exponent)).astype(np.int64) + (1 << bits)
    return np.bincount(index, minlength=2 << bits)


def absmax(x: Array, axis: int | None = None) -> NDArray[np.float32]:
    """Largest |x| per index of an axis (of all if None), float32; NaN where there is one, 0 where there is nothing."""
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    return np.asarray(np.abs(x.astype(np.float32)).max(axis=others, initial=0))


def abs_mean(x: Array, axis: int) -> NDArray[np.float64]:
    """Mean of |x| per index of an axis, float64: NaN where there is one, else Inf where there is one, 0 of nothing.

    With x as (outer, n, inner) around the axis: element i of a row x[o, c, :] is added to lane i mod 16, the lanes are
    added in halves (8 to 8, 4 to 4, 2 to 2, 1 to 1), rows in the order of o within blocks of 1024, then the blocks in
    order.
    """
    axis %= x.ndim
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    steps = max(1, -(-inner // 16))
    lanes = np.zeros((outer, n, steps * 16))
    lanes[..., :inner] = np.abs(x.astype(np.float64)).reshape(outer, n, inner)
    rows = np.cumsum(lanes.reshape(outer, n, steps, 16), axis=2)[:, :, -1]  # unlike sum, it adds one after the other
    for half in (8, 4, 2, 1):
        rows = rows[..., :half] + rows[..., half : 2 * half]
    total = np.zeros(n)
    for start in range(0, outer, 1024):
        total += np.cumsum(rows[start : start + 1024, :, 0], axis=0)[-1]
    return total / max(1, outer * inner)


def decode(codes: Array, dtype: QDType) -> NDArray[np.float32]:
    """The number that each code stands for."""
    raw = codes.view(np.uint8 if codes.dtype.itemsize == 1 else codes.dtype)
    if dtype.format is not None:
        sign_bit = 1 << (dtype.bits - 1)
        table = np.array([_decode_one(code, dtype.format, sign_bit) for code in range(2 * sign_bit)], np.float32)
        return np.asarray(table[raw & (2 * sign_bit - 1)])
    if dtype.kind == "exponent":
        return np.asarray(np.array([2.0 ** (c - 127) for c in range(255)] + [np.nan], np.float32)[raw])
    integers = raw.astype(np.int32) & ((1 << dtype.bits) - 1)
    if dtype.kind == "int":
        integers = np.where(integers >= 1 << (dtype.bits - 1), integers - (1 << dtype.bits), integers)
    return integers.astype(np.float32)


def _decode_one(code: int, form: FloatFormat, sign_bit: int) -> float:
    if code == sign_bit and not form.negative_zero:
        return np.nan
    magnitude = code % sign_bit
    if magnitude > form.max_code:
        value = np.inf if magnitude == form.overflow and form.overflow != form.nan else np.nan
    else:
        value = form.magnitude(magnitude)
    return float(np.copysign(value, -1.0 if code & sign_bit else 1.0))


def _round_to(values: Array, form: FloatFormat, saturate: bool) -> NDArray[np.int64]:
    """Codes of the nearest values of a float format, ties to the even code: a search among the midpoints.

    Args:
        values: float64, exact.
        form: The format.
        saturate: Whether values out of range become the largest (else ``form.overflow``).
    """
    midpoints = _midpoints(form)
    size = np.abs(np.where(np.isnan(values), 0.0, values))
    codes = np.searchsorted(midpoints, size, side="left")  # a tie: the lower neighbour
    tie = (codes < len(midpoints)) & (size == midpoints[np.minimum(codes, len(midpoints) - 1)])
    codes = np.where(tie & (codes % 2 == 1), codes + 1, codes)
    overflow = (codes > form.max_code) & ~np.isnan(values)
    codes = np.where(overflow, form.max_code if saturate else form.overflow, codes)
    codes = np.where(np.isnan(values), form.nan, codes)
    has_sign = np.signbit(values)
    nans = np.isnan(values) | (overflow & (not saturate) & (form.overflow == form.nan))
    has_sign &= form.signed_nan | ~nans
    has_sign &= form.negative_zero | (codes != 0)
    return np.asarray(codes + has_sign * _sign_bit(form), np.int64)


@cache
def _midpoints(form: FloatFormat) -> NDArray[np.float64]:
    """What lies half-way between neighbours, the last one between the largest value and where the next would be."""
    grid = np.array([form.magnitude(code) for code in range(form.max_code + 2)], np.float64)
    return (grid[:-1] + grid[1:]) / 2


def _sign_bit(form: FloatFormat) -> int:
    """The bit above all magnitudes (and above the NaN of the signed formats)."""
    return 1 << max(form.max_code, form.overflow if form.signed_nan else 0).bit_length()


def _cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """Round x once to a float type; int32 -> bfloat16 by way of float32 would round twice."""
    if x.dtype == dtype:
        return x
    if dtype == _FLOAT32:
        return decode(x, QDTYPES["float8e8m0"]) if x.dtype.name == "float8_e8m0fnu" else x.astype(np.float32)
    exact = decode(x, QDTYPES["float8e8m0"]) if x.dtype.name == "float8_e8m0fnu" else x
    codes = _round_to(exact.astype(np.float64), _HALVES[dtype], saturate=False)
    return codes.astype(np.uint16).view(dtype)


def _values(codes: Array) -> NDArray[np.float32]:
    if codes.dtype == np.int32:
        return codes.astype(np.float32)
    return decode(codes, BY_STORAGE[codes.dtype.name])


def _arithmetic_type(scale: Array) -> np.dtype[Any]:
    return _FLOAT32 if scale.dtype.name == "float8_e8m0fnu" else scale.dtype


def _as_storage(codes: Array, dtype: QDType) -> Array:
    """Integer codes as an array of the storage type, the bits above the code zero (as ml_dtypes stores them)."""
    masked = codes & ((1 << dtype.bits) - 1)
    return masked.astype(np.uint16 if dtype.bits == 16 else np.uint8).view(dtype.numpy)


def _format(dtype: QDType) -> FloatFormat:
    if dtype.format is None:
        raise KernelError(f"Type {dtype.name} is not a type to quantize to; expected an integer or a small float.")
    return dtype.format


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point, repeated to the shape of the tensor."""
    granularity = resolve(shape, parameter.shape, axis, block_size)
    if isinstance(granularity, PerBlock):
        axis = granularity.axis
        repeated = np.repeat(parameter, block_size, axis=axis)
        return repeated[(slice(None),) * axis + (slice(0, shape[axis]),)]
    if isinstance(granularity, PerAxis):
        along = tuple(-1 if i == granularity.axis else 1 for i in range(len(shape)))
        return np.broadcast_to(parameter.reshape(along), shape)
    return np.broadcast_to(parameter.reshape(()), shape)


# ------------------------------------------------------------------------------------------------------ integer matmul

Form = Literal["multiplier", "literal"]
"""The two readings of QLinearMatMul: one float32 factor (what runtimes compute), or dequantize and divide."""


def wrap_int32(acc: Array) -> NDArray[np.int32]:
    """int64 modulo 2^32, as int32: what an accumulator of 32 bits holds."""
    return np.asarray(np.asarray(acc) & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)


def per_row(value: Array) -> Array:
    """A scale or zero point of the left operand, to broadcast against it: a vector belongs to the rows."""
    value = np.asarray(value)
    if value.size == 1:
        return value.reshape(())
    return value[:, None] if value.ndim == 1 else value


def per_column(value: Array) -> Array:
    """A scale or zero point of the right operand, to broadcast against it: a vector belongs to the columns."""
    value = np.asarray(value)
    return value.reshape(()) if value.size == 1 else value


def matmul_integer(
    a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> NDArray[np.int32]:
    """Equation (3): ``sum_k (a - za) * (b - zb)`` modulo 2^32.

    Args:
        a: (..., M, K) or (K,), int8 or uint8.
        b: (..., K, N) or (K,), int8 or uint8.
        a_zero_point: Scalar, (M,), or (..., M, 1), of the type of ``a``; None is 0.
        b_zero_point: Scalar, (N,), or (..., 1, N), of the type of ``b``; None is 0.

    Returns:
        int32, the shape of ``numpy.matmul``.
    """
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    if a_zero_point is not None:
        wide_a = wide_a - per_row(a_zero_point).astype(np.int64)
    if b_zero_point is not None:
        wide_b = wide_b - per_column(b_zero_point).astype(np.int64)
    return wrap_int32(np.matmul(wide_a, wide_b))


def _saturating_pairs(a: Array, b: Array) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Exact and saturated sums of neighbours along K, (M, K/2 rounded up, N)."""
    odd = a.shape[-1] % 2
    wide_a, wide_b = np.pad(a.astype(np.int64), ((0, 0), (0, odd))), np.pad(b.astype(np.int64), ((0, odd), (0, 0)))
    products = wide_a[:, :, None] * wide_b
    exact = products[:, ::2] + products[:, 1::2]
    return exact, np.clip(exact, -(2**15), 2**15 - 1).astype(np.int16)


def matmul_saturating(a: Array, b: Array) -> NDArray[np.int32]:
    """``sum_i saturate16(a[2i]*b[2i] + a[2i+1]*b[2i+1])`` modulo 2^32: vpmaddubsw, vpmaddwd with ones, vpaddd.

    Args:
        a: (M, K), uint8.
        b: (K, N), int8. The last pair of an odd K has a zero.

    Returns:
        (M, N), int32.
    """
    _, pairs = _saturating_pairs(a, b)
    return wrap_int32(pairs.sum(axis=1, dtype=np.int64))


def count_saturating_pairs(a: Array, b: Array) -> NDArray[np.int64]:
    """How many pairs of :func:`matmul_saturating` leave int16, for each column of ``b``: (N,), int64."""
    exact, pairs = _saturating_pairs(a, b)
    return np.asarray((exact != pairs).sum(axis=(0, 1), dtype=np.int64))


def requantize(
    acc: NDArray[np.int32], a_scale: Array, b_scale: Array, y_scale: Array, y_zero_point: Array, form: Form
) -> Array:
    """Equation (4): ``saturate(rint(acc * (a_scale*b_scale/y_scale)) + y_zero_point)``, in float32.

    The scales broadcast against ``acc`` and are widened to float32 first (a float16 scale too). The result has the
    type of ``y_zero_point``. NaN (an infinite scale times 0) becomes the smallest code. ``form="literal"`` computes
    ``acc * a_scale * b_scale / y_scale`` from the left.
    """
    sa, sb, sy = (np.asarray(s).astype(np.float32) for s in (a_scale, b_scale, y_scale))
    y_zero_point = np.asarray(y_zero_point)
    bounds = np.iinfo(y_zero_point.dtype)
    with np.errstate(all="ignore"):
        y = acc.astype(np.float32) * ((sa * sb) / sy) if form == "multiplier" else acc.astype(np.float32) * sa * sb / sy
    y = np.rint(y).astype(np.float64) + y_zero_point.reshape(()).astype(np.float64)
    return np.asarray(np.clip(np.where(np.isnan(y), bounds.min, y), bounds.min, bounds.max)).astype(y_zero_point.dtype)


def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    form: Form = "multiplier",
) -> Array:
    """QLinearMatMul: equation (3), then equation (4).

    Args:
        a: (..., M, K) or (K,), int8 or uint8.
        a_scale: Scalar, (M,), or (..., M, 1), float32, float16 or bfloat16.
        a_zero_point: The shape of ``a_scale``, the type of ``a``.
        b: (..., K, N) or (K,), int8 or uint8.
        b_scale: Scalar, (N,), or (..., 1, N).
        b_zero_point: The shape of ``b_scale``, the type of ``b``.
        y_scale: Scalar.
        y_zero_point: Scalar; its type, int8 or uint8, is that of the result.
        form: Which reading of the document.

    Returns:
        The shape of ``numpy.matmul``, the type of ``y_zero_point``.
    """
    acc = matmul_integer(a, b, a_zero_point, b_zero_point)
    sa, sb = per_row(a_scale), per_column(b_scale)
    if b.ndim == 1 and sa.ndim:  # no column axis in the result
        sa = sa[..., 0]
    if a.ndim == 1 and sb.ndim > 1:  # no row axis
        sb = sb[..., 0, :]
    return requantize(acc, sa, sb, np.asarray(y_scale).reshape(()), y_zero_point, form)


class ConvAttributes(TypedDict, total=False):
    """The attributes of ConvInteger and QLinearConv, with the names, meanings and defaults of ONNX."""

    group: int
    pads: Sequence[int] | None
    strides: Sequence[int] | None
    dilations: Sequence[int] | None
    kernel_shape: Sequence[int] | None
    auto_pad: str


@dataclass(frozen=True)
class ConvGeometry:
    """The spatial numbers of a convolution, one entry per spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output: tuple[int, ...]


def conv_geometry(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
) -> ConvGeometry:
    """Resolve the attributes of a Conv against the shapes of ``x`` (N, C, D1..Dn) and ``w`` (M, C/group, k1..kn).

    Raises:
        KernelError: If the shapes or attributes contradict each other.
    """
    rank = len(x_shape) - 2
    if rank < 1 or len(w_shape) != rank + 2:
        raise KernelError(
            f"Conv has x of shape {tuple(x_shape)} and w of shape {tuple(w_shape)}; "
            "expected (N, C, D1, ..., Dn) and (M, C/group, k1, ..., kn) with n >= 1."
        )
    if group < 1 or x_shape[1] != w_shape[1] * group or w_shape[0] % group:
        raise KernelError(
            f"Conv has {x_shape[1]} input channels, w of shape {tuple(w_shape)} and group={group}; "
            "expected C = w.shape[1] * group and w.shape[0] divisible by group."
        )
    kernel = tuple(w_shape[2:])
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise KernelError(f"Conv has kernel_shape={list(kernel_shape)} and w of shape {tuple(w_shape)}.")
    step = _conv_attribute("strides", strides, rank, 1)
    dilation = _conv_attribute("dilations", dilations, rank, 1)
    if pads is not None and (
        len(pads) != 2 * rank or not all(isinstance(p, int | np.integer) and p >= 0 for p in pads)
    ):
        raise KernelError(f"Conv has pads={list(pads)}; expected {2 * rank} values >= 0.")
    begin, end = (tuple(pads[:rank]), tuple(pads[rank:])) if pads else ((0,) * rank, (0,) * rank)
    extent = tuple((k - 1) * d + 1 if k else 0 for k, d in zip(kernel, dilation, strict=True))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        if any(begin + end):
            raise KernelError(f"Conv has auto_pad={auto_pad} and pads={list(pads or ())}; expected one of them.")
        if auto_pad != "VALID":
            need = [
                max((-(-size // s) - 1) * s + e - size, 0) for size, s, e in zip(x_shape[2:], step, extent, strict=True)
            ]
            small, large = tuple(p // 2 for p in need), tuple(p - p // 2 for p in need)
            begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    elif auto_pad not in ("NOTSET", ""):
        raise KernelError(f"Conv has auto_pad={auto_pad!r}; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID.")
    room = tuple(size + b + e - k for size, b, e, k in zip(x_shape[2:], begin, end, extent, strict=True))
    if min(room) < 0:
        raise KernelError(
            f"Conv has a kernel that covers {extent}, larger than x of shape {tuple(x_shape)} with pads "
            f"{list(begin + end)}."
        )
    return ConvGeometry(step, dilation, begin, end, tuple(r // s + 1 for r, s in zip(room, step, strict=True)))


def _conv_attribute(name: str, value: Sequence[int] | None, rank: int, default: int) -> tuple[int, ...]:
    if value is None:
        return (default,) * rank
    if len(value) != rank or not all(isinstance(v, int | np.integer) and v >= 1 for v in value):
        raise KernelError(f"Conv has {name}={list(value)}; expected {rank} values >= 1.")
    return tuple(value)


def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    **attributes: Unpack[ConvAttributes],
) -> NDArray[np.int32]:
    """ConvInteger: the convolution of ``x - zx`` and ``w - zw`` modulo 2^32. Padding contributes 0.

    Args:
        x: (N, C, D1, ..., Dn), int8 or uint8.
        w: (M, C/group, k1, ..., kn), int8 or uint8.
        x_zero_point: Scalar of the type of ``x``; None is 0.
        w_zero_point: Scalar or (M,) of the type of ``w``; None is 0.
        **attributes: group, pads, strides, dilations, kernel_shape, auto_pad.

    Returns:
        (N, M, o1, ..., on), int32.

    Raises:
        KernelError: If the shapes or attributes contradict each other.
    """
    return wrap_int32(_conv_sum(x, w, x_zero_point, w_zero_point, attributes))


def _conv_sum(
    x: Array, w: Array, x_zero_point: Array | None, w_zero_point: Array | None, attributes: ConvAttributes
) -> NDArray[np.int64]:
    g = conv_geometry(x.shape, w.shape, **attributes)
    group = attributes.get("group", 1)
    rank = x.ndim - 2
    wide_x = x.astype(np.int64) - (0 if x_zero_point is None else int(np.asarray(x_zero_point).reshape(())))
    wide_x = np.pad(wide_x, [(0, 0), (0, 0), *zip(g.pads_begin, g.pads_end, strict=True)])
    wide_w = w.astype(np.int64)
    if w_zero_point is not None:
        wide_w = wide_w - np.asarray(w_zero_point).astype(np.int64).reshape((-1,) + (1,) * (w.ndim - 1))
    acc = np.zeros((x.shape[0], w.shape[0], *g.output), np.int64)
    per_in, per_out = w.shape[1], w.shape[0] // group
    for index, taps in itertools.product(range(group), np.ndindex(*w.shape[2:])):
        window = wide_x[:, index * per_in : (index + 1) * per_in]
        for axis in range(rank):
            start = taps[axis] * g.dilations[axis]
            stop = start + (g.output[axis] - 1) * g.strides[axis] + 1
            window = window[(slice(None),) * (2 + axis) + (slice(start, stop, g.strides[axis]),)]
        rows = slice(index * per_out, (index + 1) * per_out)
        acc[:, rows] += np.einsum("nc...,mc->nm...", window, wide_w[(rows, slice(None), *taps)])
    return acc


def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    bias: Array | None = None,
    *,
    form: Form = "multiplier",
    **attributes: Unpack[ConvAttributes],
) -> Array:
    """QLinearConv: the convolution of :func:`conv_integer` with an int32 bias, then equation (4).

    Args:
        x: (N, C, D1, ..., Dn), int8 or uint8.
        x_scale: Scalar.
        x_zero_point: Scalar of the type of ``x``.
        w: (M, C/group, k1, ..., kn), int8 or uint8.
        w_scale: Scalar or (M,).
        w_zero_point: The shape of ``w_scale``, the type of ``w``.
        y_scale: Scalar.
        y_zero_point: Scalar; its type, int8 or uint8, is that of the result.
        bias: (M,), int32 in units of ``x_scale * w_scale``, or None.
        form: Which reading of equation (4).
        **attributes: group, pads, strides, dilations, kernel_shape, auto_pad.

    Returns:
        (N, M, o1, ..., on), the type of ``y_zero_point``.

    Raises:
        KernelError: If the shapes or attributes contradict each other.
    """
    acc = _conv_sum(x, w, x_zero_point, w_zero_point, attributes)
    per_channel = (-1,) + (1,) * (x.ndim - 2)
    if bias is not None:
        acc = acc + bias.astype(np.int64).reshape(per_channel)
    sw = np.asarray(w_scale).reshape(per_channel)
    return requantize(
        wrap_int32(acc), np.asarray(x_scale).reshape(()), sw, np.asarray(y_scale).reshape(()), y_zero_point, form
    )


def dynamic_quantize_linear(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """DynamicQuantizeLinear: the range of ``x`` and 0, 255 steps, true division, round half to even.

    A range of 0 (all zero, empty, or so small that the scale underflows) has scale 1, as in onnxruntime, so that the
    scale is always positive. NaN is left out of the range and becomes code 0.

    Args:
        x: float32, any shape.

    Returns:
        ``y`` (uint8, the shape of ``x``), the scale (float32 scalar), the zero point (uint8 scalar).
    """
    with np.errstate(all="ignore"):
        low = np.fmin.reduce(x, axis=None, initial=np.float32(0))
        high = np.fmax.reduce(x, axis=None, initial=np.float32(0))
        scale = np.asarray((high - low) / np.float32(255), np.float32)
        scale = np.where(scale == 0, np.float32(1), scale)
        zero = np.clip(np.nan_to_num(np.rint(-low / scale), nan=0.0), 0, 255)
        y = np.rint(x / scale) + zero
    codes = np.clip(np.where(np.isnan(y), 0, y), 0, 255)
    return codes.astype(np.uint8), np.asarray(scale), np.asarray(zero).astype(np.uint8)
