"""Integer products and convolutions: validation and allocation around the integer part of the core."""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.threads import SERIAL_WORK, effective_num_threads, isa_info, product_work
from qtool.reference import ConvAttributes, Form, conv_geometry

Array = npt.NDArray[Any]

_ndarray = np.ndarray

_log = logging.getLogger(__name__)

_SCALAR_OPERAND = "MatMul has a scalar operand; expected at least one axis."


def _operand(name: str, value: Array) -> tuple[Array, bool]:
    """An 8-bit integer operand and whether it is signed."""
    value = np.asarray(value)
    char = value.dtype.char
    if char in "bB":
        return value, char == "b"
    if value.dtype.name.startswith("float8"):
        raise KernelError(
            f"'{name}' has type {value.dtype}; the integer kernels take int8 and uint8.",
            hint="QLinearMatMul of float8 operands comes with the spec engine.",
        )
    raise KernelError(f"'{name}' has type {value.dtype}; expected int8 or uint8.")


def _parameter(name: str, value: Array, shape: tuple[int, ...], along: int | None) -> Array:
    """A scale or zero point of an operand as (...) over the operand's leading axes and ``along``; () per tensor.

    Args:
        name: For messages.
        value: One element; or a vector along axis ``along``; or the operand's rank with the other matrix axis 1.
        shape: Of the operand, at least 2-D.
        along: -2 for rows, -1 for columns; None allows one element only.
    """
    value = np.asarray(value)
    if value.size == 1 and value.ndim <= max(len(shape), 1):
        return value.reshape(())
    if along is None:
        raise KernelError(f"'{name}' has shape {value.shape}; expected a scalar.")
    length = shape[along]
    if value.shape == (length,):
        return value
    full = (*shape[:-2], length, 1) if along == -2 else (*shape[:-2], 1, length)
    if value.ndim == len(full) and all(v in (1, f) for v, f in zip(value.shape, full, strict=True)):
        return value[..., 0] if along == -2 else value[..., 0, :]
    raise KernelError(f"'{name}' has shape {value.shape}; expected a scalar, ({length},) or {full}.")


def _zero_point(name: str, value: Array | None, of: str, operand: Array | _Like, along: int | None) -> Array:
    """A zero point as int32, in the shape of :func:`_parameter`."""
    if value is None:
        return np.zeros((), np.int32)
    value = np.asarray(value)
    if value.dtype != operand.dtype:
        raise KernelError(f"'{name}' has type {value.dtype}; expected {operand.dtype}, the type of '{of}'.")
    return _parameter(name, value, operand.shape, along).astype(np.int32)


def _scale(name: str, value: Array, shape: tuple[int, ...], along: int | None) -> NDArray[np.float32]:
    """A scale as float32, in the shape of :func:`_parameter`. float16 and bfloat16 are widened, which is exact."""
    value = np.asarray(value)
    if value.dtype == np.float32:  # the usual type; the name of a type takes microseconds to build
        return _parameter(name, value, shape, along)
    if value.dtype.name not in ("float16", "bfloat16"):
        raise KernelError(f"'{name}' has type {value.dtype}; expected float32, float16 or bfloat16.")
    return _parameter(name, value, shape, along).astype(np.float32)


def _same_shape(name: str, scale: Array, zero_point: Array) -> None:
    if type(scale) is np.ndarray and type(zero_point) is np.ndarray and scale.shape == zero_point.shape:
        return
    s, z = np.asarray(scale), np.asarray(zero_point)
    if s.shape != z.shape and (s.size, z.size) != (1, 1):
        raise KernelError(
            f"'{name}_scale' has shape {s.shape} and '{name}_zero_point' {z.shape}; expected the same shape."
        )


def _output_type(y_zero_point: Array) -> tuple[np.dtype[Any], int, bool]:
    value, signed = _operand("y_zero_point", y_zero_point)
    if value.ndim == 0:
        return value.dtype, int(value), signed
    return value.dtype, int(_parameter("y_zero_point", value, (), None)), signed


def _form(form: str) -> bool:
    if form not in ("multiplier", "literal"):
        raise KernelError(f"form is {form!r}; expected 'multiplier' or 'literal'.")
    return form == "literal"


def _spread(value: Array, batch: tuple[int, ...], length: int) -> Array:
    """(batch items, length) of a parameter; what repeats has a stride of 0 and takes no memory."""
    items = math.prod(batch)
    if value.ndim <= 1:
        return np.broadcast_to(value, (items, length))
    return np.broadcast_to(value, (*batch, length)).reshape(items, length)


