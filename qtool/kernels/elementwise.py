"""Quantize, dequantize, pack and count: validation and allocation around the element by element part of the core."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.dtypes import BY_STORAGE, QDTYPES, QDType
from qtool.errors import KernelError
from qtool.granularity import Granularity, PerAxis, PerBlock, normalize_axis, resolve
from qtool.kernels.threads import effective_num_threads

Array = npt.NDArray[Any]

STREAM_BYTES = 8 << 20
"""Results of dequantize from this size on are written past the cache, which would not hold them."""

_BYTE = np.dtype(np.uint8)
_FLOAT32 = np.dtype(np.float32)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_BY_DTYPE: dict[np.dtype[Any], QDType] = {dtype.numpy: dtype for dtype in QDTYPES.values()}
# Element types as the core numbers them (enum Source of _core.pyx); a type that is not here goes through a table.
_SOURCES: dict[np.dtype[Any], int] = {
    np.dtype(name): number
    for number, name in enumerate(
        (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, np.int16, np.uint16)
    )
}
_TABLE = len(_SOURCES)
_TABLE4 = _TABLE + 1
_FLOATS = tuple(_SOURCES)[:3]
_QUANTIZABLE = tuple(_SOURCES)[:4]


@dataclass(frozen=True)
class MinMax:
    """What one pass over a tensor tells.

    Attributes:
        count: Elements, all of them.
        nan: NaNs among them.
        pos_inf: +Infs.
        neg_inf: -Infs.
        zeros: Zeros of either sign.
        min: Smallest finite value, +Inf if there is none (the neutral element of a merge); a zero is +0.
        max: Largest finite value, -Inf if there is none.
    """

    count: int
    nan: int
    pos_inf: int
    neg_inf: int
    zeros: int
    min: float
    max: float

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nan - self.pos_inf - self.neg_inf


def quantize(
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
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """QuantizeLinear: y = saturate(rint(x / scale) + zero_point); equation (1).

    The division is a true one, in ``precision`` or else the type of the scale (float32 for an e8m0 scale), to which x
    is cast first; ties go to even before the zero point is added; NaN becomes the smallest integer. Float targets are
    rounded to nearest even; the zero point, where there is one, is added first, in the precision of the division.

    Args:
        x: Any shape and strides; float32, float16, bfloat16 or int32.
        scale: float32, float16, bfloat16 or e8m0 (or int32 with a ``precision``): one element (per tensor), 1-D of the
            length of the axis (per axis), or of the rank of x with ceil(D / block_size) entries along the axis.
        zero_point: Shape of the scale, type of the result; None is zero.
        axis: Quantized axis, negative from the back.
        block_size: Elements per scale along the axis; 0 if not blocked.
        output_dtype: Element type of the result; None is that of the zero point, or uint8 without one.
        saturate: For float8 only: whether overflow becomes the largest value; else Inf or NaN.
        precision: float32, float16 or bfloat16; None is the type of the scale.
        packed: Whether the result is what :func:`pack` makes of the codes; they are not written to memory before.
        out: C-contiguous array for the result, of its shape and type.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Returns:
        Shape of x; the numpy or ml_dtypes type that stores one element per item; or, ``packed``, 1-D uint8. ``out`` if
        given.

    Raises:
        KernelError: If types, shapes, axis or block size do not go together.
    """
    zeros = None if zero_point is None else (zero_point.shape, zero_point.dtype)
    types = (x.dtype, scale.dtype, output_dtype, precision)
    plan = _quantize_plan(x.shape, scale.shape, zeros, types, axis, block_size, packed)
    x, scale = _contiguous(x), _contiguous(scale) if plan.scale_as_is else _rounded(scale, plan.precision)
    y = _result(plan.shape, plan.dtype, out, x)
    threads = 1 if num_threads == 1 else _threads(num_threads, x.size)
    if plan.integers:
        zero_point = None if zero_point is None else _contiguous(zero_point)
        _core.quantize_integer(plan.core, x, scale, zero_point, packed, y, threads)
    else:
        offset = np.full(scale.size, -0.0, np.float32) if zero_point is None else _numbers(zero_point)
        _core.quantize_float(plan.core, x, scale, offset, saturate, packed, y, threads)
    if packed and plan.bits == 16 and sys.byteorder == "big":
        y.view(np.uint16).byteswap(inplace=True)
    return y


class _QuantizePlan(NamedTuple):
    """What follows from the types and shapes of a call."""

    core: _core.Quantizer
    precision: np.dtype[Any]
    scale_as_is: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    integers: bool
    bits: int


# Remembered, here and below: after a large call the cache holds its data and no longer the interpreter, and arithmetic
# in Python that takes some microseconds in a loop takes more than ten times as long.
@functools.lru_cache(maxsize=1024)
def _quantize_plan(
    shape: tuple[int, ...],
    scale_shape: tuple[int, ...],
    zeros: tuple[tuple[int, ...], np.dtype[Any]] | None,
    types: tuple[np.dtype[Any], np.dtype[Any], QDType | None, npt.DTypeLike | None],
    axis: int,
    block_size: int,
    packed: bool,
) -> _QuantizePlan:
    """Validate a call of ``quantize``; ``types`` are those of x, the scale, the result and the division."""
    dtype, scale_dtype, output_dtype, precision = types
    _require_type(dtype, "x", _QUANTIZABLE)
    target = _target(None if zeros is None else zeros[1], output_dtype)
    divide_in = _division_type(scale_dtype, precision)
    layout = _layout(shape, scale_shape, resolve(shape, scale_shape, axis, block_size))
    if zeros is not None:
        _require_same_shape(zeros[0], scale_shape)
    integers = target.format is None
    bounds = (int(target.qmin), int(target.qmax)) if integers else (0, 0)
    size, form = math.prod(shape), None if integers else _format_numbers(target)
    core = _core.Quantizer(size, _SOURCES[dtype], _SOURCES[divide_in], layout, target.bits, *bounds, form)
    as_is = scale_dtype == divide_in == _FLOAT32
    result, stored = ((target.nbytes(size),), _BYTE) if packed else (shape, target.numpy)
    return _QuantizePlan(core, divide_in, as_is, result, stored, integers, target.bits)


def dequantize(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: npt.DTypeLike | None = None,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """DequantizeLinear: y = (x - zero_point) * scale; equation (2).

    The scale is cast to the output type and the product is rounded once to it. The difference is a float32: exact for
    integers of up to 16 bits; an int32 x is rounded to float32 first.

    Args:
        x: Codes of any shape and strides, in the storage type of an element type, or int32 (without zero point).
        scale: float32, float16, bfloat16 or e8m0; shapes as for ``quantize``.
        zero_point: Shape of the scale, type of x; None is zero.
        axis: Quantized axis, negative from the back.
        block_size: Elements per scale along the axis; 0 if not blocked.
        output_dtype: float32, float16 or bfloat16; None is the type of the scale. Mandatory with an e8m0 scale.
        out: C-contiguous array for the result.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Returns:
        Shape of x, type ``output_dtype`` (``out`` if given).

    Raises:
        KernelError: If types, shapes, axis or block size do not go together.
    """
    zeros = None if zero_point is None else (zero_point.shape, zero_point.dtype)
    plan = _dequantize_plan(x.shape, scale.shape, zeros, (x.dtype, scale.dtype, output_dtype), axis, block_size)
    x, scale = _contiguous(x), _rounded(scale, plan.result)
    zero_point = None if zero_point is None else _contiguous(zero_point)
    y = _result(x.shape, plan.result, out, x)
    stream = plan.size * 4 >= STREAM_BYTES
    _core.dequantize(
        *(x, plan.size, plan.source, plan.table, scale, zero_point, plan.layout),
        *(_SOURCES[plan.result], stream, y, _threads(num_threads, plan.size)),
    )
    return y


class _DequantizePlan(NamedTuple):
    """What follows from the types and shapes of a call, as the core takes it."""

    size: int
    source: int
    table: NDArray[np.float32]
    result: np.dtype[Any]
    layout: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _dequantize_plan(
    shape: tuple[int, ...],
    scale_shape: tuple[int, ...],
    zeros: tuple[tuple[int, ...], np.dtype[Any]] | None,
    types: tuple[np.dtype[Any], np.dtype[Any], npt.DTypeLike | None],
    axis: int,
    block_size: int,
) -> _DequantizePlan:
    """Validate a call of ``dequantize``; ``types`` are those of x, the scale and the result."""
    dtype, scale_dtype, output_dtype = types
    stored = _BY_DTYPE.get(dtype)
    if dtype != np.int32 and (stored is None or stored.kind == "exponent"):
        raise KernelError(f"x has type {_type_name(dtype)}; expected a quantized type or int32.")
    _require_type(scale_dtype, "Scale", (*_FLOATS, _E8M0))
    if output_dtype is None and scale_dtype == _E8M0:
        raise KernelError("Scale has type float8_e8m0fnu and there is no output_dtype; expected one with such a scale.")
    result = scale_dtype if output_dtype is None else _require_float(output_dtype, "output_dtype")
    layout = _layout(shape, scale_shape, resolve(shape, scale_shape, axis, block_size))
    if zeros is not None:
        if dtype == np.int32:
            raise KernelError("x has type int32 and there is a zero point; expected none: its zero point is 0.")
        if zeros[1] != dtype:
            raise KernelError(f"Zero point has type {_type_name(zeros[1])}; expected that of x, {dtype.name}.")
        _require_same_shape(zeros[0], scale_shape)
    source, table = _SOURCES.get(dtype, _TABLE), _NO_TABLE
    if source == _TABLE and stored is not None:
        source, table = _TABLE4 if stored.bits <= 4 else _TABLE, _table(stored)
    return _DequantizePlan(math.prod(shape), source, table, result, layout)


def dynamic_quantize_linear(
    x: NDArray[np.float32], *, num_threads: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """DynamicQuantizeLinear: the range of ``x`` and 0, 255 steps, true division, round half to even.

    A range of 0 (all zero, empty, or so small that the scale underflows) has scale 1, as in onnxruntime. NaN is left
    out of the range and becomes code 0.

    Args:
        x: float32, any shape.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.

    Returns:
        ``y`` (uint8, the shape of ``x``), the scale (float32 scalar), the zero point (uint8 scalar).

    Raises:
        KernelError: If ``x`` is not float32.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise KernelError(f"'x' has type {x.dtype}; expected float32, the only input type of DynamicQuantizeLinear.")
    y = np.empty(x.shape, np.uint8)
    flat = np.ascontiguousarray(x).reshape(-1)
    scale, zero = _core.dynamic_quantize(flat, y.reshape(-1), effective_num_threads(num_threads, x.size))
    return y, np.asarray(scale, np.float32), np.asarray(zero, np.uint8)


