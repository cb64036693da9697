from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.errors import KernelError
from tests.kernels.elementwise import BFLOAT16, E8M0, FLOATS, SPECIAL, floats
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

INF = np.inf
NAN = np.nan


def _values(seed: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4)
    x = np.where(rng.random(shape) < rng.choice([0, 0.1, 1]), rng.choice(SPECIAL, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype)


# min_max


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([], (0, 0, 0, 0, 0, INF, -INF)),
        ([1, -2, 3], (3, 0, 0, 0, 0, -2, 3)),
        ([NAN, INF, -INF, 0, -0.0, 5], (6, 1, 1, 1, 2, 0, 5)),
        ([NAN, INF, -INF], (3, 1, 1, 1, 0, INF, -INF)),
        ([-0.0, -3e38, 1e-45], (3, 0, 0, 0, 1, np.float32(-3e38), np.float32(1e-45))),
    ],
)
def test_min_max_table(x, expected):
    assert astuple(kernels.min_max(floats(*x))) == expected
    assert reference.min_max(floats(*x)) == expected


def test_min_max_counts_the_finite():
    assert kernels.min_max(floats(1, NAN, INF, -INF, 0)).finite == 2


def test_a_zero_has_no_sign_in_min_max():
    found = kernels.min_max(floats(-0.0))
    assert (np.signbit(found.min), np.signbit(found.max)) == (False, False)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), max_size=3), st.sampled_from(FLOATS), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_min_max_is_the_reference(seed, shape, dtype, threads):
    x = _values(seed, tuple(shape), dtype).T
    x.flags.writeable = False
    assert astuple(kernels.min_max(x, num_threads=threads)) == reference.min_max(x)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_min_max_of_more_than_a_task(threads):
    x = _values(3, (5, 50000), FLOATS[0])
    assert astuple(kernels.min_max(x, num_threads=threads)) == reference.min_max(x)