def _stack(operand: Array) -> NDArray[np.uint8]:
    """(items, rows, columns) of bytes."""
    items = math.prod(operand.shape[:-2])  # not -1, which cannot be told for an empty operand
    return operand.view(np.uint8).reshape(items, *operand.shape[-2:])


class PackedB:
    """The right operand of a matrix product, packed once for many products.

    It holds a copy in the order that the micro-kernel reads, and the sums of the columns: what a product would
    otherwise compute first. ``b`` may change or be freed afterwards.

    Attributes:
        shape: Of ``b``.
        dtype: Of ``b``, int8 or uint8.
        nbytes: Bytes held.
        kernel: The micro-kernel it is packed for. Products with another one refuse it.
    """

    def __init__(self, b: Array, *, num_threads: int | None = None) -> None:
        """Pack ``b``.

        Args:
            b: (..., K, N) or (K,), int8 or uint8, any strides.
            num_threads: See :func:`effective_num_threads`.

        Raises:
            KernelError: If the type does not fit, or ``b`` has no axis.
            ConfigError: If ``num_threads`` is not a positive integer.
        """
        b, signed = _operand("b", b)
        if b.ndim == 0:
            raise KernelError(_SCALAR_OPERAND)
        self.shape, self.dtype = b.shape, b.dtype
        matrices = _stack(b[:, None] if b.ndim == 1 else b)
        self._matrices = _core.PackedMatrices(matrices, signed, effective_num_threads(num_threads, b.size))

    @property
    def ndim(self) -> int:
        """Axes of ``b``."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held: the packed matrices and the sums."""
        return self._matrices.nbytes

    @property
    def kernel(self) -> str:
        """Name of the micro-kernel it is packed for."""
        return self._matrices.kernel_name

    def __repr__(self) -> str:
        return f"PackedB(shape={self.shape}, dtype={self.dtype}, kernel={self.kernel!r})"

    def current(self) -> _core.PackedMatrices:
        """The packed matrices, for the kernel in force.

        Raises:
            KernelError: If dispatch now chooses another kernel than at the time of packing.
        """
        if not self._matrices.current:
            raise KernelError(
                f"'b' is packed for the kernel {self.kernel}; the kernel in force is {isa_info().kernel}.",
                hint="Pack it again after the change of QTOOL_ISA.",
            )
        return self._matrices


def pack_b(b: Array, *, num_threads: int | None = None) -> PackedB:
    """``b`` as a :class:`PackedB`, which :func:`matmul_integer` and :func:`qlinear_matmul` take in its place."""
    return PackedB(b, num_threads=num_threads)


class _Pair:
    """Two matrices with one zero point and scale of ``a``: the common case, without the general case's arrays."""

    __slots__ = ("a", "b", "b_signed", "k", "m", "n", "packed")

    def __init__(self, a: Array, b: Array | None, packed: PackedB | None) -> None:
        self.a, self.b, self.packed = a, b, packed
        (self.m, self.k), self.n = a.shape, (packed or b).shape[1]  # type: ignore[union-attr]
        self.b_signed = (packed or b).dtype.char == "b"  # type: ignore[union-attr]

    @staticmethod
    def of(a: Array, b: Array | PackedB) -> _Pair | None:
        """None if this is not the common case, or an error: the general way tells."""
        if type(a) is not np.ndarray or a.ndim != 2 or a.dtype.char not in "bB":
            return None
        if type(b) is PackedB:
            return _Pair(a, None, b) if len(b.shape) == 2 and b.shape[0] == a.shape[1] else None
        if type(b) is not np.ndarray or b.ndim != 2 or b.dtype.char not in "bB" or b.shape[0] != a.shape[1]:
            return None
        return _Pair(a, b, None)

    def threads(self, num_threads: int | None) -> int:
        """The number of threads; 1 at once where nothing else can come out."""
        if type(num_threads) is int and num_threads == 1:
            return 1
        work = product_work(self.m * self.n * self.k, 0 if self.b is None else self.k * self.n)
        if num_threads is None and work < SERIAL_WORK and "QTOOL_NUM_THREADS" not in os.environ:
            return 1
        return effective_num_threads(num_threads, work)

    def run(
        self,
        a_zero: int,
        b_zero: int | Array,
        out: Array,
        num_threads: int | None,
        scales: tuple[float, float | Array, float, int, bool] | None = None,
    ) -> Array:
        """Fill ``out``."""
        a, b, packed = self.a, self.b, self.packed
        a_signed, scalar_zero = a.dtype.char == "b", type(b_zero) is int
        sa, sb, sy, y_zero, y_signed = scales if scales is not None else (1.0, 1.0, 1.0, 0, False)
        scalar_scale = type(sb) is float
        _core.matmul_2d(
            a if not a_signed else a.view(np.uint8),
            b if b is None or not self.b_signed else b.view(np.uint8),
            packed.current() if packed is not None else None,
            a_signed,
            self.b_signed,
            a_zero,
            b_zero if scalar_zero else 0,  # type: ignore[arg-type]
            None if scalar_zero else b_zero,  # type: ignore[arg-type]
            out if scales is None else None,
            out.view(np.uint8) if scales is not None else None,
            sa,
            sb if scalar_scale else 0.0,  # type: ignore[arg-type]
            None if scalar_scale else sb,  # type: ignore[arg-type]
            sy,
            y_zero,
            y_signed,
            self.threads(num_threads),
        )
        return out


