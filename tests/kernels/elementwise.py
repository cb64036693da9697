"""What the tests of the elementwise kernels share: element types, random cases, and equality to the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from qtool.dtypes import QDTYPES, QDType

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
SOURCES = (*FLOATS, np.dtype(np.int32))
SCALES = (*FLOATS, E8M0)
TARGETS = tuple(t for t in QDTYPES.values() if t.kind != "exponent")
NARROW = tuple(t for t in TARGETS if t.bits <= 8)
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -3e38, 1e-45, 65504.0, 65520.0], np.float32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value).astype(dtype)


def all_codes(dtype: QDType) -> np.ndarray:
    """Every code of a type, in its storage type."""
    unsigned = np.uint16 if dtype.bits == 16 else np.uint8
    return np.arange(1 << dtype.bits).astype(unsigned).view(dtype.numpy)


def raw(x: np.ndarray) -> np.ndarray:
    """The bits of each element."""
    return np.ascontiguousarray(x).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[x.dtype.itemsize])


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Same shape, type and bits; of float results that are NaN in both, only that."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if found.dtype in FLOATS:
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), nan)
        found, expected = found[~nan], expected[~nan]
    np.testing.assert_array_equal(raw(found), raw(expected))


@dataclass(frozen=True)
class Case:
    """Arguments of a quantize call; ``zero_point`` None means that the type is in ``output_dtype``."""

    x: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None
    target: QDType
    axis: int
    block_size: int
    threads: int


@st.composite
def cases(draw: st.DrawFn, targets: tuple[QDType, ...] = TARGETS) -> Case:
    """Random shapes of rank 0 to 4, granularities, types and strides; values with ties, specials and subnormals."""
    target = draw(st.sampled_from(targets))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    axis, block, scale_shape = draw(st.integers(-len(shape), max(0, len(shape) - 1))), 0, ()
    granularity = draw(st.sampled_from(["tensor", "axis", "block"])) if shape else "tensor"
    if granularity == "axis":
        scale_shape = (shape[axis],)
    elif granularity == "block":
        block = draw(st.integers(1, 10))
        at = axis % len(shape)
        scale_shape = tuple(-(-d // block) if i == at else d for i, d in enumerate(shape))
    scale = (rng.choice([1.0, 0.5, 0.1, 3.0, 1e-3, 700.0], scale_shape) * rng.choice([1, 1, 1.37], scale_shape)).astype(
        np.float32
    )
    zero_point = None
    if draw(st.booleans()):
        unsigned = np.uint16 if target.bits == 16 else np.uint8
        codes = np.asarray(rng.integers(0, 1 << target.bits, scale_shape), unsigned)
        zero_point = codes.view(target.numpy)
    x = _source(rng, shape, draw(st.sampled_from(SOURCES)))
    if x.ndim >= 2 and draw(st.booleans()):
        x = np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1)
    if draw(st.booleans()):
        x.flags.writeable = False
    with np.errstate(over="ignore"):
        scale = scale.astype(draw(st.sampled_from(SCALES)))
    return Case(x, scale, zero_point, target, axis, block, draw(st.integers(1, 4)))


def _source(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    size = math.prod(shape)
    if dtype == np.int32:
        wide = rng.integers(-(2**31), 2**31, size)
        return np.where(rng.random(size) < 0.5, wide, wide >> 22).astype(np.int32).reshape(shape)
    values = rng.normal(size=size) * 10.0 ** rng.integers(-5, 5)
    values = np.where(rng.random(size) < 0.3, np.rint(values * 2) / 2, values)
    values = np.where(rng.random(size) < 0.1, rng.choice(SPECIAL, size), values)
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(dtype).reshape(shape)