def _lengths() -> list[int]:
    """Every tail of a vector, and sizes around a block, a tile and a task."""
    return [*range(68), *(n + d for n in (1024, 4096, 32768) for d in (-1, 0, 1))]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_length_and_alignment(dtype):
    whole = _values(11, (65540,), dtype)
    finite = np.where(np.isfinite(whole.astype(np.float32)), whole, np.zeros(1, dtype)).astype(dtype)
    for n in _lengths():
        x = (whole if n % 2 else finite)[n % 3 : n % 3 + n]
        threads = 1 + (n % 5 == 0)
        assert astuple(kernels.min_max(x, num_threads=threads)) == reference.min_max(x)
        np.testing.assert_array_equal(kernels.absmax(x), reference.absmax(x))
        np.testing.assert_array_equal(kernels.abs_mean(x[None], 0), reference.abs_mean(x[None], 0))
        found = kernels.histogram(x, 128, 5, num_threads=threads)
        np.testing.assert_array_equal(found, reference.power_of_two_histogram(x, 128, 5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_views_and_unaligned_memory(dtype):
    whole = _values(12, (60, 70), dtype)
    memory = np.zeros(whole.nbytes + 1, np.uint8)
    unaligned = memory[1:].view(dtype).reshape(60, 70)
    unaligned[...] = whole
    for x in (unaligned, whole[::2, ::-3], whole.T, np.broadcast_to(whole[:1], (5, 70)), whole[3:, 7:]):
        assert astuple(kernels.min_max(x)) == reference.min_max(x)
        np.testing.assert_array_equal(kernels.histogram(x, 128, 3), reference.power_of_two_histogram(x, 128, 3))
        for axis in (0, 1):
            np.testing.assert_array_equal(kernels.absmax(x, axis), reference.absmax(x, axis))
            np.testing.assert_array_equal(kernels.abs_mean(x, axis), reference.abs_mean(x, axis))


def _patterns() -> list[np.ndarray]:
    n = 9000
    ramp = np.arange(1, n + 1, dtype=np.float32)
    subnormal = np.arange(n, dtype=np.uint32).view(np.float32)
    rare = np.ones(n, np.float32)
    rare[[0, 4095, 4096, n - 1]] = [NAN, INF, -INF, -NAN]
    alternating = np.where(np.arange(n) % 2, ramp, np.float32(0))
    all_equal = [np.full(n, v, np.float32) for v in (0.0, -0.0, 1.5, -1.5, 1e-45, -1e-45, NAN, -NAN, INF, -INF)]
    return [*all_equal, ramp, -ramp, alternating, -alternating, subnormal, -subnormal, rare, -rare]


@pytest.mark.parametrize("case", range(18))
@pytest.mark.parametrize("threads", [1, 2])
def test_one_sign_half_zeros_and_subnormals(case, threads):
    x = _patterns()[case]
    for y in (x, x.astype(np.float16), x.astype(BFLOAT16)):
        assert astuple(kernels.min_max(y, num_threads=threads)) == reference.min_max(y)
        exponent = int(np.frexp(max(1, np.abs(y[np.isfinite(y)].astype(np.float32)).max(initial=0)))[1])
        found = kernels.histogram(y, exponent, 11, num_threads=threads)
        np.testing.assert_array_equal(found, reference.power_of_two_histogram(y, exponent, 11))


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@np.errstate(invalid="ignore")  # NumPy warns of signalling NaNs
def test_every_half(dtype):
    x = np.arange(1 << 16).astype(np.uint16).view(dtype)
    for y in (x, x[::-1], x[:0x7C00], x[0x8000 : 0x8000 + 0x7C00]):
        assert astuple(kernels.min_max(y)) == reference.min_max(y)
    for bits in (1, 11, 16):
        np.testing.assert_array_equal(kernels.histogram(x, 128, bits), reference.power_of_two_histogram(x, 128, bits))
    low = x[np.abs(x.astype(np.float32)) < 2.0**-7]
    np.testing.assert_array_equal(kernels.histogram(low, -7, 16), reference.power_of_two_histogram(low, -7, 16))
    for axis in (0, 1):
        np.testing.assert_array_equal(
            kernels.abs_mean(x.reshape(256, 256), axis), reference.abs_mean(x.reshape(256, 256), axis)
        )


# absmax


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from(FLOATS),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_absmax_is_the_reference(seed, shape, dtype, threads, data):
    x = _values(seed, tuple(shape), dtype)
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    found = kernels.absmax(x, axis, num_threads=threads)
    expected = reference.absmax(x, axis)
    assert (found.shape, found.dtype) == (expected.shape, np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(3, 70000), (70000, 3), (2, 1500, 40), (100003,)])
@pytest.mark.parametrize("threads", [1, 3])
def test_absmax_of_much(shape, threads):
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    for axis in (None, *range(len(shape))):
        np.testing.assert_array_equal(kernels.absmax(x, axis, num_threads=threads), reference.absmax(x, axis))


def test_absmax_of_nothing_is_zero():
    assert kernels.absmax(np.zeros((0, 3), np.float32), 1).tolist() == [0, 0, 0]
    assert kernels.absmax(np.zeros((0, 3), np.float32), 0).tolist() == []
    assert kernels.absmax(np.zeros((0,), np.float32)).tolist() == 0


def test_absmax_shows_a_nan():
    np.testing.assert_array_equal(kernels.absmax(floats(1, NAN, -5)[:, None], 0), [1, NAN, 5])
    assert np.isnan(kernels.absmax(floats(1, NAN, INF)))


# abs_mean


@pytest.mark.parametrize("abs_mean", [kernels.abs_mean, reference.abs_mean], ids=["kernels", "reference"])
def test_abs_mean_table(abs_mean):
    x = floats(1, -2, 0, NAN, INF, -3, -0.0, 5, 1).reshape(3, 3)
    found = abs_mean(x, 0)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [1, NAN, 2])
    np.testing.assert_array_equal(abs_mean(x, -1), [NAN, INF, 4 / 3])
    assert abs_mean(np.zeros((0, 2), np.float32), 1).tolist() == [0, 0]
    assert abs_mean(np.zeros((2, 0), np.float32), 1).tolist() == []
    assert abs_mean(np.full((2, 1), 3.4e38, np.float32), 1).tolist() == [float(np.float32(3.4e38))]


