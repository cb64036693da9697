"""The oracle: every kernel once more, short, slow and obvious, in NumPy.

Each function is one of the numbered equations of docs/quantization.md. Nothing here is fast, nothing here is clever.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qtool.dtypes import BFLOAT16, BY_STORAGE, FLOAT16, QDTYPES, FloatFormat, QDType
from qtool.errors import KernelError
from qtool.granularity import PerAxis, PerBlock, resolve

Array = npt.NDArray[Any]

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
) -> Array:
    """Equation (1): y = saturate(rint(x / scale) + zero_point), or the nearest-even minifloat of x / scale + zero_point.

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

    Returns:
        Codes of shape x.shape in the storage type of the result.
    """
    target = output_dtype or (BY_STORAGE[zero_point.dtype.name] if zero_point is not None else QDTYPES["uint8"])
    divide_in = np.dtype(precision) if precision is not None else _arithmetic_type(scale)
    scale = _cast(_spread(scale, x.shape, axis, block_size), divide_in)
    if zero_point is not None:
        zero_point = _spread(zero_point, x.shape, axis, block_size)
    with np.errstate(all="ignore"):
        # float16 and bfloat16 are divided in float32 and rounded once more. That is the correctly rounded quotient:
        # 24 >= 2p + 2 bits for p = 11 and p = 8, and a midpoint of their subnormal grids is farther than 2^-22
        # (relative) from any other quotient.
        quotient = _cast(x, divide_in) / scale
        if target.is_integer:
            z = np.float32(0) if zero_point is None else _values(zero_point)
            codes = np.clip(np.rint(quotient.astype(np.float64)) + z, target.qmin, target.qmax)
            codes = np.where(np.isnan(codes), target.qmin, codes).astype(np.int32)
            return _as_storage(codes, target)
        if zero_point is not None:
            quotient = quotient + _cast(_values(zero_point), divide_in)
        # A NaN has the sign of x, whatever sign the processor gives to 0/0.
        quotient = np.where(np.isnan(quotient), np.copysign(np.nan, x.astype(np.float64)), quotient.astype(np.float64))
    return _as_storage(_round_to(quotient, _format(target), saturate), target)


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
    scale = _cast(_spread(scale, x.shape, axis, block_size), out)
    with np.errstate(all="ignore"):
        difference = _values(x)
        if zero_point is not None:
            difference = difference - _values(_spread(zero_point, x.shape, axis, block_size))
        if out == _FLOAT32:
            return np.asarray(difference * scale)
        return _cast(difference.astype(np.float64) * scale.astype(np.float64), out)  # exact, then rounded once


def pack(codes: Array, dtype: QDType) -> npt.NDArray[np.uint8]:
    """``raw_data`` of codes: a stream of ``dtype.bits`` bits per element, low bits first, the last byte zero-filled."""
    raw = codes.ravel().view(np.uint16 if dtype.bits == 16 else np.uint8).astype(np.int64)
    bits = (raw[:, None] >> np.arange(dtype.bits)) & 1
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack(raw: npt.NDArray[np.uint8], dtype: QDType, shape: tuple[int, ...]) -> Array:
    """Codes of ``shape`` from ``raw_data``; the inverse of ``pack``."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.unpackbits(raw, count=count * dtype.bits, bitorder="little").reshape(count, dtype.bits)
    return _as_storage(bits.astype(np.int64) @ (1 << np.arange(dtype.bits)), dtype).reshape(shape)


def to_e8m0(x: Array, *, rounding: Literal["up", "down", "nearest"] = "up", saturate: bool = True) -> Array:
    """Powers of two by the Cast document: 0 and values below 2^-127 become 2^-127, Inf and values above 2^127 become
    2^127, or NaN all of them without saturation. ``nearest`` rounds its ties (1.5 * 2^n) up.

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


def power_of_two_histogram(x: Array, exponent: int, bits: int) -> npt.NDArray[np.int64]:
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


def absmax(x: Array, axis: int | None = None) -> npt.NDArray[np.float32]:
    """Largest |x| per index of an axis (of all if None), as float32; NaN where there is one, 0 where there is nothing."""
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    return np.asarray(np.abs(x.astype(np.float32)).max(axis=others, initial=0))


def decode(codes: Array, dtype: QDType) -> npt.NDArray[np.float32]:
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


def _round_to(values: Array, form: FloatFormat, saturate: bool) -> npt.NDArray[np.int64]:
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
def _midpoints(form: FloatFormat) -> npt.NDArray[np.float64]:
    """What lies half-way between neighbours, the last one between the largest value and where the next would be."""
    grid = np.array([form.magnitude(code) for code in range(form.max_code + 2)])
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


def _values(codes: Array) -> npt.NDArray[np.float32]:
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
