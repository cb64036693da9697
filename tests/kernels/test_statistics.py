from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels, reference
from qtool.errors import KernelError
from tests.kernels.elementwise import BFLOAT16, E8M0, FLOATS, SPECIAL, floats

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