def test_abs_mean_has_one_order_of_summation():
    # 2^53 swallows the two 1 of its own lane, added one at a time; those of the 15 other lanes arrive as 3, 6, 12 and
    # 24. 2^53 + 3 is a tie, which goes to 2^53 + 4.
    x = np.ones((1, 48), np.float32)
    x[0, 0] = 2.0**53
    assert kernels.abs_mean(x, 0)[0] == (2.0**53 + 46) / 48
    # Rows are added one after the other, and blocks of 1024 apart.
    x = np.ones((2048, 1), np.float32)
    x[0] = 2.0**53
    assert kernels.abs_mean(x, 1)[0] == (2.0**53 + 1024) / 2048


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda shape: np.prod(shape) < 20000),
    st.sampled_from(FLOATS),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_abs_mean_is_the_reference(seed, shape, dtype, threads, data):
    x = _values(seed, tuple(shape), dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    np.testing.assert_array_equal(kernels.abs_mean(x, axis, num_threads=threads), reference.abs_mean(x, axis))


@pytest.mark.parametrize("shape", [(3, 70000), (70000, 3), (2, 1500, 40), (2049, 30, 2), (100003,), (1, 3, 5000)])
def test_abs_mean_of_much(shape):
    x = np.random.default_rng(14).normal(size=shape).astype(np.float32)
    for y in (x, x.astype(BFLOAT16)):
        for axis in range(len(shape)):
            expected = reference.abs_mean(y, axis)
            for threads in (1, 2, 3):
                np.testing.assert_array_equal(kernels.abs_mean(y, axis, num_threads=threads), expected)


# histogram


@pytest.mark.parametrize("histogram", [kernels.histogram, reference.power_of_two_histogram])
def test_histogram_table(histogram):
    # exponent 1, 2 bits: width 1/2, range [-2, 2).
    x = floats(-2, -1.5, -1.4999999, -1e-45, -0.0, 0, 0.49999997, 0.5, 1.9999999, NAN, INF, -INF)
    assert histogram(x, 1, 2).tolist() == [1, 2, 0, 1, 3, 1, 0, 1]


@pytest.mark.parametrize("exponent", [-149, -100, 128])
def test_histogram_of_extreme_exponents(exponent):
    tiny = np.array([1, 0x80000001, 0], np.uint32).view(np.float32)  # the smallest subnormals
    x = tiny[2:] if exponent == -149 else tiny
    if exponent == 128:
        x = np.concatenate([x, floats(3.4e38, -3.4e38)])
    expected = reference.power_of_two_histogram(x, exponent, 11)
    np.testing.assert_array_equal(kernels.histogram(x, exponent, 11), expected)
    assert expected.sum() == x.size


@pytest.mark.parametrize("bits", [1, 2, 11, 12, 13, 14, 16])
def test_bin_edges_and_their_neighbours(bits):
    for exponent in range(-149, 129):
        index = np.unique(np.r_[-(1 << bits), -2:3, -(1 << bits - 1), 1 << bits - 1, (1 << bits) - 1])
        edges = np.ldexp(np.clip(index, -(1 << bits), (1 << bits) - 1).astype(np.float64), exponent - bits)
        with np.errstate(over="ignore", under="ignore"):
            near = edges.astype(np.float32)  # an edge finer than the subnormals rounds to one of them, or to zero
            x = np.concatenate([near, np.nextafter(near, np.float32(INF)), np.nextafter(near, np.float32(-INF))])
        wide = x.astype(np.float64)
        x = x[np.isfinite(x) & (wide >= -(2.0**exponent)) & (wide < 2.0**exponent)]
        found = kernels.histogram(x, exponent, bits)
        np.testing.assert_array_equal(found, reference.power_of_two_histogram(x, exponent, bits))


@pytest.mark.parametrize("exponent", range(-149, 129, 7))
def test_values_just_outside_are_counted(exponent):
    edge = np.ldexp(np.float64(1), exponent)
    with np.errstate(over="ignore"):
        above, below = np.float32(edge), np.nextafter(np.float32(-edge), np.float32(-INF))
    x = np.array([above, below, -edge, 0, NAN, INF, -INF] * 3, np.float32)
    outside = int((np.isfinite(x) & ((x >= edge) | (x < -edge))).sum())
    with pytest.raises(KernelError, match=f"^{outside} values of x"):
        kernels.histogram(x, exponent, 4)
    kept = x[~(np.isfinite(x) & ((x >= edge) | (x < -edge)))]
    np.testing.assert_array_equal(kernels.histogram(kept, exponent, 4), [3, *[0] * 15, 3, *[0] * 15])


@given(st.integers(0, 2**32 - 1), st.integers(-149, 128), st.integers(1, 16), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
@np.errstate(invalid="ignore")  # NumPy warns of signalling NaNs
def test_histogram_of_random_bits(seed, exponent, bits, threads):
    x = np.random.default_rng(seed).integers(0, 2**32, 3000, np.uint32).view(np.float32)
    wide = x.astype(np.float64)
    x = x[~(np.isfinite(x) & ((wide >= 2.0**exponent) | (wide < -(2.0**exponent))))]
    found = kernels.histogram(x, exponent, bits, num_threads=threads)
    np.testing.assert_array_equal(found, reference.power_of_two_histogram(x, exponent, bits))


@given(st.integers(0, 2**32 - 1), st.integers(0, 300), st.sampled_from(FLOATS), st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_histogram_is_the_reference(seed, size, dtype, bits, threads):
    x = _values(seed, (size,), dtype)
    largest = max(abs(v) for v in reference.min_max(x)[5:])
    exponent = min(int(np.frexp(largest)[1]), 128) if np.isfinite(largest) else 0
    found = kernels.histogram(x, exponent, bits, num_threads=threads)
    np.testing.assert_array_equal(found, reference.power_of_two_histogram(x, exponent, bits))


def test_histograms_add_up_and_coarsen():
    x = np.random.default_rng(5).normal(size=100000).astype(np.float32)
    whole = kernels.histogram(x, 3, 11)
    np.testing.assert_array_equal(whole, kernels.histogram(x[:33333], 3, 11) + kernels.histogram(x[33333:], 3, 11))
    coarse = kernels.histogram(x, 4, 11)
    np.testing.assert_array_equal(coarse[1024:3072], whole.reshape(-1, 2).sum(axis=1))
    assert coarse.sum() == whole.sum() == x.size


@pytest.mark.parametrize("threads", [1, 3])
def test_a_histogram_is_added_to_counts(threads):
    x = np.random.default_rng(6).normal(size=3000).astype(np.float32)
    counts = np.arange(16, dtype=np.int64)
    assert kernels.histogram(x, 3, 3, out=counts, num_threads=threads) is counts
    np.testing.assert_array_equal(counts - np.arange(16), kernels.histogram(x, 3, 3))


@pytest.mark.parametrize(
    "out",
    [np.zeros(15, np.int64), np.zeros(16, np.int32), np.zeros(32, np.int64)[::2], np.broadcast_to(np.int64(), 16)],
)
def test_counts_that_cannot_be_added_to_are_refused(out):
    with pytest.raises(KernelError, match=r"^out is .*; expected writable, contiguous int64\[16\]"):
        kernels.histogram(floats(1), 3, 3, out=out)


@pytest.mark.parametrize("x", [[2.0], [-2.0000002], [0, 1e30]])
def test_a_value_outside_the_histogram_is_an_error(x):
    with pytest.raises(KernelError, match=r"1 values of x lie outside \[-2\^1, 2\^1\)"):
        kernels.histogram(floats(*x), 1, 4)
    with pytest.raises(KernelError, match="Value outside"):
        reference.power_of_two_histogram(floats(*x), 1, 4)


# e8m0


@pytest.mark.parametrize(
    ("rounding", "saturate", "x", "expected"),
    [
        (
            "up",
            True,
            [0, 2**-127, 2**-128, 1, 1.0000001, 2, 3, 2**127, 3e38, INF, NAN],
            [0, 0, 0, 127, 128, 128, 129, 254, 254, 254, 255],
        ),
        ("down", True, [0, 1, 1.9999999, 2, 3.9999998, 3e38, INF, NAN], [0, 127, 127, 128, 128, 254, 254, 255]),
        (
            "nearest",
            True,
            [1, 1.4999999, 1.5, 2.9999998, 3, 2**-127 * 1.25, 2**-127 * 1.5, 3e38],
            [127, 127, 128, 128, 129, 0, 1, 254],
        ),
        ("nearest", False, [0, 1.5, INF, 2**-128, 2**-127, 2**127, 3e38, NAN], [255, 128, 255, 255, 0, 254, 255, 255]),
    ],
)
@pytest.mark.parametrize("convert", [kernels.to_e8m0, reference.to_e8m0], ids=["kernels", "reference"])
def test_to_e8m0_table(convert, rounding, saturate, x, expected):
    found = convert(floats(*x), rounding=rounding, saturate=saturate)
    assert found.dtype == E8M0
    assert found.view(np.uint8).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.sampled_from(["up", "down", "nearest"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_to_e8m0_is_the_reference(seed, rounding, saturate):
    x = np.random.default_rng(seed).integers(0, 0x7F800001, 200).astype(np.uint32).view(np.float32)
    options = {"rounding": rounding, "saturate": saturate}
    np.testing.assert_array_equal(
        kernels.to_e8m0(x, **options).view(np.uint8), reference.to_e8m0(x, **options).view(np.uint8)
    )


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_all_e8m0_codes_round_trip(rounding):
    codes = np.arange(256).astype(np.uint8).view(E8M0)
    values = kernels.from_e8m0(codes)
    np.testing.assert_array_equal(values, codes.astype(np.float32))
    np.testing.assert_array_equal(kernels.to_e8m0(values, rounding=rounding).view(np.uint8), np.arange(256))


# errors


@pytest.mark.parametrize("call", [kernels.min_max, kernels.absmax, lambda x: kernels.histogram(x, 0, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_unknown_types(call, dtype):
    with pytest.raises(KernelError, match=f"x has type {np.dtype(dtype).name}; expected float32, float16, bfloat16"):
        call(np.zeros(3, dtype))


def test_bad_arguments():
    with pytest.raises(KernelError, match="Axis 1 is out of range"):
        kernels.absmax(floats(1), 1)
    with pytest.raises(KernelError, match="exponent is 200 and bits is 4; expected"):
        kernels.histogram(floats(1), 200, 4)
    with pytest.raises(KernelError, match="x has a negative value, -1; expected none"):
        kernels.to_e8m0(floats(-1))
    with pytest.raises(KernelError, match="Value below zero"):
        reference.to_e8m0(floats(-1))
    with pytest.raises(KernelError, match="rounding is 'odd'; expected up, down or nearest"):
        kernels.to_e8m0(floats(1), rounding="odd")
    with pytest.raises(KernelError, match="x has type bfloat16; expected float32"):
        kernels.to_e8m0(np.ones(1, BFLOAT16))


# observe: all of it in one pass


def _widest(x: np.ndarray) -> int:
    finite = np.abs(x[np.isfinite(x)].astype(np.float64))
    return int(np.frexp(finite.max())[1]) if finite.any() else -149


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.sampled_from([-20, 0, 128]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_observe_is_the_reference(seed, shape, exponent, finite, data):
    x = _values(seed, tuple(shape), FLOATS[0])
    x = np.where(np.isfinite(x), x, np.float32(0)) if finite else x
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    counts = np.zeros(2 << 6, np.int64) if data.draw(st.booleans()) else None
    seen = kernels.observe(x, axis, exponent, 6, counts)
    assert astuple(seen.values) == reference.min_max(x)
    if axis is None or not np.isfinite(x).all():
        assert seen.absmax is None
    else:
        np.testing.assert_array_equal(seen.absmax, reference.absmax(x, axis))
    if counts is not None:
        assert seen.exponent == max(exponent, _widest(x))
        np.testing.assert_array_equal(counts, reference.power_of_two_histogram(x, seen.exponent, 6))


@pytest.mark.parametrize(
    "shape", [(2, 3, 7000), (3, 70000), (70000, 3), (1, 20, 4096), (2, 1500, 40), (100003,), (5, 300, 7, 7), (9, 5000)]
)
def test_observe_of_much(shape):
    x = np.where(np.isfinite(_values(17, shape, FLOATS[0])), _values(17, shape, FLOATS[0]), np.float32(1))
    for axis in range(x.ndim):
        counts = np.zeros(2 << 12, np.int64)
        seen = kernels.observe(x, axis, -64, 12, counts)
        assert astuple(seen.values) == reference.min_max(x)
        np.testing.assert_array_equal(seen.absmax, reference.absmax(x, axis))
        np.testing.assert_array_equal(counts, reference.power_of_two_histogram(x, _widest(x), 12))


def test_observe_adds_and_widens_in_any_order():
    random = np.random.default_rng(21)
    parts = [np.float32(10.0**n) * random.standard_normal(3000, np.float32) for n in (-3, 2, 0)]
    results = []
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        counts, exponent = np.zeros(2 << 12, np.int64), -64
        for n in order:
            exponent = kernels.observe(parts[n], None, exponent, 12, counts).exponent
        results.append((exponent, counts.tolist()))
    whole = reference.power_of_two_histogram(np.concatenate(parts), results[0][0], 12)
    assert results == [(results[0][0], whole.tolist())] * 3


@pytest.mark.parametrize("block", [2, 8, 16])
@pytest.mark.parametrize(("parts", "channels", "side"), [(1, 24, 1), (2, 40, 3), (1, 3, 40), (3, 16, 20), (1, 8, 90)])
def test_observe_of_channels_in_blocks_is_that_of_channels(block, parts, channels, side):
    random = np.random.default_rng(channels)
    x = random.standard_normal((parts, channels, side, side), np.float32) * np.float32(3)
    x[:, ::3] = np.maximum(x[:, ::3], 0)
    blocked = np.full((parts, -(-channels // block), side, side, block), 1e9, np.float32)  # no value, and never seen
    for channel in range(channels):
        blocked[:, channel // block, :, :, channel % block] = x[:, channel]
    counts, other = np.zeros(2 << 12, np.int64), np.zeros(2 << 12, np.int64)
    todo = [
        kernels.Observation(blocked, None, -64, counts, parts, channels),
        kernels.Observation(x, 1, -64, None, parts),
        kernels.Observation(x[:0], 1, -64, other),
        kernels.Observation(x, None, -64, other, parts),
    ]
    for seen, axis in zip(kernels.observe_all(todo, 12), (1, 1, None, None), strict=True):
        if seen.values.count == 0:
            assert astuple(seen.values) == reference.min_max(x[:0])
            continue
        assert astuple(seen.values) == reference.min_max(x)
        assert seen.ranges == [(float(part.min()), float(part.max())) for part in x]
        if axis is not None:
            np.testing.assert_array_equal(seen.absmax, reference.absmax(x, axis))
    expected = reference.power_of_two_histogram(x, _widest(x), 12)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(other, expected)


def test_observe_does_not_say_the_maxima_of_channels_beside_what_is_not_finite():
    x = np.ones((1, 2, 4, 4, 8), np.float32)
    x[0, 1, 2, 3, 4] = np.inf  # of channel 12
    assert kernels.observe_all([kernels.Observation(x, None, 0, None, 1, 12)], 12)[0].absmax.tolist() == [1.0] * 12
    seen = kernels.observe_all([kernels.Observation(x, None, 0, None, 1, 13)], 12)[0]
    assert (seen.absmax, seen.values.pos_inf, seen.values.count, seen.ranges) == (None, 1, 13 * 16, [(1.0, 1.0)])
    nothing = kernels.observe_all([kernels.Observation(x[..., 4:5, :] * np.nan, None, 0, None, 1, 9)], 12)
    assert nothing[0].ranges == [(np.inf, -np.inf)]


def test_observe_refuses_what_it_would_read_wrongly():
    x = np.ones((4, 6), np.float32)
    for bad in (x.T, x.astype(np.float16), x[:, ::2]):
        assert not kernels.observable(bad)
        with pytest.raises(KernelError, match="expected contiguous float32"):
            kernels.observe(bad, None, 0, 12, None)
    with pytest.raises(KernelError, match="axis is 2; expected an axis of an array of rank 2"):
        kernels.observe(x, 2, 0, 12, None)
    with pytest.raises(KernelError, match="exponent is -127 and bits is 12"):
        kernels.observe(x, None, -127, 12, None)
    with pytest.raises(KernelError, match=r"expected writable, contiguous int64\[8192\]"):
        kernels.observe(x, None, 0, 12, np.zeros(4096, np.int64))
    with pytest.raises(KernelError, match=r"\[4, 6\]; expected 3 equal parts along its first axis"):
        kernels.observe_all([kernels.Observation(x, None, 0, None, 3)], 12)
    for shape, channels in (((1, 2, 5, 8), 17), ((1, 2, 5, 8), 8), ((2, 2, 8), 16), ((1, 16), 16)):
        with pytest.raises(KernelError, match=f"expected 1 parts of {channels} channels in blocks"):
            kernels.observe_all([kernels.Observation(np.ones(shape, np.float32), None, 0, None, 1, channels)], 12)


def _zeros_for_subnormals(on: bool) -> bool:
    """Switch the processor's mode that reads subnormals as zeros, for this thread; False where that cannot be done."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return False
    libm = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()  # fenv_t; the last word is MXCSR
    assert libm.fegetenv(state) == 0
    state[7] = state[7] | 0x40 if on else state[7] & ~0x40
    assert libm.fesetenv(state) == 0
    return True


def test_subnormals_are_counted_whatever_the_mode_of_the_processor():
    x = np.array([0x80000001, 0x807FFFFF, 1, 0, 0x80000000] * 50, np.uint32).view(np.float32)
    counts = np.zeros(2 << 12, np.int64)
    if not _zeros_for_subnormals(True):
        pytest.skip("this test knows how to switch the mode with glibc on x86-64 only")
    try:
        kernels.histogram(x, 0, 12, out=counts, num_threads=1)
    finally:
        _zeros_for_subnormals(False)
    assert counts[4094:4098].tolist() == [0, 100, 150, 0]


@pytest.mark.parametrize("bits", [1, 2, 12, 13])
def test_full_lanes_are_emptied_and_left_empty(bits):
    # More than 4 * 65535 equal elements, then a mixture, into the counters that the thread keeps.
    x = np.full(300_001, 0.75, np.float32)
    mixed = np.tile(np.array([0.75, -0.75, 0.75, 0.5, -1.0], np.float32), 70_000)
    for y in (x, mixed, x[:3], mixed[:1003]):
        expected = reference.power_of_two_histogram(y, 0, bits)
        for _ in range(2):
            np.testing.assert_array_equal(kernels.histogram(y, 0, bits, num_threads=1), expected)
