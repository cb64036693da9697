"""DynamicQuantizeLinear: the tables of the ONNX documents, kernels == reference, onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool import kernels
from qtool.errors import KernelError
from tests.kernels.oracle import f32, run_ort
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

FLOATS = st.floats(width=32)  # NaN, infinities and subnormal numbers included
both = pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])


@both
@pytest.mark.parametrize(
    ("x", "scale", "zero", "codes"),
    [
        ([-127, 128, 0.5], 1, 127, [0, 255, 127]),
        ([-253, 257], 2, 126, [0, 254]),
        ([-1, -2.1, -1.3, -2.5, -3.34, -4], np.float32(4) / np.float32(255), 255, [191, 121, 172, 96, 42, 0]),
        ([1, 2.1, 1.3, 2.5, 3.34, 4], np.float32(4) / np.float32(255), 0, [64, 134, 83, 159, 213, 255]),
        ([0, 0, 0], 1, 0, [0, 0, 0]),  # a scale of 1, as in onnxruntime
        ([5, 5], np.float32(5) / np.float32(255), 0, [255, 255]),
        ([1e-45], 1, 0, [0]),  # the scale would underflow to 0
        ([np.nan, -127, 128], 1, 127, [0, 0, 255]),
        ([], 1, 0, []),
    ],
)
def test_tables(module: Any, x: list[float], scale: float, zero: int, codes: list[int]) -> None:
    y, s, z = module.dynamic_quantize_linear(f32(x))
    assert (y.dtype, s.dtype, z.dtype, s.shape, z.shape) == (np.uint8, np.float32, np.uint8, (), ())
    assert (y.tolist(), float(s), int(z)) == (codes, float(np.float32(scale)), zero)


def assert_same(x: np.ndarray, threads: int) -> None:
    for actual, expected in zip(
        kernels.dynamic_quantize_linear(x, num_threads=threads), reference.dynamic_quantize_linear(x), strict=True
    ):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40), elements=st.floats(width=32)
    ),
    st.integers(1, 4),
)
def test_property_over_all_floats(x: np.ndarray, threads: int) -> None:
    assert_same(x, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 100_003])
def test_lengths_and_threads(n: int, threads: int) -> None:
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    assert_same(x, threads)
    assert_same(x[::-3], threads)


def test_equals_onnxruntime() -> None:
    rng = np.random.default_rng(0)
    for low, high in [(-1, 1), (0, 10), (-3, 0.1), (2, 5), (-1e-20, 1e-20), (-1e30, 1e30), (0, 0)]:
        x = rng.uniform(low, high, (37, 29)).astype(np.float32)
        for actual, expected in zip(
            kernels.dynamic_quantize_linear(x), run_ort("DynamicQuantizeLinear", [x], 3), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)


def test_only_float32() -> None:
    with pytest.raises(KernelError, match="'x' has type float64; expected float32"):
        kernels.dynamic_quantize_linear(np.zeros(3))
