"""Ranges to scales and zero points: the tables of the numerics document, guards, and what must hold for any range."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.dtypes import QDTYPES, qdtype
from qtool.granularity import PerAxis, PerTensor
from qtool.qparams import QParams, activation_qparams, symmetric_qparams

INTEGERS = [name for name, row in QDTYPES.items() if row.is_integer]
TINY = float(np.finfo(np.float32).tiny)


def pair(params: QParams) -> tuple[float, int]:
    return float(params.scale), int(params.zero_point)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [(2, 10, 10 / 255, 0), (-4, -1, 4 / 255, 255), (5, 5, 5 / 255, 0), (0, 0, 1, 0), (-1, 3, 4 / 255, 64)],
)
def test_c05_uint8_ranges_include_zero(low, high, scale, zero):
    assert pair(activation_qparams(low, high, qdtype("uint8"))) == (float(np.float32(scale)), zero)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [(2, 10, 10 / 255, -128), (-4, -1, 4 / 255, 127), (5, 5, 5 / 255, -128), (0, 0, 1, -128), (-1, 3, 4 / 255, -64)],
)
def test_c05_int8_ranges_include_zero(low, high, scale, zero):
    assert pair(activation_qparams(low, high, qdtype("int8"))) == (float(np.float32(scale)), zero)


def test_c06_a_zero_column_has_scale_one_and_codes_zero():
    w = np.array([[1.0, 0.0], [-2.0, 0.0]], np.float32)
    params = symmetric_qparams(w.min(0), w.max(0), qdtype("int8"), granularity=PerAxis(1))
    assert params.scale.tolist() == [float(np.float32(2 / 127)), 1.0]
    assert kernels.quantize(w, params.scale, params.zero_point, axis=1).tolist() == [[64, 0], [-127, 0]]


@pytest.mark.parametrize("storage", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("size", [1e-6, 1e-38, 1e-44, 5e-324])
def test_c06_a_scale_does_not_underflow_in_its_storage_type(storage, size):
    tiny = float(ml_dtypes.finfo(storage).tiny)
    params = symmetric_qparams(np.array([-size]), np.array([size]), qdtype("int8"), storage=storage)
    assert params.scale.dtype == np.dtype(storage)
    assert float(params.scale[0]) >= tiny
    assert float(activation_qparams(0, size, qdtype("uint8"), storage=storage).scale) >= tiny


@pytest.mark.parametrize("name", INTEGERS)
def test_a_huge_range_keeps_a_finite_scale_and_finite_values(name):
    largest = np.finfo(np.float32).max
    for low, high in ((-largest, largest), (-largest, 0.0), (0.0, largest)):
        params = activation_qparams(low, high, qdtype(name))
        assert np.isfinite(params.scale)
        codes = kernels.quantize(np.array([low, high], np.float32), params.scale, params.zero_point)
        assert np.isfinite(kernels.dequantize(codes, params.scale, params.zero_point)).all()


@pytest.mark.parametrize(("name", "zero"), [("int8", 0), ("uint8", 128), ("int16", 0), ("uint16", 32768)])
@pytest.mark.parametrize("extremes", [(-3.0, 3.0), (-3.0000002, 3.0), (0.0, 1.0), (-1e-3, 7.0), (0.0, 0.0)])
def test_c07_symmetric_zero_points_are_constants(name, zero, extremes):
    params = activation_qparams(*extremes, qdtype(name), symmetric=True)
    assert int(params.zero_point) == zero
    assert params.zero_point.dtype == qdtype(name).numpy


def test_symmetric_8_bits_give_up_one_code():
    assert pair(activation_qparams(-3, 3, qdtype("int8"), symmetric=True)) == (float(np.float32(3 / 127)), 0)
    assert pair(activation_qparams(-3, 3, qdtype("uint8"), symmetric=True)) == (float(np.float32(3 / 127)), 128)
    assert pair(activation_qparams(-3, 3, qdtype("int16"), symmetric=True)) == (float(np.float32(3 / 32767)), 0)


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(-8, 7, 1.0), (-8, 3, 1.0), (-1, 7, 1.0), (-7, 7, 1.0), (-16, 7, 2.0), (0, 3.5, 0.5), (-4, 0, 0.5)],
)
def test_int4_uses_all_its_codes_and_clips_neither_end(low, high, scale):
    params = symmetric_qparams(np.array(low), np.array(high), qdtype("int4"))
    assert pair(params) == (scale, 0)
    x = np.array([low, high], np.float32)
    codes = kernels.quantize(x, params.scale, params.zero_point)
    assert np.abs(codes.astype(np.float32) * np.float32(scale) - x).max() <= scale / 2


def test_uint4_and_uint2_symmetric_zero_points():
    assert pair(symmetric_qparams(np.array(-8.0), np.array(7.0), qdtype("uint4"))) == (1.0, 8)
    assert pair(symmetric_qparams(np.array(-2.0), np.array(1.0), qdtype("uint2"))) == (1.0, 2)


def test_c13_scale_of_a_float8_weight():
    params = symmetric_qparams(np.array(-1000.0), np.array(7.0), qdtype("float8e4m3fn"))
    assert float(params.scale) == float(np.float32(1000 / 448))
    codes = kernels.quantize(np.array([-1000.0, 1000.0], np.float32), params.scale, params.zero_point)
    values = kernels.dequantize(codes, params.scale, params.zero_point)
    np.testing.assert_allclose(values, [-1000, 1000], rtol=1e-6)
    e5m2 = symmetric_qparams(np.array(-1000.0), np.array(7.0), qdtype("float8e5m2"))
    assert float(e5m2.scale) == float(np.float32(1000 / 57344))


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1), (0, np.inf), (-np.inf, 0), (1, 0)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(ValueError, match="is not a finite range"):
        activation_qparams(low, high, qdtype("uint8"))


def test_equality_and_hash_are_about_values():
    one = activation_qparams(-1, 1, qdtype("uint8"))
    same = activation_qparams(-1, 1, qdtype("uint8"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != activation_qparams(-1, 1.5, qdtype("uint8"))
    assert one != activation_qparams(-1, 1, qdtype("int8"))
    assert one.range == (-127 * float(one.scale), 128 * float(one.scale))


magnitudes = st.floats(0, 2.0**100, width=32)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(INTEGERS), low=magnitudes, high=magnitudes, symmetric=st.booleans(), part=st.floats(0, 1))
def test_any_range(name, low, high, symmetric, part):
    """0 is exact, the scale is a finite normal number, and values inside the range are off by half a step."""
    dtype = qdtype(name)
    params = activation_qparams(-low, high, dtype, symmetric=symmetric)
    scale, zero = pair(params)
    assert params.granularity == PerTensor()
    assert TINY <= scale < np.inf
    assert dtype.qmin <= zero <= dtype.qmax
    x = np.array([-low, high, 0.0, -low + part * (low + high)], np.float32)
    codes = kernels.quantize(x, params.scale, params.zero_point)
    y = kernels.dequantize(codes, params.scale, params.zero_point)
    assert y[2] == 0.0
    # the ends of an asymmetric range may clip by the half step that rounding the zero point moved them
    steps = 0.5 if symmetric else 1.0
    slack = steps * scale * (1 + 1e-5) + 3e-7 * max(low, high)
    assert np.abs(y.astype(np.float64) - x).max() <= slack
    if low == 0 or high == 0:
        assert np.abs(y.astype(np.float64) - x).max() <= scale / 2 * (1 + 1e-5) + 3e-7 * max(low, high)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(INTEGERS),
    values=st.lists(st.floats(-(2.0**33), 2.0**33, width=32), min_size=1, max_size=6),
)
def test_any_weight_channel(name, values):
    w = np.array([values, [0.0] * len(values)], np.float32)
    dtype = qdtype(name)
    params = symmetric_qparams(w.min(1), w.max(1), dtype, granularity=PerAxis(0))
    assert (params.zero_point.astype(np.int64) == dtype.symmetric_zero_point).all()
    assert (params.scale >= TINY).all()
    assert params.scale[1] == 1.0
    codes = kernels.quantize(w, params.scale, params.zero_point, axis=0)
    y = kernels.dequantize(codes, params.scale, params.zero_point, axis=0).astype(np.float64)
    assert np.abs(y - w)[0].max() <= float(params.scale[0]) / 2 * (1 + 1e-5) + 3e-7 * np.abs(w).max()
    assert (y[1] == 0).all()
