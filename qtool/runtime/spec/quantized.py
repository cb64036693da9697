"""The quantization operators, by the kernels; see docs/quantization.md for the equations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.dtypes import BY_ONNX
from qtool.errors import KernelError
from qtool.reference import per_column, per_row

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One run of one node.

    Attributes:
        inputs: Arrays in place; None where an optional input is absent.
        attributes: Name -> value, the operator's defaults included; None where there is no default.
        num_threads: For the kernels.
        outputs: Number of outputs that the node names.
        name: Of the node, or of its first output if it has none.
    """

    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any]
    num_threads: int | None
    outputs: int = 1
    name: str = ""

    def arrays(self, count: int) -> list[Any]:
        """The inputs, absent ones at the end filled up with None; those that are required are never None."""
        return [*self.inputs, *(None,) * (count - len(self.inputs))]


def quantize_linear(call: Call) -> tuple[Array, ...]:
    """QuantizeLinear, equation (1)."""
    x, scale, zero_point = call.arrays(3)
    options = call.attributes
    output = options["output_dtype"]
    if output and zero_point is not None and BY_ONNX[output].numpy != zero_point.dtype:
        raise KernelError(f"output_dtype is {BY_ONNX[output].name} and y_zero_point {zero_point.dtype}; expected one.")
    y = kernels.quantize(
        x,
        scale,
        zero_point,
        axis=options["axis"],
        block_size=options["block_size"],
        output_dtype=BY_ONNX[output] if output and zero_point is None else None,
        saturate=bool(options["saturate"]),
        precision=_numpy(options["precision"]),
        num_threads=call.num_threads,
    )
    return (y,)


def dequantize_linear(call: Call) -> tuple[Array, ...]:
    """DequantizeLinear, equation (2)."""
    x, scale, zero_point = call.arrays(3)
    options = call.attributes
    y = kernels.dequantize(
        x,
        scale,
        zero_point,
        axis=options["axis"],
        block_size=options["block_size"],
        output_dtype=_numpy(options["output_dtype"]),
        num_threads=call.num_threads,
    )
    return (y,)


def dynamic_quantize_linear(call: Call) -> tuple[Array, ...]:
    """DynamicQuantizeLinear."""
    (x,) = call.arrays(1)
    return kernels.dynamic_quantize_linear(x, num_threads=call.num_threads)


def matmul_integer(call: Call) -> tuple[Array, ...]:
    """MatMulInteger, equation (3)."""
    return (kernels.matmul_integer(*call.arrays(4), num_threads=call.num_threads),)


def qlinear_matmul(call: Call) -> tuple[Array, ...]:
    """QLinearMatMul, equations (3) and (4); float8 operands by :func:`float8_matmul`."""
    operands = call.arrays(8)
    if any(operands[i].dtype.name.startswith("float8") for i in (0, 3, 7)):
        return (float8_matmul(*operands),)
    return (kernels.qlinear_matmul(*operands, num_threads=call.num_threads),)


def conv_integer(call: Call) -> tuple[Array, ...]:
    """ConvInteger."""
    return (kernels.conv_integer(*call.arrays(4), num_threads=call.num_threads, **call.attributes),)


def qlinear_conv(call: Call) -> tuple[Array, ...]:
    """QLinearConv."""
    return (kernels.qlinear_conv(*call.arrays(9), num_threads=call.num_threads, **call.attributes),)


def float8_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """QLinearMatMul where an operand or the result is float8.

    The document names no precision of the sum. Here products and their sum are float64 (exact as long as it spans no
    more than 53 bits), rounded once to float32, multiplied by the float32 factor of equation (4), and converted as
    QuantizeLinear does.

    Args:
        a: (..., M, K) or (K,), int8, uint8 or float8.
        a_scale: Scalar, (M,), or (..., M, 1).
        a_zero_point: The shape of ``a_scale``, the type of ``a``.
        b: (..., K, N) or (K,).
        b_scale: Scalar, (N,), or (..., 1, N).
        b_zero_point: The shape of ``b_scale``, the type of ``b``.
        y_scale: Scalar.
        y_zero_point: Scalar; its type is that of the result.

    Returns:
        The shape of ``numpy.matmul``, the type of ``y_zero_point``.
    """
    total = np.matmul(
        _decoded(a) - per_row(_decoded(a_zero_point)), _decoded(b) - per_column(_decoded(b_zero_point))
    ).astype(np.float32)
    sa, sb = per_row(a_scale).astype(np.float32), per_column(b_scale).astype(np.float32)
    if b.ndim == 1 and sa.ndim:  # no column axis in the result
        sa = sa[..., 0]
    if a.ndim == 1 and sb.ndim > 1:  # no row axis
        sb = sb[..., 0, :]
    value = np.asarray(total * ((sa * sb) / y_scale.astype(np.float32).reshape(())), np.float32)
    return kernels.quantize(value, np.ones((), np.float32), y_zero_point.reshape(()))


def _decoded(codes: Array) -> Array:
    """The numbers that codes stand for, as float64."""
    return kernels.dequantize(codes, np.ones((), np.float32)).astype(np.float64)


def _numpy(number: int) -> np.dtype[Any] | None:
    """The numpy type of a TensorProto.DataType; None for 0, which says nothing."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return np.dtype(tensor_dtype_to_np_dtype(number)) if number else None