def _one_code(value: Any, char: str) -> int | None:
    """A zero point that is one value of the right type, or None."""
    # the exact type first: it is what comes, and isinstance() of two classes takes as long as the rest
    if (type(value) is _ndarray or isinstance(value, (np.generic, np.ndarray))) and value.ndim == 0:
        return int(value) if value.dtype.char == char else None
    return None


def _codes(value: Any, char: str, n: int) -> int | Array | None:
    """The same, or a vector of ``n`` such values as int32."""
    if type(value) is np.ndarray and value.ndim == 1 and value.shape[0] == n != 1 and value.dtype.char == char:
        return value.astype(np.int32)
    return _one_code(value, char)


def _one_float(value: Any) -> float | None:
    if (type(value) is _ndarray or isinstance(value, (np.generic, np.ndarray))) and value.ndim == 0:
        return float(value) if value.dtype.char == "f" else None
    return None


def _quick_scales(
    pair: _Pair, a_scale: Any, a_zero: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> tuple[int, int | Array, tuple[float, float | Array, float, int, bool]] | None:
    """Parameters of QLinearMatMul if ``a`` and ``y`` have one, and ``b`` one or one per column, all float32."""
    za, sa, sy = _one_code(a_zero, pair.a.dtype.char), _one_float(a_scale), _one_float(y_scale)
    if za is None or sa is None or sy is None:
        return None
    zb = _codes(b_zero, "b" if pair.b_signed else "B", pair.n)
    sb: float | Array | None = _one_float(b_scale)
    if sb is None and type(b_scale) is np.ndarray and b_scale.shape == (pair.n,) and b_scale.dtype.char == "f":
        sb = np.ascontiguousarray(b_scale)
    if zb is None or sb is None or (type(zb) is int) != (type(sb) is float):
        return None
    zy = _one_code(y_zero, "b")
    signed = zy is not None
    zy = _one_code(y_zero, "B") if zy is None else zy
    return None if zy is None else (za, zb, (sa, sb, sy, zy, signed))


class _Like(NamedTuple):
    """What the parameters of an operand must agree with."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _MatMul:
    """Shapes of one product: operands as stacks of matrices, the batch as pairs of indices into the stacks."""

    def __init__(self, a: Array, b: Array | PackedB) -> None:
        self.a, self.a_signed = _operand("a", a)
        self.operand_b: Array | PackedB = b if isinstance(b, PackedB) else _operand("b", b)[0]
        if self.a.ndim == 0 or self.operand_b.ndim == 0:
            raise KernelError(_SCALAR_OPERAND)
        drop_row, drop_column = self.a.ndim == 1, self.operand_b.ndim == 1
        self.a = self.a[None, :] if drop_row else self.a
        self.b = _Like(self.operand_b.dtype, (*self.operand_b.shape, 1) if drop_column else self.operand_b.shape)
        try:
            self.batch = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        except ValueError:
            self.batch = ()
            agree = False
        else:
            agree = self.a.shape[-1] == self.b.shape[-2]
        if not agree:
            raise KernelError(f"a of shape {a.shape} and b of shape {b.shape} do not multiply (numpy.matmul rules).")
        self.m, self.n = self.a.shape[-2], self.b.shape[-1]
        macs = math.prod(self.batch) * self.m * self.n * self.a.shape[-1]
        self.work = product_work(macs, math.prod(self.b.shape))
        row, column = () if drop_row else (self.m,), () if drop_column else (self.n,)
        self.shape = (*self.batch, *row, *column)

    def run(
        self,
        a_zero: Array,
        b_zero: Array,
        out: Array,
        num_threads: int | None,
        scales: tuple[Array, Array, float, int, bool, bool] | None = None,
    ) -> Array:
        """Fill ``out`` and give it the shape of the result."""
        items = math.prod(self.batch)
        a_scale = b_scale = None
        y_scale, y_zero, y_signed, literal = 1.0, 0, False, False
        codes = out.view(np.uint8) if scales is not None else None
        if scales is not None:
            a_scale, b_scale = _spread(scales[0], self.batch, self.m), _spread(scales[1], self.batch, self.n)
            _, _, y_scale, y_zero, y_signed, literal = scales
        threads = effective_num_threads(num_threads, self.work)
        _core.matmul(
            _stack(self.a),
            self._packed(threads),
            self._items(self.a.shape[:-2]),
            self._items(self.b.shape[:-2]),
            self.a_signed,
            _spread(a_zero, self.batch, self.m),
            _spread(b_zero, self.batch, self.n),
            out if scales is None else None,
            codes,
            a_scale,
            b_scale,
            y_scale,
            y_zero,
            y_signed,
            literal,
            threads,
        )
        assert out.shape == (items, self.m, self.n), "Bug: the output was reallocated"
        return out.reshape(self.shape)

    def _packed(self, threads: int) -> _core.PackedMatrices:
        b = self.operand_b
        if isinstance(b, PackedB):
            return b.current()
        return _core.PackedMatrices(_stack(b.reshape(self.b.shape)), b.dtype == np.int8, threads)

    def _items(self, leading: tuple[int, ...]) -> NDArray[np.intp]:
        index = np.arange(math.prod(leading), dtype=np.intp).reshape(leading)
        return np.ascontiguousarray(np.broadcast_to(index, self.batch)).reshape(-1)


def matmul_integer(
    a: Array,
    b: Array | PackedB,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    *,
    num_threads: int | None = None,
) -> NDArray[np.int32]:
    """MatMulInteger: ``sum_k (a - za) * (b - zb)`` modulo 2^32, with the shapes of ``numpy.matmul``.

    Args:
        a: (..., M, K) or (K,), int8 or uint8, any strides.
        b: (..., K, N) or (K,), int8 or uint8, any strides; or packed.
        a_zero_point: Scalar, (M,), or (..., M, 1), of the type of ``a``; None is 0.
        b_zero_point: Scalar, (N,), or (..., 1, N), of the type of ``b``; None is 0.
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.

    Returns:
        int32.

    Raises:
        KernelError: If types or shapes do not fit, or ``b`` is packed for another kernel.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    pair = _Pair.of(a, b)
    if pair is not None:
        za = 0 if a_zero_point is None else _one_code(a_zero_point, a.dtype.char)
        zb = 0 if b_zero_point is None else _codes(b_zero_point, b.dtype.char, pair.n)
        if za is not None and zb is not None:
            return pair.run(za, zb, np.empty((pair.m, pair.n), np.int32), num_threads)
    product = _MatMul(a, b)
    a_zero = _zero_point("a_zero_point", a_zero_point, "a", product.a, -2)
    b_zero = _zero_point("b_zero_point", b_zero_point, "b", product.b, -1)
    out = np.empty((math.prod(product.batch), product.m, product.n), np.int32)
    return product.run(a_zero, b_zero, out, num_threads)


def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array | PackedB,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    form: Form = "multiplier",
    num_threads: int | None = None,
) -> Array:
    """QLinearMatMul: the sum of :func:`matmul_integer`, then ``saturate(rint(acc * (sa*sb/sy)) + zy)`` in float32.

    Args:
        a: (..., M, K) or (K,), int8 or uint8, any strides.
        a_scale: Scalar, (M,), or (..., M, 1); float32, or float16 or bfloat16, which are widened to float32.
        a_zero_point: The shape of ``a_scale``, the type of ``a``.
        b: (..., K, N) or (K,), int8 or uint8, any strides; or packed.
        b_scale: Scalar, (N,), or (..., 1, N).
        b_zero_point: The shape of ``b_scale``, the type of ``b``.
        y_scale: Scalar.
        y_zero_point: Scalar; its type, int8 or uint8, is that of the result.
        form: ``multiplier`` (what runtimes compute) or ``literal`` (``acc*sa*sb / sy``, the sentence of the document).
        num_threads: See :func:`effective_num_threads`. The result does not depend on it.

    Returns:
        The shape of ``numpy.matmul``, the type of ``y_zero_point``.

    Raises:
        KernelError: If types or shapes do not fit, or ``b`` is packed for another kernel.
        ConfigError: If ``num_threads`` is not a positive integer.
    """
    literal = _form(form)
    pair = _Pair.of(a, b) if not literal else None
    if pair is not None:
        quick = _quick_scales(pair, a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point)
        if quick is not None:
            za, zb, scales = quick
            return pair.run(za, zb, np.empty((pair.m, pair.n), y_zero_point.dtype), num_threads, scales)
    product = _MatMul(a, b)
    _same_shape("a", a_scale, a_zero_point)
    _same_shape("b", b_scale, b_zero_point)
    a_zero = _zero_point("a_zero_point", a_zero_point, "a", product.a, -2)
    b_zero = _zero_point("b_zero_point", b_zero_point, "b", product.b, -1)
    sa = _scale("a_scale", a_scale, product.a.shape, -2)
    sb = _scale("b_scale", b_scale, product.b.shape, -1)
    sy = float(_scale("y_scale", y_scale, (), None))
    dtype, y_zero, y_signed = _output_type(y_zero_point)
    out = np.empty((math.prod(product.batch), product.m, product.n), dtype)
    return product.run(a_zero, b_zero, out, num_threads, (sa, sb, sy, y_zero, y_signed, literal))


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

    def layout(self, group: int) -> _core.PackedWeights | None:
        """What the core takes beside ``w``.

        Raises:
            KernelError: If packed for another number of groups or another micro-kernel.
        """
        if group != self.group:
            raise KernelError(f"'w' is packed for group={self.group}; the convolution has group={group}.")
        if self._packed is not None and not self._packed.is_current():
            raise KernelError(
                f"'w' is packed for the micro-kernel {self.kernel}; the current one is {_core.isa_state()[4]}.",
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
    value, signed = _operand("w", w)
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


def _hashable(value: Any) -> Any:
    if type(value) is list:
        return tuple(value)
    if type(value) is int or type(value) is str:
        return value
    return tuple(value) if np.iterable(value) and not isinstance(value, str) else value


class _ConvLayout(NamedTuple):
    """What follows from shapes and attributes, with leading spatial axes of length 1 up to three."""

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    dilations: tuple[int, ...]
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    work: int


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
        product_work(math.prod(shape) * math.prod(w_shape[1:]), math.prod(w_shape)),
    )


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
        self.x, self.x_signed = _operand("x", x)
        self.w, self.w_signed = _operand("w", w)
        self.w_volume = volume
        self.layout = _layout(x.shape, w.shape, tuple([(k, _hashable(v)) for k, v in attributes.items()]))
        code = _one_code(x_zero_point, self.x.dtype.char)
        self.x_zero = int(_zero_point("x_zero_point", x_zero_point, "x", self.x, None)) if code is None else code
        codes = _codes(w_zero_point, self.w.dtype.char, w.shape[0])
        if type(codes) is not np.ndarray:  # the general way, which also tells what is wrong
            rows = _Like(self.w.dtype, (w.shape[0], math.prod(w.shape[1:])))
            codes = self.per_channel(_zero_point("w_zero_point", w_zero_point, "w", rows, -2))
        self.w_zero = codes

    def per_channel(self, value: Array) -> Array:
        """A parameter as one value per output channel, contiguous."""
        if value.ndim == 0:
            return np.full(self.w.shape[0], value)
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

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
            1 if type(num_threads) is int and num_threads == 1 else effective_num_threads(num_threads, layout.work),
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
    literal = _form(form)
    _same_shape("w", w_scale, w_zero_point)
    conv = _Conv(x, w, x_zero_point, w_zero_point, attributes)
    sx = _scale("x_scale", x_scale, (), None).reshape(1)
    channels = conv.w.shape[0]
    sw = conv.per_channel(_scale("w_scale", w_scale, (channels, 1), -2))
    sy = float(_scale("y_scale", y_scale, (), None))
    dtype, y_zero, y_signed = _output_type(y_zero_point)
    if bias is not None:
        bias = np.ascontiguousarray(bias)
        if bias.dtype != np.int32 or bias.shape != (channels,):
            raise KernelError(f"'bias' is {bias.dtype} of shape {bias.shape}; expected int32 of shape ({channels},).")
    out = np.empty(conv.layout.padded_shape, dtype)
    return conv.run(out, bias, num_threads, (sx, sw, sy, y_zero, y_signed, literal))


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