def pack(codes: Array, dtype: QDType, *, out: Array | None = None, num_threads: int | None = None) -> NDArray[np.uint8]:
    """The bytes of ``TensorProto.raw_data``: elements one after the other, low bits first, the last byte zero-filled.

    Args:
        codes: Any shape and strides, in the storage type of ``dtype``.
        dtype: Element type.
        out: 1-D uint8 array of ``dtype.nbytes(codes.size)`` for the result.
        num_threads: Threads; None chooses by the amount of work.

    Returns:
        uint8, 1-D, little-endian where an element has two bytes. May share memory with ``codes`` for types of 8 bits
        and more, unless ``out`` is given.

    Raises:
        KernelError: If the type of the codes is not the storage type.
    """
    if codes.dtype != dtype.numpy:
        raise KernelError(
            f"Codes have type {_type_name(codes.dtype)}; expected {dtype.numpy.name}, which stores {dtype.name}.",
            hint="Bit patterns in a uint8 array can be viewed: array.view(dtype.numpy).",
        )
    if dtype.bits >= 8:
        contiguous = np.ascontiguousarray(codes).reshape(-1)
        raw = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        if out is None:
            return raw
        _result((raw.size,), np.dtype(np.uint8), out, codes)[:] = raw
        return out
    raw = _result((dtype.nbytes(codes.size),), np.dtype(np.uint8), out, codes)
    _core.pack(_bytes(codes), dtype.bits, raw, effective_num_threads(num_threads, codes.size))
    return raw


