"""Integer convolutions: validation, geometry and allocation around the core."""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.operands import (
    Like,
    codes_of,
    is_literal,
    one_code,
    operand,
    output_type,
    require_same_shape,
    scale_of,
    zero_point_of,
)
from qtool.kernels.threads import effective_num_threads, isa_info, product_work
from qtool.reference import ConvAttributes, Form, conv_geometry

Array = npt.NDArray[Any]

_log = logging.getLogger(__name__)


def _volume(name: str, value: Array) -> NDArray[np.uint8]:
    """The bytes of an operand of a convolution, contiguous, with leading spatial axes of length 1 up to three."""
    shape = (*value.shape[:2], *(1,) * (5 - value.ndim), *value.shape[2:])
    if not value.flags.c_contiguous:
        _log.debug("'%s' of shape %s is not contiguous: copied", name, value.shape)
        value = np.ascontiguousarray(value)
    return value.view(np.uint8).reshape(shape)


class PackedConv:
    """Weights of a convolution in the layout of the current micro-kernel; see :func:`pack_conv_weights`.

    Attributes:
        w: The weights, (M, C/group, k1, ..., kn), a read-only copy.
        group: The number of groups.
        kernel: Name of the micro-kernel whose layout this is; None if the weights need no packing (depthwise).
        volume: The bytes of ``w`` with three spatial axes.
    """

    def __init__(self, w: Array, group: int, packed: _core.PackedWeights | None) -> None:
        self.w = w
        self.group = group
        self.kernel = None if packed is None else packed.kernel()
        self._packed = packed
        self.volume = _volume("w", w)

    @property
    def is_current(self) -> bool:
        """Whether dispatch still chooses the micro-kernel it is packed for."""
        return self._packed is None or self._packed.is_current()

    def layout(self, group: int) -> _core.PackedWeights | None:
        """What the core takes beside ``w``.

        Raises:
            KernelError: If packed for another number of groups or another micro-kernel.
        """
        if group != self.group:
            raise KernelError(f"'w' is packed for group={self.group}; the convolution has group={group}.")
        if not self.is_current:
            raise KernelError(
                f"'w' is packed for the kernel {self.kernel}; the one in force is {isa_info().kernel}.",
                hint="Pack the weights again after the instruction set changed.",
            )
        return self._packed


