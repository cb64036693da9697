"""Integer matrix products: validation and allocation around the core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool import _core
from qtool.errors import KernelError
from qtool.kernels.operands import (
    Like,
    is_literal,
    operand,
    output_type,
    require_same_shape,
    scale_of,
    zero_point_of,
)
from qtool.kernels.threads import effective_num_threads, isa_info, product_work
from qtool.reference import Form

Array = npt.NDArray[Any]

_SCALAR_OPERAND = "MatMul has a scalar operand; expected at least one axis."


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


def _threads(num_threads: int | None, macs: int, to_pack: int) -> int:
    return effective_num_threads(num_threads, product_work(macs, to_pack))


class PackedB:
    """The right operand of a matrix product, packed once for many products.

    It holds a copy in the order that the micro-kernel reads, and the sums of the columns: what a product would
    otherwise compute first. ``b`` may change or be freed afterwards.

    Attributes:
        shape: Of ``b``.
        dtype: Of ``b``, int8 or uint8.
        nbytes: Bytes held.
        kernel: The micro-kernel it is packed for. Products with another one refuse it.
        pair: For the core: the packed matrix, if it is one; None for a vector or a stack.
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
        b, signed = operand("b", b)
        if b.ndim == 0:
            raise KernelError(_SCALAR_OPERAND)
        self.shape, self.dtype = b.shape, b.dtype
        matrices = _stack(b[:, None] if b.ndim == 1 else b)
        self._matrices = _core.PackedMatrices(matrices, signed, effective_num_threads(num_threads, b.size))
        self.pair = self._matrices if b.ndim == 2 else None

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

    @property
    def is_current(self) -> bool:
        """Whether dispatch still chooses the micro-kernel it is packed for."""
        return self._matrices.current

    def current(self) -> _core.PackedMatrices:
        """The packed matrices, for the kernel in force.

        Raises:
            KernelError: If dispatch now chooses another kernel than at the time of packing.
        """
        matrices = self._matrices
        if not matrices.current:
            raise KernelError(
                f"'b' is packed for the kernel {self.kernel}; the kernel in force is {isa_info().kernel}.",
                hint="Pack it again after the change of QTOOL_ISA.",
            )
        return matrices


def pack_b(b: Array, *, num_threads: int | None = None) -> PackedB:
    """``b`` as a :class:`PackedB`, which :func:`matmul_integer` and :func:`qlinear_matmul` take in its place."""
    return PackedB(b, num_threads=num_threads)


class _MatMul:
    """Shapes of one product: operands as stacks of matrices, the batch as pairs of indices into the stacks."""

    def __init__(self, a: Array, b: Array | PackedB) -> None:
        self.a, self.a_signed = operand("a", a)
        self.operand_b: Array | PackedB = b if isinstance(b, PackedB) else operand("b", b)[0]
        if self.a.ndim == 0 or self.operand_b.ndim == 0:
            raise KernelError(_SCALAR_OPERAND)
        drop_row, drop_column = self.a.ndim == 1, self.operand_b.ndim == 1
        self.a = self.a[None, :] if drop_row else self.a
        self.b = Like(self.operand_b.dtype, (*self.operand_b.shape, 1) if drop_column else self.operand_b.shape)
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
        to_pack = 0 if isinstance(b, PackedB) else math.prod(self.b.shape)
        self.work = product_work(macs, to_pack)
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
    right = b.pair if isinstance(b, PackedB) else b
    done = _core.matmul_2d(a, right, a_zero_point, b_zero_point, None, None, None, None, num_threads, _threads)
    if done is not None:
        return done
    product = _MatMul(a, b)
    a_zero = zero_point_of("a_zero_point", a_zero_point, "a", product.a, -2)
    b_zero = zero_point_of("b_zero_point", b_zero_point, "b", product.b, -1)
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
    if form == "multiplier":
        right = b.pair if isinstance(b, PackedB) else b
        parameters = a_zero_point, b_zero_point, a_scale, b_scale, y_scale, y_zero_point
        done = _core.matmul_2d(a, right, *parameters, num_threads, _threads)
        if done is not None:
            return done
    literal = is_literal(form)
    product = _MatMul(a, b)
    require_same_shape("a", a_scale, a_zero_point)
    require_same_shape("b", b_scale, b_zero_point)
    a_zero = zero_point_of("a_zero_point", a_zero_point, "a", product.a, -2)
    b_zero = zero_point_of("b_zero_point", b_zero_point, "b", product.b, -1)
    sa = scale_of("a_scale", a_scale, product.a.shape, -2)
    sb = scale_of("b_scale", b_scale, product.b.shape, -1)
    sy = float(scale_of("y_scale", y_scale, (), None))
    dtype, y_zero, y_signed = output_type(y_zero_point)
    out = np.empty((math.prod(product.batch), product.m, product.n), dtype)
    return product.run(a_zero, b_zero, out, num_threads, (sa, sb, sy, y_zero, y_signed, literal))