def unpack(
    raw: bytes | NDArray[np.uint8], dtype: QDType, shape: tuple[int, ...], *, num_threads: int | None = None
) -> Array:
    """Elements from ``TensorProto.raw_data``; the inverse of ``pack``.

    Args:
        raw: bytes or a 1-D uint8 array.
        dtype: Element type.
        shape: Shape of the tensor.
        num_threads: Threads; None chooses by the amount of work.

    Returns:
        A new array of ``shape`` in the storage type of ``dtype``.

    Raises:
        KernelError: If the number of bytes does not fit the shape.
    """
    data = np.frombuffer(raw, np.uint8) if isinstance(raw, bytes) else np.ascontiguousarray(raw)
    count = math.prod(shape)
    if data.dtype != np.uint8 or data.ndim != 1 or data.size != dtype.nbytes(count):
        raise KernelError(
            f"Raw data of type {data.dtype.name} and shape {data.shape}; expected {dtype.nbytes(count)} bytes for "
            f"{dtype.name} of shape {shape}."
        )
    if dtype.bits >= 8:
        little = dtype.numpy.newbyteorder("<")
        return data.copy().view(little).astype(dtype.numpy, copy=False).reshape(shape)
    codes = np.empty(count, np.uint8)
    _core.unpack(data, dtype.bits, codes, effective_num_threads(num_threads, count))
    return codes.view(dtype.numpy).reshape(shape)


