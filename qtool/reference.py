"""The oracle: every kernel once more, short, slow and obvious, in NumPy.

Each function is one of the numbered equations of docs/quantization.md. Nothing here is fast, nothing here is clever.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from qtool.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

# -------------------------------------------------------------------------------------------------- element by element

# ------------------------------------------------------------------------------------------------------ integer matmul

Array = NDArray[Any]
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
    if pads is not None and (len(pads) != 2 * rank or min(pads) < 0):
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
    if len(value) != rank or min(value) < 1:
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
