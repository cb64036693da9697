"""Products with saturating pairs: kernels == reference == a NumPy int16 model of vpmaddubsw, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.errors import ConfigError, KernelError
from tests.kernels.remembered import reference

pytestmark = [  # there are no rows for more
    pytest.mark.usefixtures("isa"),
    pytest.mark.parametrize("isa", ["scalar", "avx2"], indirect=True, scope="module"),
]

both = pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])


def vpmaddubsw(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The instruction on byte vectors of even length: int16, saturating."""
    products = a.astype(np.int32) * b.astype(np.int32)
    return np.clip(products[0::2] + products[1::2], -32768, 32767).astype(np.int16)


def model(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One row times one column at a time, by the instructions; and the saturating pairs of each column."""
    k = a.shape[1] + a.shape[1] % 2
    sums, counts = np.zeros((a.shape[0], b.shape[1]), np.int64), np.zeros(b.shape[1], np.int64)
    for i, j in np.ndindex(sums.shape):
        row, column = np.zeros(k, np.uint8), np.zeros(k, np.int8)
        row[: a.shape[1]], column[: b.shape[0]] = a[i], b[:, j]
        pairs = vpmaddubsw(row, column)
        exact = (row.astype(np.int32) * column).reshape(-1, 2).sum(axis=1)
        sums[i, j] = pairs.astype(np.int64).sum()
        counts[j] += np.count_nonzero(pairs != exact)
    return sums.astype(np.int32), counts


def codes(rng: np.random.Generator, m: int, k: int, n: int, extreme: bool = False) -> tuple[np.ndarray, np.ndarray]:
    if extreme:  # nearly every pair is at or beyond a bound
        return rng.choice(np.array([0, 1, 127, 128, 129, 254, 255], np.uint8), (m, k)), rng.choice(
            np.array([-128, -127, -64, 0, 63, 64, 127], np.int8), (k, n)
        )
    return rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)


@both
def test_case_63_full_weights_saturate_and_seven_bits_do_not(module: Any) -> None:
    a = np.full((1, 8), 255, np.uint8)
    full, seven = np.full((8, 1), 127, np.int8), np.full((8, 1), 64, np.int8)  # 255 * 254 = 64770, 255 * 128 = 32640
    assert module.count_saturating_pairs(a, full).tolist() == [4]
    assert module.matmul_saturating(a, full).tolist() == [[4 * 32767]]
    assert module.count_saturating_pairs(a, seven).tolist() == [0]
    assert module.matmul_saturating(a, seven).tolist() == [[8 * 255 * 64]]


@both
@pytest.mark.parametrize(
    ("a", "b", "total", "count"),
    [
        ([255, 191], [127, 2], 32767, 0),  # 32385 + 382: the bound itself, exact
        ([255, 255], [127, 2], 32767, 1),  # 32385 + 510 = 32895
        ([128, 128], [-128, -128], -32768, 0),  # the other bound, exact
        ([128, 129], [-128, -128], -32768, 1),
        ([255, 255], [-128, -128], -32768, 1),  # 2^16 - 256 away from where it saturates
        ([255, 255], [127, -127], 0, 0),  # opposite signs cancel before the bound
        ([255], [127], 32385, 0),  # an odd K ends with a zero
        ([0, 255, 255], [127, 127, 127], 2 * 32385, 0),  # pairs are (0, 1) and (2, zero), not (1, 2)
        ([255, 255, 0], [127, 127, 127], 32767, 1),
        ([0, 255, 255, 0], [127, 127, 127, 127], 2 * 32385, 0),  # nor do pairs (1, 2) exist
    ],
)
def test_pairs_at_the_bounds(module: Any, a: list[int], b: list[int], total: int, count: int) -> None:
    left, right = np.array([a], np.uint8), np.array([b], np.int8).T
    assert module.matmul_saturating(left, right).tolist() == [[total]]
    assert module.count_saturating_pairs(left, right).tolist() == [count]


def test_every_pair_of_weights_with_the_largest_activations() -> None:
    weights = np.arange(-128, 128).astype(np.int8)
    b = np.array(np.meshgrid(weights, weights, indexing="ij")).reshape(2, -1)
    a = np.array([[255, 255], [255, 0], [128, 127], [0, 0]], np.uint8)
    counts = np.zeros(b.shape[1], np.int64)
    y = kernels.matmul_saturating(a, b, counts=counts)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(y, np.clip(exact, -32768, 32767))
    np.testing.assert_array_equal(counts, ((exact > 32767) | (exact < -32768)).sum(axis=0))


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 7, 8, 31, 64])
@pytest.mark.parametrize("extreme", [False, True], ids=["random", "extreme"])
def test_kernels_equal_the_model_of_the_instruction(k: int, extreme: bool) -> None:
    rng = np.random.default_rng(k)
    for m, n in [(1, 1), (3, 31), (2, 33), (5, 64)]:
        a, b = codes(rng, m, k, n, extreme)
        sums, counts = model(a, b)
        np.testing.assert_array_equal(reference.matmul_saturating(a, b), sums)
        np.testing.assert_array_equal(reference.count_saturating_pairs(a, b), counts)
        for threads in (1, 2, 3):
            total = np.ones(n, np.int64)  # added to, not overwritten
            y = kernels.matmul_saturating(a, b, counts=total, num_threads=threads)
            assert (y.dtype, y.shape) == (np.int32, (m, n))
            np.testing.assert_array_equal(y, sums)
            np.testing.assert_array_equal(total, counts + 1)
            np.testing.assert_array_equal(kernels.count_saturating_pairs(a, b, num_threads=threads), counts)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), m=st.integers(0, 9), k=st.integers(0, 40), n=st.integers(0, 70))
def test_any_shape_and_stride(seed: int, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = codes(rng, 2 * m, k, n + 3, extreme=bool(seed % 2))
    a, b = a[::2], b[::-1, 3:]
    counts = np.zeros(n, np.int64)
    y = kernels.matmul_saturating(a, b, counts=counts)
    np.testing.assert_array_equal(y, reference.matmul_saturating(a, b))
    np.testing.assert_array_equal(counts, reference.count_saturating_pairs(a, b))


def test_it_equals_the_exact_product_where_nothing_saturates() -> None:
    rng = np.random.default_rng(0)
    a, b = codes(rng, 17, 300, 50)
    b = (b // 2).astype(np.int8)  # -64 to 63: 255 * 128 = 32640 fits
    assert not kernels.count_saturating_pairs(a, b).any()
    np.testing.assert_array_equal(kernels.matmul_saturating(a, b), kernels.matmul_integer(a, b))


def test_the_sum_wraps_like_vpaddd() -> None:
    k = 2 * 66000  # 66000 pairs of 32767 are more than 2^31
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 1), 127, np.int8)
    expected = 66000 * 32767 - 2**32
    assert kernels.matmul_saturating(a, b).tolist() == reference.matmul_saturating(a, b).tolist() == [[expected]]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((2, 2), np.int8), np.zeros((2, 2), np.int8), r"'a' has type int8; expected uint8\."),
        (np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8), r"'b' has type uint8; expected int8\."),
        (np.zeros(2, np.uint8), np.zeros((2, 2), np.int8), r"'a' has shape \(2,\); expected 2 axes\."),
        (np.zeros((2, 3), np.uint8), np.zeros((2, 2), np.int8), r"a of shape \(2, 3\) and b of shape \(2, 2\) do not"),
    ],
)
def test_what_does_not_fit_is_refused(a: np.ndarray, b: np.ndarray, message: str) -> None:
    for function in (kernels.matmul_saturating, kernels.count_saturating_pairs):
        with pytest.raises(KernelError, match=message):
            function(a, b)


def test_wrong_counts_and_threads_are_refused() -> None:
    a, b = np.zeros((2, 2), np.uint8), np.zeros((2, 3), np.int8)
    with pytest.raises(KernelError, match=r"'counts' is int32 \(3,\); expected int64 \(3,\)\."):
        kernels.matmul_saturating(a, b, counts=np.zeros(3, np.int32))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_threads is 0"):
        kernels.count_saturating_pairs(a, b, num_threads=0)