def pack_conv_weights(w: Array, group: int = 1, *, num_threads: int | None = None) -> PackedConv:
    """Pack the weights of a convolution once, for many calls.

    Args:
        w: (M, C/group, k1, ..., kn), n <= 3, int8 or uint8.
        group: The number of groups, a divisor of M.
        num_threads: See :func:`effective_num_threads`.

    Returns:
        What :func:`conv_integer` and :func:`qlinear_conv` accept in place of ``w``, for the same results.

    Raises:
        KernelError: If ``w`` is no weight of ``group`` groups.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    value, signed = operand("w", w)
    if not 3 <= value.ndim <= 5:
        raise KernelError(f"'w' has shape {value.shape}; expected (M, C/group, k1, ..., kn) with 1 <= n <= 3.")
    if group < 1 or len(value) % group:
        raise KernelError(f"'w' has {len(value)} output channels; expected a multiple of group={group}.")
    value = np.array(value, order="C", copy=True)
    value.flags.writeable = False
    packed = None
    if value.shape[1] != 1:
        threads = effective_num_threads(num_threads, value.size)
        packed = _core.pack_conv(_volume("w", value), group, signed, threads)
    return PackedConv(value, group, packed)


class _ConvLayout(NamedTuple):
    """What follows from shapes and attributes, with leading spatial axes of length 1 up to three."""

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    dilations: tuple[int, ...]
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    macs: int
    weights: int


@functools.lru_cache(maxsize=1024)
def _layout(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: tuple[tuple[str, Any], ...]) -> _ConvLayout:
    """The layout, remembered: a small convolution takes less time than its arithmetic in Python."""
    geometry = conv_geometry(x_shape, w_shape, **dict(attributes))
    rank = len(x_shape) - 2
    if rank > 3:
        raise KernelError(f"x of shape {x_shape} has {rank} spatial axes; the convolution kernel takes up to 3.")
    ones, zeros = (1,) * (3 - rank), (0,) * (3 - rank)
    shape = (x_shape[0], w_shape[0], *geometry.output)
    return _ConvLayout(
        ones + geometry.strides,
        zeros + geometry.pads_begin,
        ones + geometry.dilations,
        shape,
        (*shape[:2], *ones, *geometry.output),
        math.prod(shape) * math.prod(w_shape[1:]),
        math.prod(w_shape),
    )


def _remembered(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: ConvAttributes) -> _ConvLayout:
    """The layout from the cache, if the attributes are what can be looked up there."""
    given: dict[str, Any] = dict(attributes)
    key = tuple([(k, tuple(v) if isinstance(v, (list, np.ndarray)) else v) for k, v in given.items()])
    try:
        return _layout(x_shape, w_shape, key)
    except TypeError:  # a list of lists has no hash; conv_geometry says what is wrong with it
        return _layout.__wrapped__(x_shape, w_shape, key)


class _Conv:
    """Operands, geometry and buffers of one convolution, with leading spatial axes of length 1 up to three."""

    def __init__(
        self,
        x: Array,
        w: Array | PackedConv,
        x_zero_point: Array | None,
        w_zero_point: Array | None,
        attributes: ConvAttributes,
    ) -> None:
        self.group = attributes.get("group", 1)
        self.packed = volume = None
        if isinstance(w, PackedConv):
            self.packed, volume = w.layout(self.group), w.volume
            w = w.w
        self.x, self.x_signed = operand("x", x)
        self.w, self.w_signed = operand("w", w)
        self.w_volume = volume
        self.layout = _remembered(self.x.shape, self.w.shape, attributes)
        code = one_code(x_zero_point, self.x.dtype.char)
        self.x_zero = int(zero_point_of("x_zero_point", x_zero_point, "x", self.x, None)) if code is None else code
        codes = codes_of(w_zero_point, self.w.dtype.char, self.w.shape[0])
        if type(codes) is not np.ndarray:  # the general way, which also tells what is wrong
            rows = Like(self.w.dtype, (self.w.shape[0], math.prod(self.w.shape[1:])))
            codes = self.per_channel(zero_point_of("w_zero_point", w_zero_point, "w", rows, -2))
        self.w_zero = codes

    def per_channel(self, value: Array) -> Array:
        """A parameter as one value per output channel, contiguous."""
        if value.ndim == 0:
            return np.full(self.w.shape[0], value)
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def threads(self, num_threads: int | None) -> int:
        """The number of threads; 1 at once where it is asked for."""
        if type(num_threads) is int and num_threads == 1:
            return 1
        work = product_work(self.layout.macs, 0 if self.w_volume is not None else self.layout.weights)
        return effective_num_threads(num_threads, work)

    def run(
        self,
        out: Array,
        bias: Array | None,
        num_threads: int | None,
        scales: tuple[Array, Array, float, int, bool, bool] | None = None,
    ) -> Array:
        """Fill ``out`` (of the layout's ``padded_shape``) and give it the shape of the result."""
        layout = self.layout
        x_scale = w_scale = None
        y_scale, y_zero, y_signed, literal = 1.0, 0, False, False
        if scales is not None:
            x_scale, w_scale, y_scale, y_zero, y_signed, literal = scales
        _core.conv(
            _volume("x", self.x),
            _volume("w", self.w) if self.w_volume is None else self.w_volume,
            self.packed,
            self.group,
            layout.strides,
            layout.pads_begin,
            layout.dilations,
            self.x_signed,
            self.w_signed,
            self.x_zero,
            self.w_zero,
            bias,
            out if scales is None else None,
            None if scales is None else out.view(np.uint8),
            x_scale,
            w_scale,
            y_scale,
            y_zero,
            y_signed,
            literal,
            self.threads(num_threads),
        )
        return out.reshape(layout.shape)


def conv_integer(
    x: Array,
    w: Array | PackedConv,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    num_threads: int | None = None,
    **attributes: Unpack[ConvAttributes],
) -> NDArray[np.int32]:
    """ConvInteger: the convolution of ``x - zx`` and ``w - zw`` modulo 2^32. Padding contributes 0.

    Args:
        x: (N, C, D1, ..., Dn), n <= 3, int8 or uint8.
        w: (M, C/group, k1, ..., kn), int8 or uint8; or the same from :func:`pack_conv_weights`.
        x_zero_point: Scalar of the type of ``x``; None is 0.
        w_zero_point: Scalar or (M,) of the type of ``w``; None is 0.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.
        **attributes: group, pads, strides, dilations, kernel_shape, auto_pad.

    Returns:
        (N, M, o1, ..., on), int32.

    Raises:
        KernelError: If types, shapes or attributes do not fit.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    conv = _Conv(x, w, x_zero_point, w_zero_point, attributes)
    return conv.run(np.empty(conv.layout.padded_shape, np.int32), None, num_threads)


def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array | PackedConv,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    bias: Array | None = None,
    *,
    form: Form = "multiplier",
    num_threads: int | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Array:
    """QLinearConv: the sum of :func:`conv_integer` and an int32 bias, requantized as by :func:`qlinear_matmul`.

    Args:
        x: (N, C, D1, ..., Dn), n <= 3, int8 or uint8.
        x_scale: Scalar.
        x_zero_point: Scalar of the type of ``x``.
        w: (M, C/group, k1, ..., kn), int8 or uint8; or the same from :func:`pack_conv_weights`.
        w_scale: Scalar or (M,).
        w_zero_point: The shape of ``w_scale``, the type of ``w``.
        y_scale: Scalar.
        y_zero_point: Scalar; its type, int8 or uint8, is that of the result.
        bias: (M,), int32 in units of ``x_scale * w_scale``, or None.
        form: ``multiplier`` or ``literal``.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.
        **attributes: group, pads, strides, dilations, kernel_shape, auto_pad.

    Returns:
        (N, M, o1, ..., on), the type of ``y_zero_point``.

    Raises:
        KernelError: If types, shapes or attributes do not fit.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    literal = is_literal(form)
    require_same_shape("w", w_scale, w_zero_point)
    conv = _Conv(x, w, x_zero_point, w_zero_point, attributes)
    sx = scale_of("x_scale", x_scale, (), None).reshape(1)
    channels = conv.w.shape[0]
    sw = conv.per_channel(scale_of("w_scale", w_scale, (channels, 1), -2))
    sy = float(scale_of("y_scale", y_scale, (), None))
    dtype, y_zero, y_signed = output_type(y_zero_point)
    if bias is not None:
        bias = np.ascontiguousarray(bias)
        if bias.dtype != np.int32 or bias.shape != (channels,):
            raise KernelError(f"'bias' is {bias.dtype} of shape {bias.shape}; expected int32 of shape ({channels},).")
    out = np.empty(conv.layout.padded_shape, dtype)
    return conv.run(out, bias, num_threads, (sx, sw, sy, y_zero, y_signed, literal))
