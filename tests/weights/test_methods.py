"""Weight methods: the table of decibels, brute force over their candidates, and blocks that break naive formulas."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import reference
from qtool.dtypes import qdtype
from qtool.granularity import PerAxis, PerBlock, PerTensor
from qtool.signal import signal_and_noise, sqnr_db
from qtool.weight_settings import SCALE_TYPES, WEIGHT_ONLY_DTYPES
from qtool.weights import METHODS, blocks, choose_parameters, codes_of, error_energies, method_for, restored
from qtool.weights.absmax import asymmetric
from qtool.weights.method import Target

F32 = np.dtype(np.float32)
E8M0 = qdtype("float8e8m0")


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decibels(array, dtype, granularity, scale_type=None) -> float:
    params = choose_parameters(array, qdtype(dtype), granularity, scale_type=scale_type)
    return sqnr_db(array, restored(codes_of(array, params), params))


# The table of low-bit formats on Gaussian weights; the grids with a search are at least as good as their row.
@pytest.mark.parametrize(
    ("dtype", "granularity", "scale_type", "expected"),
    [
        ("int8", PerAxis(1), None, 42.1),
        ("int4", PerBlock(0, 32), None, 21.8),
        ("uint4", PerBlock(0, 32), None, 22.3),
        ("int4", PerBlock(0, 128), None, 20.3),
        ("int2", PerBlock(0, 32), None, 9.6),
        ("uint2", PerBlock(0, 32), None, 9.6),
        ("float8e4m3fn", PerAxis(1), None, 31.6),
        ("float8e5m2", PerAxis(1), None, 25.6),
        ("float4e2m1", PerBlock(0, 32), None, 21.0),
        ("float4e2m1", PerBlock(0, 32), E8M0, 19.0),
        ("float8e4m3fn", PerBlock(0, 32), E8M0, 31.5),
    ],
)
def test_decibels_on_gaussian_weights(dtype, granularity, scale_type, expected):
    assert decibels(gaussian(1024, 1024), dtype, granularity, scale_type) == pytest.approx(expected, abs=0.06)


def test_the_signed_grid_without_a_search_has_the_decibels_of_its_row():
    """21.3 dB: the largest magnitude of each block at -8, nothing else."""
    array = gaussian(32, 1 << 15)
    largest = np.take_along_axis(array, np.abs(array).argmax(axis=0)[None], axis=0)
    scale = largest / np.float32(-8)
    plain = np.clip(np.rint(array / scale), -8, 7) * scale
    assert sqnr_db(array, plain) == pytest.approx(21.3, abs=0.05)
    assert decibels(array, "int4", PerBlock(0, 32)) > sqnr_db(array, plain) + 0.4


def test_exactly_one_method_applies_to_each_pair_of_types():
    for name, scale in itertools.product(WEIGHT_ONLY_DTYPES, (None, *SCALE_TYPES)):
        dtype = qdtype(name)
        if scale is not None and dtype.kind != "float":
            continue
        for storage in (F32, np.dtype(np.float16)) if scale is None else (qdtype(scale).numpy,):
            assert sum(method.applies(Target(dtype, storage)) for method in METHODS) == 1


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_the_extra_code_takes_the_largest_magnitude_whatever_its_sign(dtype):
    low = qdtype(dtype).qmin
    for largest in (8.0, -8.0):
        column = np.array([[largest], [0.5], [0.0], [-0.25]], np.float32)
        params = choose_parameters(column, qdtype(dtype), PerBlock(0, 4))
        assert float(codes_of(column, params)[0, 0]) == low
        assert np.sign(params.scale[0, 0]) == np.sign(largest) * np.sign(low)


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_signed_search_against_brute_force(dtype):
    """No worse than the best of a much finer grid of scales of both signs, but for 2 % of the error."""
    kind = qdtype(dtype)
    array = np.random.default_rng(1).laplace(size=(16, 40)).astype(np.float32)
    params = choose_parameters(array, kind, PerBlock(0, 16))
    mine = ((array - restored(codes_of(array, params), params)) ** 2).sum(axis=0)
    best = np.full(array.shape[1], np.inf)
    for end, factor in itertools.product((kind.qmin, kind.qmax), np.linspace(0.3, 1.1, 161)):
        scale = np.take_along_axis(array, np.abs(array).argmax(axis=0)[None], axis=0) * np.float32(factor / end)
        y = np.clip(np.rint(array / scale), kind.qmin, kind.qmax) * scale
        best = np.minimum(best, ((array - y) ** 2).sum(axis=0))
    assert mine.sum() <= best.sum() * 1.02


@pytest.mark.parametrize("dtype", ["uint4", "uint2"])
def test_asymmetric_search_against_brute_force(dtype):
    kind = qdtype(dtype)
    array = (np.random.default_rng(2).standard_normal((16, 24)) + 0.4).astype(np.float32)
    params = choose_parameters(array, kind, PerBlock(0, 16))
    mine = ((array - restored(codes_of(array, params), params)) ** 2).sum(axis=0)
    span = (np.maximum(array.max(axis=0), 0) - np.minimum(array.min(axis=0), 0)) / kind.qmax
    best = np.full(array.shape[1], np.inf)
    for factor, zero in itertools.product(np.linspace(0.3, 1.2, 91), range(int(kind.qmax) + 1)):
        scale = (span * factor).astype(np.float32)
        y = (np.clip(np.rint(array / scale) + zero, 0, kind.qmax) - zero) * scale
        best = np.minimum(best, ((array - y) ** 2).sum(axis=0))
    assert mine.sum() <= best.sum() * 1.03


@pytest.mark.parametrize("dtype", ["float4e2m1", "float8e4m3fn", "float8e5m2"])
def test_powers_of_two_against_brute_force(dtype):
    """The best of all powers of two for float4; for float8 the best of the three that are tried."""
    kind = qdtype(dtype)
    array = gaussian(32, 50, seed=3) * np.float32(0.02)
    params = choose_parameters(array, kind, PerBlock(0, 32), scale_type=E8M0)
    assert params.scale.dtype == ml_dtypes.float8_e8m0fnu
    mine = ((array - restored(codes_of(array, params), params)) ** 2).sum(axis=0)
    amax = np.abs(array).max(axis=0)
    middle = np.floor(np.log2(amax)) - np.floor(np.log2(kind.qmax))
    offsets = range(-8, 9) if kind.bits == 4 else (-1, 0, 1)
    best = np.full(array.shape[1], np.inf)
    for offset in offsets:
        scale = np.exp2(middle + offset).astype(np.float32)
        codes = reference.quantize_linear(array, scale, axis=1, output_dtype=kind)
        y = reference.dequantize_linear(codes, scale, axis=1)
        best = np.minimum(best, ((array - y) ** 2).sum(axis=0))
    np.testing.assert_allclose(mine, best, rtol=1e-5)


def test_float8_scale_is_absmax_over_the_largest_value():
    """C13: absmax 1000 -> 2.2321, and the top code is worth 1000."""
    array = np.array([[1000.0, -3.0], [10.0, 0.5]], np.float32)
    params = choose_parameters(array, qdtype("float8e4m3fn"), PerTensor())
    assert float(params.scale) == pytest.approx(1000 / 448, rel=1e-6)
    assert restored(codes_of(array, params), params)[0, 0] == pytest.approx(1000.0, rel=1e-6)


def test_8_bits_keep_to_the_symmetric_range_and_unsigned_zero_is_exact():
    array = np.array([[-4.0, 2.0], [1.0, 6.0]], np.float32)
    params = choose_parameters(array, qdtype("int8"), PerAxis(1))
    np.testing.assert_array_equal(params.scale, np.array([4 / 127, 6 / 127], np.float32))
    np.testing.assert_array_equal(codes_of(array, params), [[-127, 42], [32, 127]])
    params = choose_parameters(array, qdtype("uint8"), PerAxis(1))
    np.testing.assert_array_equal(params.zero_point, [204, 0])
    np.testing.assert_array_equal(restored(codes_of(np.zeros_like(array), params), params), 0)


@pytest.mark.parametrize("dtype", WEIGHT_ONLY_DTYPES)
@pytest.mark.parametrize("storage", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_degenerate_blocks(dtype, storage):
    """C06: zeros stay zeros under scale 1; tiny and huge values give finite, normal scales and finite results."""
    kind, granularity = qdtype(dtype), PerBlock(0, 4)
    info = ml_dtypes.finfo(storage)
    largest, tiny = float(info.max), float(info.tiny)
    columns = [[0.0] * 4, [largest, -largest, 0, largest / 3], [tiny / 4, 0, -tiny / 4, 0], [3.0] * 4, [-2.0] * 4]
    array = np.array(columns, np.float64).T.astype(storage)
    params = choose_parameters(array, kind, granularity)
    assert params.scale.dtype == storage
    scale = params.scale.astype(np.float64)
    assert np.isfinite(scale).all()
    assert (np.abs(scale) >= tiny).all()
    assert scale[0, 0] == 1.0
    y = restored(codes_of(array, params), params)
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(y[:, 0], 0)
    # one value repeated is the easiest block there is
    tolerance = {2: 1e-2, 4: 1e-2, 8: 1e-1}[kind.bits] if storage != np.float32 else 1e-1
    np.testing.assert_allclose(y[:, 3:], array[:, 3:].astype(np.float32), rtol=tolerance)


@given(st.integers(0, 2**32 - 1), st.sampled_from(WEIGHT_ONLY_DTYPES), st.integers(1, 9), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_codes_are_nearest_and_columns_independent(seed, dtype, block, width):
    """Codes equal those of the oracle; parameters of a block do not depend on which others there are."""
    array = np.random.default_rng(seed).standard_normal((13, width)).astype(np.float32)
    kind, granularity = qdtype(dtype), PerBlock(0, block)
    params = choose_parameters(array, kind, granularity)
    codes = codes_of(array, params)
    expected = reference.quantize_linear(array, params.scale, params.zero_point, axis=0, block_size=block)
    np.testing.assert_array_equal(codes.view(np.uint8), expected.view(np.uint8))
    one = choose_parameters(array[:, -1:], kind, granularity)
    np.testing.assert_array_equal(one.scale[:, 0], params.scale[:, -1])
    np.testing.assert_array_equal(one.zero_point[:, 0].view(np.uint8), params.zero_point[:, -1].view(np.uint8))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4e2m1", "int8"])
def test_neither_chunks_nor_threads_change_a_bit(dtype, monkeypatch):
    array = gaussian(70, 33)
    whole = choose_parameters(array, qdtype(dtype), PerBlock(0, 32))
    monkeypatch.setattr(blocks, "_CHUNK", 96)
    for threads in (1, 3):
        assert choose_parameters(array, qdtype(dtype), PerBlock(0, 32), num_threads=threads) == whole


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_error_energies_are_those_of_the_decibels(dtype):
    array, other = gaussian(300, 301).astype(dtype), gaussian(300, 301, seed=5)
    np.testing.assert_allclose(error_energies(array, other), signal_and_noise(array, other), rtol=1e-12)
    assert error_energies(array[:0], other[:0]) == (0.0, 0.0)


def test_rounded_scales_are_what_is_searched():
    """Half-precision scales: the error that was minimized is the one of the scale that is stored."""
    array = gaussian(64, 64).astype(np.float16)
    params = choose_parameters(array, qdtype("int4"), PerBlock(0, 32))
    target = Target(qdtype("int4"), np.dtype(np.float16))
    scale, _ = method_for(target).choose(np.ascontiguousarray(array[:32], np.float32), target)
    np.testing.assert_array_equal(scale.astype(np.float16).astype(np.float32), scale)
    np.testing.assert_array_equal(params.scale[0], scale.astype(np.float16))


def test_asymmetric_zero_point_follows_from_the_rounded_scale():
    columns = np.array([[-0.3], [1.2]], np.float32)
    target = Target(qdtype("uint4"), np.dtype(np.float16))
    scale, zero = asymmetric(columns, target)
    assert scale[0] == np.float32(np.float16(0.1))
    assert zero[0] == 3