def min_max(x: Array, *, num_threads: int | None = None) -> MinMax:
    """Count a tensor's NaNs, Infs and zeros and find its finite range, in one pass.

    Args:
        x: Any shape and strides; float32, float16 or bfloat16.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Raises:
        KernelError: If x has another type.
    """
    _require_type(x.dtype, "x", _FLOATS)
    threads = effective_num_threads(num_threads, x.size)
    nan, pos_inf, neg_inf, zeros, least, most = _core.min_max(_bytes(x), _SOURCES[x.dtype], x.size, threads)
    return MinMax(x.size, nan, pos_inf, neg_inf, zeros, least + 0.0, most + 0.0)  # + 0.0: a zero has no sign


def absmax(x: Array, axis: int | None = None, *, num_threads: int | None = None) -> NDArray[np.float32]:
    """Largest |x| per index of an axis.

    Args:
        x: Any shape and strides; float32, float16 or bfloat16.
        axis: The axis that is kept, negative from the back; None takes the maximum over everything.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Returns:
        float32 of shape (x.shape[axis],), or () for no axis. NaN where a NaN is among the values, 0 for no values.

    Raises:
        KernelError: If x has another type, or the axis is out of range.
    """
    _require_type(x.dtype, "x", _FLOATS)
    threads = effective_num_threads(num_threads, x.size)
    if axis is None:
        # Rows of equal length, one maximum each, and the rest: threads need something to share.
        flat = np.ascontiguousarray(x).reshape(-1)
        rows = max(1, x.size // _ABSMAX_ROW)
        whole = flat[: rows * (x.size // rows)]
        best = _absmax(whole, 1, rows, x.size // rows, threads)
        rest = _absmax(flat[whole.size :], 1, 1, flat.size - whole.size, 1)
        return np.asarray(np.concatenate([best, rest]).max())
    axis = normalize_axis(axis, x.ndim)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    return _absmax(x, outer, x.shape[axis], inner, threads)


def abs_mean(x: Array, axis: int, *, num_threads: int | None = None) -> NDArray[np.float64]:
    """Mean of |x| per index of an axis, in double and in one order of summation.

    With x as (outer, n, inner) around the axis: element i of a row x[o, c, :] is added to lane i mod 16, the lanes are
    added in halves (8 to 8, 4 to 4, 2 to 2, 1 to 1), rows in the order of o within blocks of 1024, then the blocks in
    order. Neither the number of threads nor the instruction set changes a bit.

    Args:
        x: Any shape and strides; float32, float16 or bfloat16.
        axis: The axis that is kept, negative from the back.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Returns:
        float64 of shape (x.shape[axis],). NaN where a NaN is among the values, else Inf where an Inf is; 0 for no
        values.

    Raises:
        KernelError: If x has another type, or the axis is out of range.
    """
    _require_type(x.dtype, "x", _FLOATS)
    axis = normalize_axis(axis, x.ndim)
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    sums = np.zeros((_core.channel_blocks(outer), n), np.float64)
    _core.abs_sum(_bytes(x), _SOURCES[x.dtype], outer, inner, sums, effective_num_threads(num_threads, x.size))
    total = np.zeros(n, np.float64)
    for block in sums:
        total += block
    return total / max(1, outer * inner)


def histogram(
    x: Array, exponent: int, bits: int, *, out: NDArray[np.int64] | None = None, num_threads: int | None = None
) -> NDArray[np.int64]:
    """Histogram on a power-of-two grid: bins of width 2^(exponent - bits) over [-2^exponent, 2^exponent).

    The bin of x is floor(x / width) + 2^bits, exactly. Histograms of the same grid add, and neighbouring bins of one
    grid add up to the next coarser one, so that every order of arrival gives the same counts.

    Args:
        x: Any shape and strides; float32, float16 or bfloat16. NaN and Inf are left out (``min_max`` counts them).
        exponent: Of the range, -149 to 128.
        bits: Logarithm of the number of bins per side, 1 to 16.
        out: Counts of that shape to add to; its values are not defined after an error.
        num_threads: Threads; None chooses by the amount of work. The result does not depend on it.

    Returns:
        int64 counts, shape (2 * 2^bits,): ``out`` if it is given.

    Raises:
        KernelError: If a finite value lies outside the range, or an argument does.
    """
    _require_type(x.dtype, "x", _FLOATS)
    if not (-149 <= exponent <= 128 and 1 <= bits <= 16):
        raise KernelError(f"exponent is {exponent} and bits is {bits}; expected -149 to 128, and 1 to 16.")
    if out is None:
        out = np.zeros(2 << bits, np.int64)
    elif out.dtype != np.int64 or out.shape != (2 << bits,) or not out.flags.c_contiguous or not out.flags.writeable:
        raise KernelError(f"out is {out.dtype}{list(out.shape)}; expected writable, contiguous int64{[2 << bits]}.")
    threads = effective_num_threads(num_threads, x.size)
    parts = out.reshape(1, -1) if threads == 1 else np.zeros((threads, 2 << bits), np.int64)
    outside = _core.histogram(_bytes(x), _SOURCES[x.dtype], x.size, exponent, bits, parts, threads)
    if outside:
        raise KernelError(
            f"{outside} values of x lie outside [-2^{exponent}, 2^{exponent}); expected none.",
            hint="Choose the exponent from min_max().",
        )
    if threads > 1:
        out += parts.sum(axis=0)
    return out


def to_e8m0(x: Array, *, rounding: Literal["up", "down", "nearest"] = "up", saturate: bool = True) -> Array:
    """Powers of two by the ONNX Cast document: 2^(code - 127), the codes of e8m0.

    Args:
        x: float32, any shape, not negative. Values below 2^-127 (0 too) become 2^-127 and values above 2^127 (Inf too)
            2^127; without ``saturate`` they become NaN.
        rounding: ``up`` and ``down`` by magnitude; ``nearest`` sends its ties, 1.5 * 2^n, up.
        saturate: Whether out-of-range values are clamped.

    Returns:
        float8_e8m0fnu of the shape of x.

    Raises:
        KernelError: If x has another type, or a value is negative (the document leaves that unspecified).
    """
    _require_type(x.dtype, "x", (_FLOAT32,))
    if (x < 0).any():
        raise KernelError(f"x has a negative value, {x.min():g}; expected none: e8m0 has no sign.")
    if rounding not in ("up", "down", "nearest"):
        raise KernelError(f"rounding is '{rounding}'; expected up, down or nearest.")
    mantissa, exponent = np.frexp(x.astype(np.float64))  # mantissa in [1/2, 1)
    up = {"up": mantissa > 0.5, "down": np.False_, "nearest": mantissa >= 0.75}[rounding]
    codes = np.clip(exponent + 126 + up, 0, 254)
    if not saturate:
        codes = np.where((x < 2.0**-127) | (x > 2.0**127), 255, codes)
    codes = np.where(x == 0, 0 if saturate else 255, codes)
    codes = np.where(np.isposinf(x), 254 if saturate else 255, codes)
    return np.where(np.isnan(x), 255, codes).astype(np.uint8).view(_E8M0)


def from_e8m0(codes: Array) -> NDArray[np.float32]:
    """The values 2^(code - 127) of an e8m0 array, exactly, as float32; code 255 is NaN.

    Raises:
        KernelError: If the array has another type.
    """
    _require_type(codes.dtype, "codes", (_E8M0,))
    return np.asarray(_table(QDTYPES["float8e8m0"])[codes.view(np.uint8)])


_ABSMAX_ROW = 1 << 15
_NO_TABLE = np.zeros(256, np.float32)


def _absmax(x: Array, outer: int, n: int, inner: int, threads: int) -> NDArray[np.float32]:
    best = np.zeros((_core.channel_blocks(outer), n), np.int32)
    _core.absmax(_bytes(x), _SOURCES[x.dtype], outer, inner, best, threads)
    return np.asarray(best.max(axis=0, initial=0).view(np.float32))


def _bytes(x: Array) -> NDArray[np.uint8]:
    """The elements in C order as bytes; a copy only if they are not so, or not aligned, in memory."""
    flags = x.flags
    if not (flags.c_contiguous and flags.aligned):
        x = np.require(x, requirements=["C", "A"])
    return (x if x.ndim == 1 else x.reshape(-1)).view(_BYTE)


def _contiguous(x: Array) -> Array:
    """The same elements in C order, aligned; x itself if it is so."""
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned else np.require(x, requirements=["C", "A"])


def _threads(num_threads: int | None, work: int) -> int:
    """:func:`effective_num_threads`; 1 at once where it is asked for."""
    return 1 if type(num_threads) is int and num_threads == 1 else effective_num_threads(num_threads, work)


def _require_type(dtype: np.dtype[Any], name: str, types: tuple[np.dtype[Any], ...]) -> None:
    if dtype not in types:
        raise KernelError(f"{name} has type {_type_name(dtype)}; expected {', '.join(t.name for t in types)}.")


def _type_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order"


def _require_float(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found not in _FLOATS:
        raise KernelError(f"{name} is {found.name}; expected {', '.join(t.name for t in _FLOATS)}.")
    return found


def _require_same_shape(zero_point: tuple[int, ...], scale: tuple[int, ...]) -> None:
    # One element is one element: the spec's own float8 examples pair a scale () with a zero point (1,).
    if zero_point != scale and not {zero_point, scale} <= {(), (1,)}:
        raise KernelError(f"Zero point has shape {zero_point}; expected that of the scale, {scale}.")


def _target(zero_point: np.dtype[Any] | None, output_dtype: QDType | None) -> QDType:
    """The element type of a quantized result."""
    target = output_dtype
    if zero_point is not None:
        found = _BY_DTYPE.get(zero_point)
        if found is None:
            raise KernelError(f"Zero point has type {_type_name(zero_point)}; expected a quantized type.")
        if target is not None and found != target:
            raise KernelError(f"Zero point has type {found.name}; expected output_dtype, {target.name}.")
        target = found
    target = target or QDTYPES["uint8"]
    if target.kind == "exponent":
        raise KernelError(f"Output type is {target.name}; expected an integer or a small float: it is a scale type.")
    return target


def _division_type(scale: np.dtype[Any], precision: npt.DTypeLike | None) -> np.dtype[Any]:
    if precision is not None:
        _require_type(scale, "Scale", (*_QUANTIZABLE, _E8M0))
        return _require_float(precision, "precision")
    if scale == np.int32:
        raise KernelError("Scale has type int32; expected a precision with it: the spec defines no integer division.")
    _require_type(scale, "Scale", (*_FLOATS, _E8M0))
    return _FLOAT32 if scale == _E8M0 else scale


def _rounded(scale: Array, dtype: np.dtype[Any]) -> NDArray[np.float32]:
    """The scale rounded once to a float type, then as float32 values (which hold all of them), contiguous."""
    if scale.dtype == _E8M0:
        scale = from_e8m0(scale)
    if scale.dtype == dtype == _FLOAT32:
        return _contiguous(scale)
    values = np.empty(scale.size, np.float32)
    _core.round_to(_bytes(scale), _SOURCES[scale.dtype], _SOURCES[dtype], values)
    return values


def _numbers(codes: Array) -> NDArray[np.float32]:
    """What the codes stand for, flat; exact."""
    if codes.dtype in _SOURCES:
        return np.ascontiguousarray(codes.astype(np.float32)).reshape(-1)
    return np.ascontiguousarray(_table(BY_STORAGE[codes.dtype.name])[codes.view(np.uint8)]).reshape(-1)


@functools.cache
def _table(dtype: QDType) -> NDArray[np.float32]:
    """The values of all 256 bytes that may store an element of a type of at most 8 bits; bits above it do not count."""
    table = np.empty(256, np.float32)
    sign_bit = 1 << (dtype.bits - 1)
    form = dtype.format
    for byte in range(256):
        code = byte & (2 * sign_bit - 1)
        if dtype.kind == "exponent":
            table[byte] = 2.0 ** (code - 127) if code < 255 else np.nan
        elif form is None:
            table[byte] = code - 2 * sign_bit if dtype.kind == "int" and code & sign_bit else code
        else:
            magnitude = code & (sign_bit - 1)
            if magnitude > form.max_code or (code == sign_bit and not form.negative_zero):
                value = math.inf if magnitude == form.overflow and form.overflow != form.nan else math.nan
            else:
                value = form.magnitude(magnitude)
            table[byte] = math.copysign(value, -1.0 if code & sign_bit else 1.0)
    table.flags.writeable = False
    return table


def _format_numbers(dtype: QDType) -> tuple[int, ...]:
    form = dtype.format
    assert form is not None, f"Bug: {dtype.name} has no float format."
    flags = (int(form.signed_nan), int(form.negative_zero))
    return (form.mantissa, form.bias, form.max_code, form.overflow, form.nan, *flags, dtype.bits - 1)


def _layout(shape: tuple[int, ...], scale_shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """The numbers of ``Layout`` in _core.pyx: (cols, n_mid, b_mid, k0, k1, b_col)."""
    if isinstance(granularity, PerAxis | PerBlock):
        axis = granularity.axis
        n, inner = shape[axis], math.prod(shape[axis + 1 :])
        if isinstance(granularity, PerAxis):
            if inner == 1:
                return (n, 1, 1, 0, 0, 1)
            return (n * inner, 1, 1, 0, 0, inner) if axis == 0 else (inner, n, 1, 0, 1, inner)
        block, blocks = granularity.size, scale_shape[axis]
        if inner > 1:
            return (inner, n, block, blocks, inner, 1)
        if n % block:
            return (n, 1, 1, blocks, 1, block)
        size = math.prod(shape)
        return (size, 1, 1, 0, 0, block)  # whole blocks: one row of them
    size = math.prod(shape)
    return (size, 1, 1, 0, 0, size)


def _result(shape: tuple[int, ...], dtype: np.dtype[Any], out: Array | None, source: Array) -> Array:
    """``out`` after checks, or a new array."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype:
        raise KernelError(f"out has shape {out.shape} and type {out.dtype.name}; expected {shape} and {dtype.name}.")
    if not out.flags.carray:
        raise KernelError("out is not C-contiguous, aligned and writeable; expected all three.")
    if _core.overlap(out, source) if source.flags.c_contiguous else np.may_share_memory(out, source):
        raise KernelError("out shares memory with the input; expected memory of its own.")
    return out
