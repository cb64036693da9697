"""Operands of integer products and convolutions and their parameters, checked and in the form that the core takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from qtool.errors import KernelError

Array = npt.NDArray[Any]


class Like(NamedTuple):
    """What the parameters of an operand must agree with."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def operand(name: str, value: Array) -> tuple[Array, bool]:
    """An 8-bit integer operand and whether it is signed."""
    value = np.asarray(value)
    char = value.dtype.char
    if char in "bB":
        return value, char == "b"
    if value.dtype.name.startswith("float8"):
        raise KernelError(
            f"'{name}' has type {value.dtype}; the integer kernels take int8 and uint8.",
            hint="The spec engine computes QLinearMatMul of float8 operands.",
        )
    raise KernelError(f"'{name}' has type {value.dtype}; expected int8 or uint8.")


def parameter(name: str, value: Array, shape: tuple[int, ...], along: int | None) -> Array:
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


def zero_point_of(name: str, value: Array | None, of: str, operand: Array | Like, along: int | None) -> Array:
    """A zero point as int32, in the shape of :func:`parameter`."""
    if value is None:
        return np.zeros((), np.int32)
    value = np.asarray(value)
    if value.dtype != operand.dtype:
        raise KernelError(f"'{name}' has type {value.dtype}; expected {operand.dtype}, the type of '{of}'.")
    return parameter(name, value, operand.shape, along).astype(np.int32)


def scale_of(name: str, value: Array, shape: tuple[int, ...], along: int | None) -> NDArray[np.float32]:
    """A scale as float32, in the shape of :func:`parameter`. float16 and bfloat16 are widened, which is exact."""
    value = np.asarray(value)
    if value.dtype == np.float32:  # the usual type; the name of a type takes microseconds to build
        return parameter(name, value, shape, along)
    if value.dtype.name not in ("float16", "bfloat16"):
        raise KernelError(f"'{name}' has type {value.dtype}; expected float32, float16 or bfloat16.")
    return parameter(name, value, shape, along).astype(np.float32)


def require_same_shape(name: str, scale: Array, zero_point: Array) -> None:
    """Refuse a scale and a zero point of different shapes; one element is one element, whatever its rank."""
    if type(scale) is np.ndarray and type(zero_point) is np.ndarray and scale.shape == zero_point.shape:
        return
    s, z = np.asarray(scale), np.asarray(zero_point)
    if s.shape != z.shape and (s.size, z.size) != (1, 1):
        raise KernelError(
            f"'{name}scale_of' has shape {s.shape} and '{name}zero_point_of' {z.shape}; expected the same shape."
        )


def output_type(y_zero_point: Array) -> tuple[np.dtype[Any], int, bool]:
    """The type of the result, its zero point, and whether the type is signed."""
    value, signed = operand("y_zero_point", y_zero_point)
    if value.ndim == 0:
        return value.dtype, int(value), signed
    return value.dtype, int(parameter("y_zero_point", value, (), None)), signed


def is_literal(form: str) -> bool:
    """Which form of equation (4) is meant; any other word is refused."""
    if form not in ("multiplier", "literal"):
        raise KernelError(f"form is {form!r}; expected 'multiplier' or 'literal'.")
    return form == "literal"


def one_code(value: Any, char: str) -> int | None:
    """A zero point that is one value of the right type, or None."""
    # the exact type first: it is what comes, and isinstance() of two classes takes as long as the rest
    if (type(value) is np.ndarray or isinstance(value, (np.generic, np.ndarray))) and value.ndim == 0:
        return int(value) if value.dtype.char == char else None
    return None


def codes_of(value: Any, char: str, n: int) -> int | Array | None:
    """The same, or a vector of ``n`` such values as int32."""
    if type(value) is np.ndarray and value.ndim == 1 and value.shape[0] == n != 1 and value.dtype.char == char:
        return value.astype(np.int32)
    return one_code(value, char)
