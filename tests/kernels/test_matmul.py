"""MatMulInteger and QLinearMatMul: kernels == reference == brute force == onnxruntime, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.errors import KernelError
from tests.kernels.oracle import PAIRS, f32, random_codes, run_ort
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

EDGES_OF_K = [0, 1, 3, 4, 5, 63, 64, 65, 130]  # around every block of every instruction set
pair = pytest.mark.parametrize(("ta", "tb"), PAIRS, ids=lambda t: t.__name__)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


# ------------------------------------------------------------------------------------------------ the reference itself


def triple_loop(a: np.ndarray, b: np.ndarray, za: np.ndarray, zb: np.ndarray) -> list[list[int]]:
    """Python integers, one product at a time, wrapped like an int32."""
    (m, k), n = a.shape, b.shape[1]
    rows: list[list[int]] = [[0] * n for _ in range(m)]
    for i, j, t in np.ndindex(m, n, k):
        rows[i][j] += (int(a[i, t]) - int(za[i])) * (int(b[t, j]) - int(zb[j]))
    return [[(v + 2**31) % 2**32 - 2**31 for v in row] for row in rows]


@pair
def test_reference_matches_a_triple_loop(ta: type, tb: type) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in itertools.product([1, 2, 3], [1, 2, 4], [0, 1, 5]):
        a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
        za, zb = random_codes(rng, ta, (m,)), random_codes(rng, tb, (n,))
        assert reference.matmul_integer(a, b, za, zb).reshape(m, n).tolist() == triple_loop(a, b, za, zb)


def test_a_row_vector_belongs_to_rows_even_if_the_matrix_is_square() -> None:
    a = b = np.eye(3, dtype=np.uint8)
    za = np.array([1, 2, 3], np.uint8)
    expected = np.eye(3, dtype=np.int32) - np.array([[1], [2], [3]])
    for module in (kernels, reference):
        assert_same(module.matmul_integer(a, b, za), expected.astype(np.int32))
        assert_same(module.matmul_integer(a, b, None, za), (np.eye(3) - [[1, 2, 3]]).astype(np.int32))
        y = module.qlinear_matmul(a, f32([1, 2, 4]), np.zeros(3, np.uint8), b, f32(1), np.uint8(0), f32(1), np.uint8(0))
        assert_same(y, np.diag([1, 2, 4]).astype(np.uint8))


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
def test_saturation_table(module: Any) -> None:
    u8, s8 = np.uint8, np.int8
    hundred = np.array([[100]], u8)
    args = (hundred, f32(1), u8(0), hundred, f32(1), u8(0), f32(0.2), u8(0))
    assert module.qlinear_matmul(*args).tolist() == [[255]]
    args = (np.array([[-100]], s8), f32(1), s8(0), np.array([[100]], s8), f32(1), s8(0), f32(0.5), s8(0))
    assert module.qlinear_matmul(*args).tolist() == [[-128]]


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize("form", ["multiplier", "literal"])
def test_round_half_to_even_comes_before_an_odd_zero_point(module: Any, form: str) -> None:
    a = np.array([[1], [3], [5], [-1], [-3]], np.int8)  # halves: .5 1.5 2.5 -.5 -1.5 -> 0 2 2 0 -2
    one = np.array([[1]], np.int8)
    y = module.qlinear_matmul(a, f32(0.5), np.int8(0), one, f32(1), np.int8(0), f32(1), np.int8(1), form=form)
    assert y.ravel().tolist() == [1, 3, 3, 1, -1]


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize(("y_scale", "expected"), [(0.0, [255, 0, 0]), (np.inf, [7, 7, 7]), (np.nan, [0, 0, 0])])
def test_degenerate_scales_saturate_and_nan_is_the_smallest_code(module: Any, y_scale: float, expected: list) -> None:
    a = np.array([[3], [0], [-3]], np.int8)
    args = (a, f32(1), np.int8(0), np.array([[1]], np.int8), f32(1), np.int8(0), f32(y_scale), np.uint8(7))
    assert module.qlinear_matmul(*args).ravel().tolist() == expected


# ------------------------------------------------------------------------------------------------ kernels == reference


@pair
@pytest.mark.parametrize("k", EDGES_OF_K)
def test_matmul_integer_at_the_edges_of_k(ta: type, tb: type, k: int) -> None:
    rng = np.random.default_rng(k)
    for m, n in [(1, 1), (3, 5), (4, 2), (5, 129), (65, 7), (67, 131)]:
        a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
        za, zb = random_codes(rng, ta, (m,)), random_codes(rng, tb, (n,))
        expected = reference.matmul_integer(a, b, za, zb)
        for threads in (1, 2, 3, 4):
            assert_same(kernels.matmul_integer(a, b, za, zb, num_threads=threads), expected)


@pair
@pytest.mark.parametrize("k", [0, 1, 3, 15, 16, 17, 35, 83])
def test_one_row_times_rows_of_b_as_they_are(ta: type, tb: type, k: int) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 15, 63, 64, 65, 130, 4159):
        a, wide = random_codes(rng, ta, (1, k)), random_codes(rng, tb, (2 * k, n + 3))
        for b in (wide[:k, :n], wide[::2, 3:], wide[k:, 1 : 1 + n][::-1]):
            za, zb = random_codes(rng, ta, ()), random_codes(rng, tb, (n,))
            expected = reference.matmul_integer(a, b, za, zb)
            for threads in (1, 2):
                assert_same(kernels.matmul_integer(a, b, za, zb, num_threads=threads), expected)
            args = (a, f32(0.5), za, b, rng.random(n, np.float32), zb, f32(7), ta(3))
            assert_same(kernels.qlinear_matmul(*args), reference.qlinear_matmul(*args))


@pair
def test_several_blocks_of_k_rows_and_columns(ta: type, tb: type) -> None:
    rng = np.random.default_rng(3)
    a, b = random_codes(rng, ta, (131, 2571)), random_codes(rng, tb, (2571, 261))
    za, zb = random_codes(rng, ta, (131,)), random_codes(rng, tb, ())
    # float64 is exact below 2^53 and much faster than integers in NumPy
    exact = (a.astype(np.float64) - za[:, None]) @ (b.astype(np.float64) - float(zb))
    assert_same(kernels.matmul_integer(a, b, za, zb, num_threads=2), exact.astype(np.int64).astype(np.int32))


def extremes(dtype: type) -> list[int]:
    info = np.iinfo(dtype)
    return [int(info.min), int(info.max)]


@pair
def test_extremes_everywhere(ta: type, tb: type) -> None:
    for va, vb, za, zb in itertools.product(extremes(ta), extremes(tb), extremes(ta), extremes(tb)):
        a, b = np.full((5, 67), va, ta), np.full((67, 3), vb, tb)
        expected = np.full((5, 3), 67 * (va - za) * (vb - zb), np.int32)
        assert_same(kernels.matmul_integer(a, b, ta(za), tb(zb)), expected)


@pair
def test_c15_an_accumulator_of_70_000_terms_wraps_like_int32(ta: type, tb: type) -> None:
    k = 70_000
    for va, vb in itertools.product(extremes(ta), extremes(tb)):
        za, zb = ta(extremes(ta)[va == extremes(ta)[0]]), tb(extremes(tb)[vb == extremes(tb)[0]])
        a, b = np.full((2, k), va, ta), np.full((k, 3), vb, tb)
        exact = k * (va - int(za)) * (vb - int(zb))
        assert abs(exact) > 2**31
        wrapped = np.full((2, 3), (exact + 2**31) % 2**32 - 2**31, np.int32)
        assert_same(kernels.matmul_integer(a, b, za, zb, num_threads=2), wrapped)
        assert_same(reference.matmul_integer(a, b, za, zb), wrapped)


SHAPES = [
    ((7,), (7,)),
    ((7,), (7, 5)),
    ((3, 7), (7,)),
    ((2, 3, 7), (7,)),
    ((7,), (2, 7, 5)),
    ((2, 3, 7), (7, 5)),
    ((3, 7), (4, 7, 5)),
    ((2, 1, 3, 7), (4, 7, 5)),
    ((2, 4, 3, 7), (2, 4, 7, 5)),
    ((1, 4, 3, 7), (2, 1, 7, 5)),
    ((0, 7), (7, 5)),
    ((3, 7), (7, 0)),
    ((3, 0), (0, 5)),
    ((0, 3, 7), (7, 5)),
    ((0, 3, 7), (1, 7, 5)),
    ((0,), (0,)),
    ((2, 3, 0), (2, 0, 5)),
]


@pytest.mark.parametrize(("sa", "sb"), SHAPES, ids=str)
@pair
def test_shapes_are_those_of_numpy_matmul(ta: type, tb: type, sa: tuple[int, ...], sb: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b, za, zb = (
        random_codes(rng, ta, sa),
        random_codes(rng, tb, sb),
        random_codes(rng, ta, ()),
        random_codes(rng, tb, ()),
    )
    actual = kernels.matmul_integer(a, b, za, zb, num_threads=2)
    assert actual.shape == np.matmul(np.zeros(sa), np.zeros(sb)).shape
    assert_same(actual, reference.matmul_integer(a, b, za, zb))
    args = (a, f32(0.02), za, b, f32(0.03), zb, f32(0.5), np.uint8(9))
    assert_same(kernels.qlinear_matmul(*args), reference.qlinear_matmul(*args))


@pytest.mark.parametrize(("sa", "sb"), [((4, 7), (7,)), ((2, 4, 7), (7,)), ((7,), (7, 5)), ((7,), (2, 7, 5))], ids=str)
def test_rows_and_columns_beside_a_vector(sa: tuple[int, ...], sb: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    of_a, of_b = (sa[-2:-1] or (1,)), (sb[1:][-1:] or (1,))
    a, b = random_codes(rng, np.uint8, sa), random_codes(rng, np.int8, sb)
    za, zb = random_codes(rng, np.uint8, of_a), random_codes(rng, np.int8, of_b)
    assert_same(kernels.matmul_integer(a, b, za, zb), reference.matmul_integer(a, b, za, zb))
    args = (a, f32(rng.random(of_a)), za, b, f32(rng.random(of_b)), zb, f32(200), np.uint8(100))
    assert_same(kernels.qlinear_matmul(*args), reference.qlinear_matmul(*args))


def test_without_k_the_result_is_the_zero_point() -> None:
    a, b = np.empty((2, 0), np.uint8), np.empty((0, 3), np.int8)
    assert kernels.matmul_integer(a, b, np.uint8(3), np.int8(4)).tolist() == [[0, 0, 0]] * 2
    y = kernels.qlinear_matmul(a, f32(1), np.uint8(3), b, f32(1), np.int8(4), f32(1), np.int8(-9))
    assert y.tolist() == [[-9, -9, -9]] * 2


@st.composite
def products(draw: st.DrawFn) -> dict[str, Any]:
    """Operands, zero points and scales of any granularity, batch, sign and memory layout."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ta, tb = draw(st.sampled_from(PAIRS))
    m, n = draw(st.sampled_from([1, 2, 3, 5, 8, 17, 66])), draw(st.sampled_from([1, 2, 3, 7, 16, 33, 130]))
    k = draw(st.sampled_from(EDGES_OF_K))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    batch_b = draw(st.sampled_from([(), batch, (1,) * len(batch)]))
    a, b = random_codes(rng, ta, (*batch, m, k)), random_codes(rng, tb, (*batch_b, k, n))
    row = draw(st.sampled_from([(), (1,), (m,), (*batch, m, 1)]))
    column = draw(st.sampled_from([(), (1,), (n,), (*batch_b, 1, n)]))
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed", "read-only"]))
    if layout == "F":
        a, b = (np.ascontiguousarray(v.swapaxes(-1, -2)).swapaxes(-1, -2) for v in (a, b))
    elif layout == "strided":
        a, b = (np.repeat(np.repeat(v, 2, -1), 3, -2)[..., ::3, ::2] for v in (a, b))
    elif layout == "reversed":
        a, b = (np.ascontiguousarray(v[..., ::-1, ::-1])[..., ::-1, ::-1] for v in (a, b))
    elif layout == "read-only":
        a.flags.writeable = b.flags.writeable = False
    spread = draw(st.sampled_from([0.01, 1.0, 100.0]))
    return {
        "a": a,
        "a_scale": f32(rng.random(row) * 0.1 + 1e-3),
        "a_zero_point": random_codes(rng, ta, row),
        "b": b,
        "b_scale": f32(rng.random(column) * 0.1 + 1e-3),
        "b_zero_point": random_codes(rng, tb, column),
        "y_scale": f32(spread),
        "y_zero_point": random_codes(rng, draw(st.sampled_from([np.uint8, np.int8])), ()),
    }


@settings(max_examples=60, deadline=None)
@given(products(), st.integers(1, 4))
def test_matmul_integer_property(p: dict[str, Any], threads: int) -> None:
    args = (p["a"], p["b"], p["a_zero_point"], p["b_zero_point"])
    assert_same(kernels.matmul_integer(*args, num_threads=threads), reference.matmul_integer(*args))


@settings(max_examples=60, deadline=None)
@given(products(), st.integers(1, 4), st.sampled_from(["multiplier", "literal"]))
def test_qlinear_matmul_property(p: dict[str, Any], threads: int, form: str) -> None:
    actual = kernels.qlinear_matmul(**p, form=form, num_threads=threads)
    assert_same(actual, reference.qlinear_matmul(**p, form=form))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_scales_are_widened_to_float32(dtype: type) -> None:
    rng = np.random.default_rng(5)
    a, b = random_codes(rng, np.uint8, (9, 40)), random_codes(rng, np.int8, (40, 11))
    sa, sb, sy = np.asarray(0.017, dtype), (rng.random(11) * 0.02 + 0.001).astype(dtype), np.asarray(0.3, dtype)
    zb = np.zeros(11, np.int8)
    y = kernels.qlinear_matmul(a, sa, np.uint8(120), b, sb, zb, sy, np.uint8(128))
    wide = kernels.qlinear_matmul(a, f32(sa), np.uint8(120), b, f32(sb), zb, f32(sy), np.uint8(128))
    assert_same(y, wide)
    assert_same(y, reference.qlinear_matmul(a, sa, np.uint8(120), b, sb, zb, sy, np.uint8(128)))


def test_inputs_are_not_written_to() -> None:
    rng = np.random.default_rng(6)
    a, b = random_codes(rng, np.int8, (9, 40)), random_codes(rng, np.uint8, (40, 11))
    before = a.tobytes(), b.tobytes()
    kernels.matmul_integer(a, b, np.int8(3), np.uint8(7))
    assert (a.tobytes(), b.tobytes()) == before


# -------------------------------------------------------------------------------------------------------- onnxruntime


@pair
@pytest.mark.parametrize("columns", [False, True], ids=["per-tensor", "per-column"])
def test_matmul_integer_equals_onnxruntime(ta: type, tb: type, columns: bool) -> None:
    rng = np.random.default_rng(7)
    for m, n, k in [(1, 1, 1), (33, 45, 70), (2, 130, 257), (65, 3, 1030)]:
        a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
        za, zb = random_codes(rng, ta, ()), random_codes(rng, tb, (n,) if columns else ())
        assert_same(kernels.matmul_integer(a, b, za, zb), run_ort("MatMulInteger", [a, b, za, zb])[0])


QLINEAR_IN_ORT = [(np.uint8, np.uint8, np.uint8), (np.uint8, np.int8, np.uint8), (np.int8, np.int8, np.int8)]


@pytest.mark.parametrize(("ta", "tb", "ty"), QLINEAR_IN_ORT, ids=lambda t: t.__name__)
@pytest.mark.parametrize("columns", [False, True], ids=["per-tensor", "per-column"])
def test_qlinear_matmul_equals_onnxruntime(ta: type, tb: type, ty: type, columns: bool) -> None:
    rng = np.random.default_rng(8)
    for m, n, k in [(1, 1, 1), (33, 45, 70), (2, 130, 257), (65, 33, 1030)]:
        a, b = random_codes(rng, ta, (2, m, k)), random_codes(rng, tb, (k, n))
        of_b = (n,) if columns else ()
        for spread in (0.5, 5.0):
            args = [
                a,
                f32(rng.random() * 0.05 + 0.001),
                random_codes(rng, ta, ()),
                b,
                f32(rng.random(of_b) * 0.05 + 0.001),
                random_codes(rng, tb, of_b),
                f32(spread * np.sqrt(k) * 0.02),
                random_codes(rng, ty, ()),
            ]
            assert_same(kernels.qlinear_matmul(*args), run_ort("QLinearMatMul", args)[0])


def both_forms(acc: np.ndarray, sa: float, sb: float, sy: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes of a column of accumulators in the multiplier and in the literal form of equation (4), zero point 0."""
    one = np.ones((1, 1), np.int8)
    args = (acc.reshape(-1, 1), f32(sa), acc.dtype.type(0), one, f32(sb), np.int8(0), f32(sy), np.uint8(0))
    codes = [kernels.qlinear_matmul(*args, form=form).ravel() for form in ("multiplier", "literal")]
    for form, actual in zip(("multiplier", "literal"), codes, strict=True):
        np.testing.assert_array_equal(actual, reference.qlinear_matmul(*args, form=form).ravel())
    np.testing.assert_array_equal(codes[0], run_ort("QLinearMatMul", list(args))[0].ravel())  # what runtimes compute
    return codes[0], codes[1]


def test_the_two_forms_differ_by_one_code_on_exact_ties() -> None:
    """.1*.1/.02 is 1/2, but its float32 factor is just above: 5 -> 2.5 rounds to 3, where acc*.1*.1/.02 ties to 2."""
    acc = np.arange(256, dtype=np.uint8)
    multiplier, literal = both_forms(acc, 0.1, 0.1, 0.02)
    differ = acc[multiplier != literal]
    assert (multiplier[5], literal[5]) == (3, 2)
    assert differ.size == 25
    assert np.all(differ % 2 == 1)  # halves of odd numbers: the ties
    assert np.all(multiplier[differ] == literal[differ] + 1)


@pytest.mark.parametrize(("sa", "sb", "sy"), [(0.5, 0.25, 0.125), (0.02, 0.01, 0.03), (0.0173, 0.0059, 0.0041)])
def test_the_two_forms_agree_away_from_ties(sa: float, sb: float, sy: float) -> None:
    multiplier, literal = both_forms(np.arange(256, dtype=np.uint8), sa, sb, sy)
    np.testing.assert_array_equal(multiplier, literal)


def test_the_two_forms_differ_only_within_rounding_of_a_tie() -> None:
    rng = np.random.default_rng(9)
    different = total = 0
    for _ in range(40):
        a, b = random_codes(rng, np.uint8, (50, 64)), random_codes(rng, np.int8, (64, 50))
        sa, sb, sy = f32(rng.random() * 0.1 + 0.001), f32(rng.random() * 0.1 + 0.001), f32(rng.random() * 5 + 1)
        args = (a, sa, np.uint8(128), b, sb, np.int8(0), sy, np.uint8(128))
        multiplier = kernels.qlinear_matmul(*args).astype(int)
        literal = kernels.qlinear_matmul(*args, form="literal").astype(int)
        gap = np.abs(multiplier - literal)
        exact = reference.matmul_integer(a, b, np.uint8(128)) * float(sa) * float(sb) / float(sy)
        to_tie = np.abs(exact - np.floor(exact) - 0.5)
        assert gap.max() <= 1
        assert np.all(to_tie[gap > 0] <= 4 * 2.0**-24 * np.abs(exact[gap > 0]))
        different, total = different + np.count_nonzero(gap), total + gap.size
    assert different <= total * 1e-4  # with scales that are not round numbers: practically never


# -------------------------------------------------------------------------------------------------------------- errors


def matmul_arguments(**changes: Any) -> dict[str, Any]:
    arguments = {
        "a": np.zeros((3, 4), np.uint8),
        "a_scale": f32(1),
        "a_zero_point": np.uint8(0),
        "b": np.zeros((4, 5), np.int8),
        "b_scale": f32(1),
        "b_zero_point": np.int8(0),
        "y_scale": f32(1),
        "y_zero_point": np.uint8(0),
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": np.zeros((5, 4), np.int8)}, "do not multiply"),
        ({"a": np.zeros((2, 3, 4), np.uint8), "b": np.zeros((3, 4, 5), np.int8)}, "do not multiply"),
        ({"a": np.uint8(1)}, "scalar operand"),
        ({"a": np.zeros((3, 4), np.int16)}, "'a' has type int16; expected int8 or uint8"),
        ({"a": np.zeros((3, 4), ml_dtypes.float8_e4m3fn)}, "'a' has type float8_e4m3fn"),
        ({"a_zero_point": np.int8(0)}, "'a_zero_point' has type int8; expected uint8"),
        ({"b_zero_point": np.uint8(0)}, "'b_zero_point' has type uint8; expected int8"),
        ({"a_zero_point": np.zeros(4, np.uint8), "a_scale": np.ones(4, np.float32)}, "'a_zero_point' has shape"),
        ({"b_zero_point": np.zeros(4, np.int8), "b_scale": np.ones(4, np.float32)}, "'b_zero_point' has shape"),
        ({"b_scale": np.ones(5, np.float32)}, "expected the same shape"),
        ({"a_scale": np.float64(1)}, "'a_scale' has type float64"),
        ({"y_scale": np.ones(5, np.float32)}, "'y_scale' has shape"),
        ({"y_zero_point": np.int16(0)}, "'y_zero_point' has type int16"),
        ({"form": "fast"}, "form is 'fast'"),
    ],
)
def test_errors_name_the_argument(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message.replace("(", r"\(")):
        kernels.qlinear_matmul(**matmul_arguments(**changes))


def test_float8_operands_point_to_the_spec_engine() -> None:
    with pytest.raises(KernelError) as error:
        kernels.qlinear_matmul(**matmul_arguments(b=np.zeros((4, 5), ml_dtypes.float8_e5m2)))
    assert error.value.hint is not None
    assert "spec engine" in error.value.hint


# ------------------------------------------------------------------------------------- edges of the tiles and packed B

EDGES = [  # (m, n, k): around tiles of 12, 16 and 32 rows, 16, 32 and 64 columns, 4 and 64 k, slices of 512 k
    (1, 15, 3),
    (2, 16, 4),
    (3, 17, 5),
    (5, 32, 64),
    (11, 33, 65),
    (12, 63, 511),
    (13, 64, 512),
    (16, 65, 513),
    (17, 31, 127),
    (31, 33, 1030),
    (32, 130, 1024),
    (33, 65, 1025),
    (45, 1, 2100),
    (65, 97, 1030),
    (1, 1025, 300),
    (3, 1025, 260),
]


def exact_product(a: np.ndarray, b: np.ndarray, za: np.ndarray, zb: np.ndarray) -> np.ndarray:
    """float64 is exact below 2^53 and much faster than integers in NumPy."""
    product = (a.astype(np.float64) - np.float64(za).reshape(-1, 1)) @ (b.astype(np.float64) - np.float64(zb))
    return product.astype(np.int64).astype(np.int32)


@pair
@pytest.mark.parametrize("shape", EDGES, ids=lambda s: "x".join(map(str, s)))
def test_edges_of_tiles_packed_and_not(ta: type, tb: type, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m * n * k)
    a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
    packed, column_major = kernels.pack_b(b, num_threads=2), np.asfortranarray(b)
    for of_a, of_b in [((), (n,)), ((m,), ())]:
        za, zb = random_codes(rng, ta, of_a), random_codes(rng, tb, of_b)
        expected = exact_product(a, b, za, zb)
        for operand, threads in itertools.product((b, column_major, packed), (1, 2)):
            assert_same(kernels.matmul_integer(a, operand, za, zb, num_threads=threads), expected)


@pair
@pytest.mark.parametrize("shape", EDGES[1::3], ids=lambda s: "x".join(map(str, s)))
def test_requantization_at_the_edges_of_tiles(ta: type, tb: type, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
    packed = kernels.pack_b(b)
    for of_a, of_b, form in itertools.product([(), (m,)], [(), (n,)], ["multiplier", "literal"]):
        ty = (np.uint8, np.int8)[of_a == of_b]
        args = {
            "a_scale": f32(rng.random(of_a) * 0.05 + 0.001),
            "a_zero_point": random_codes(rng, ta, of_a),
            "b_scale": f32(rng.random(of_b) * 0.05 + 0.001),
            "b_zero_point": random_codes(rng, tb, of_b),
            "y_scale": f32(np.sqrt(k) * 0.05),
            "y_zero_point": random_codes(rng, ty, ()),
        }
        expected = reference.qlinear_matmul(a=a, b=b, **args, form=form)
        for operand, threads in itertools.product((b, packed), (1, 2)):
            assert_same(kernels.qlinear_matmul(a=a, b=operand, **args, form=form, num_threads=threads), expected)


@pair
@pytest.mark.parametrize("shape", [(12, 32, 64), (25, 33, 100), (37, 95, 1024), (64, 64, 1025), (100, 40, 2113)])
def test_tiles_that_end_by_themselves(ta: type, tb: type, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = random_codes(rng, ta, (m, k)), random_codes(rng, tb, (k, n))
    nothing = 128 if tb is np.uint8 else 0  # the zero point of B that corrects nothing, as that of weights mostly is
    for of_b, ty in [((), np.uint8), ((n,), np.int8)]:
        args = {
            "a_scale": f32(0.02),
            "a_zero_point": random_codes(rng, ta, ()),
            "b_scale": f32(rng.random(of_b) * 0.05 + 0.001),
            "b_zero_point": np.full(of_b, nothing, tb),
            "y_scale": f32(np.sqrt(k) * 0.05),
            "y_zero_point": random_codes(rng, ty, ()),
        }
        expected = reference.qlinear_matmul(a=a, b=b, **args)
        assert len(np.unique(expected)) > 50, "the scales should neither saturate nor flatten everything"
        for operand, threads in itertools.product((b, kernels.pack_b(b)), (1, 2)):
            assert_same(kernels.qlinear_matmul(a=a, b=operand, **args, num_threads=threads), expected)


def test_parameters_of_any_kind_give_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = random_codes(rng, np.uint8, (13, 70)), random_codes(rng, np.int8, (70, 9))

    class Subclass(np.ndarray): ...

    def variants(value: Any) -> list[Any]:
        array = np.array(value)
        return [array, array[()], array.view(Subclass)]

    expected = reference.qlinear_matmul(a, f32(0.02), np.uint8(9), b, f32(0.03), np.int8(-5), f32(0.4), np.int8(-3))
    kinds = [variants(v) for v in (f32(0.02), np.uint8(9), f32(0.03), np.int8(-5), f32(0.4), np.int8(-3))]
    for kind in range(3):
        sa, za, sb, zb, sy, zy = (values[kind] for values in kinds)
        assert_same(kernels.qlinear_matmul(a, sa, za, b, sb, zb, sy, zy), expected)
        assert_same(kernels.qlinear_matmul(a.view(Subclass), sa, za, kernels.pack_b(b), sb, zb, sy, zy), expected)
    columns = (np.repeat(f32(0.03), 18)[::2], np.repeat(np.int8(-5), 27)[::3])  # not contiguous
    assert_same(kernels.qlinear_matmul(a, f32(0.02), np.uint8(9), b, *columns, f32(0.4), np.int8(-3)), expected)


@pair
@pytest.mark.parametrize("m", [1, 40])
def test_packed_extremes_of_a_long_k_wrap_like_int32(ta: type, tb: type, m: int) -> None:
    k = 70_000
    for va, vb in itertools.product(extremes(ta), extremes(tb)):
        za, zb = ta(extremes(ta)[va == extremes(ta)[0]]), tb(extremes(tb)[vb == extremes(tb)[0]])
        a, b = np.full((m, k), va, ta), np.full((k, 34), vb, tb)
        exact = k * (va - int(za)) * (vb - int(zb))
        wrapped = np.full((m, 34), (exact + 2**31) % 2**32 - 2**31, np.int32)
        for operand in (b, kernels.pack_b(b)):
            assert_same(kernels.matmul_integer(a, operand, za, zb, num_threads=1), wrapped)


@pair
@pytest.mark.parametrize("m", [1, 35])
def test_views_of_any_layout(ta: type, tb: type, m: int) -> None:
    rng = np.random.default_rng(11)
    k, n = 133, 70
    whole_a, whole_b = random_codes(rng, ta, (2 * m + 1, 3 * k)), random_codes(rng, tb, (2 * k + 1, 3 * n))
    za, zb = random_codes(rng, ta, ()), random_codes(rng, tb, (n,))
    for rows, columns in itertools.product((slice(1, m + 1), slice(None, -1, 2), slice(m, 0, -1)), (1, 2, -1)):
        a = whole_a[rows][:, 1:][:, ::columns][:, :k]  # a byte off any alignment, with steps, backwards
        b = whole_b[1:][:k, 1:][:, ::columns][:, :n]
        a.flags.writeable = b.flags.writeable = False
        expected = exact_product(a, b, za, zb)
        assert_same(kernels.matmul_integer(a, b, za, zb), expected)
        assert_same(kernels.matmul_integer(a, kernels.pack_b(b), za, zb), expected)
        flipped = np.ascontiguousarray(b[::-1, ::-1])[::-1, ::-1]
        assert_same(kernels.matmul_integer(np.asfortranarray(a), flipped, za, zb), expected)


def on_cache_lines(codes: np.ndarray, offset: int, gap: int) -> np.ndarray:
    """A copy whose rows start ``offset`` bytes after a cache line and leave ``gap`` bytes of 0xFF between them."""
    memory = np.full(codes.size + codes.size // codes.shape[-1] * gap + 128, 0xFF, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    rows = memory[start:][: codes.size // codes.shape[-1] * (codes.shape[-1] + gap)]
    view = rows.reshape(*codes.shape[:-1], -1)[..., : codes.shape[-1]].view(codes.dtype)
    view[...] = codes
    return view


@pytest.mark.parametrize(("offset", "gap"), [(0, 0), (0, 64), (16, 0)])
@pytest.mark.parametrize(("ta", "tb"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
def test_rows_of_a_that_need_no_packing(ta: type, tb: type, offset: int, gap: int) -> None:
    # with and without a last panel of few rows; N of one tile, of tails, and of several ranges; a zero point of B with
    # which the sums of the rows do not matter, and another
    rng = np.random.default_rng(15)
    neutral = tb(128 if tb is np.uint8 else 0)
    for (m, n, k), zb in itertools.product([(32, 32, 64), (71, 70, 128), (36, 40, 100)], [neutral, tb(neutral - 3)]):
        a, b = on_cache_lines(random_codes(rng, ta, (m, k)), offset, gap), random_codes(rng, tb, (k, n))
        za = random_codes(rng, ta, ())
        expected = exact_product(a, b, za, zb)
        scales = (f32(0.02), za, f32(0.03), zb, f32(9), np.uint8(99))
        codes = reference.qlinear_matmul(a, *scales[:2], b, *scales[2:])
        for operand, threads in itertools.product((b, kernels.pack_b(b)), (1, 2)):
            assert_same(kernels.matmul_integer(a, operand, za, zb, num_threads=threads), expected)
            args = (a, *scales[:2], operand, *scales[2:])
            assert_same(kernels.qlinear_matmul(*args, num_threads=threads), codes)
    if (ta, tb) == (np.uint8, np.int8):
        a, b = on_cache_lines(random_codes(rng, ta, (40, 576)), offset, gap), random_codes(rng, tb, (576, 580))
        expected = exact_product(a, b, np.uint8(9), neutral)
        for operand, threads in itertools.product((b, kernels.pack_b(b)), (1, 2)):
            assert_same(kernels.matmul_integer(a, operand, np.uint8(9), num_threads=threads), expected)


def test_rows_of_a_batch_that_need_no_packing() -> None:
    rng = np.random.default_rng(16)
    a = on_cache_lines(random_codes(rng, np.uint8, (3, 45, 128)), 0, 0)
    b = random_codes(rng, np.int8, (3, 128, 50))
    columns = np.zeros((3, 1, 50), np.int8)
    for other in (0, 5):
        columns[2, 0, 49] = other  # of a single column of a single item
        expected = reference.matmul_integer(a, b, np.uint8(7), columns)
        assert_same(kernels.matmul_integer(a, b, np.uint8(7), columns, num_threads=1), expected)
        assert_same(kernels.matmul_integer(a[::-1], b[::-1], np.uint8(7), columns[::-1]), expected[::-1])


@pytest.mark.parametrize(("sa", "sb"), SHAPES, ids=str)
def test_packed_b_of_every_shape(sa: tuple[int, ...], sb: tuple[int, ...]) -> None:
    rng = np.random.default_rng(12)
    a, b = random_codes(rng, np.uint8, sa), random_codes(rng, np.int8, sb)
    packed = kernels.pack_b(b)
    assert (packed.shape, packed.dtype, packed.ndim) == (b.shape, b.dtype, b.ndim)
    args = (np.uint8(7), np.int8(-3))
    assert_same(kernels.matmul_integer(a, packed, *args, num_threads=2), kernels.matmul_integer(a, b, *args))


def test_packed_b_is_a_copy_and_knows_its_size_and_kernel() -> None:
    b = np.ones((100, 70), np.int8)
    packed = kernels.PackedB(b)
    b[:] = 0
    assert np.all(kernels.matmul_integer(np.ones((2, 100), np.uint8), packed) == 100)
    assert packed.kernel == kernels.isa_info().kernel
    assert packed.nbytes >= 7000
    assert repr(packed) == f"PackedB(shape=(100, 70), dtype=int8, kernel={packed.kernel!r})"


@pytest.mark.parametrize("m", [(), (3,)])
def test_b_packed_for_another_kernel_is_refused(m: tuple[int, ...]) -> None:
    before = kernels.isa_info()
    kernels.cap_isa("scalar")
    try:
        packed, scalar = kernels.pack_b(np.zeros((4, 5), np.int8)), kernels.isa_info().kernel
    finally:
        kernels.cap_isa(before.cap)
    if before.kernel == scalar:
        pytest.skip("the scalar kernel is the one in force")
    message = f"^'b' is packed for the kernel {scalar}; the kernel in force is {before.kernel}.$"
    with pytest.raises(KernelError, match=message):
        kernels.matmul_integer(np.zeros((*m, 4), np.uint8), packed)


def test_errors_of_packed_b() -> None:
    with pytest.raises(KernelError, match="'b' has type int16"):
        kernels.pack_b(np.zeros((4, 5), np.int16))
    with pytest.raises(KernelError, match="scalar operand"):
        kernels.pack_b(np.int8(1))
    packed = kernels.pack_b(np.zeros((4, 5), np.int8))
    with pytest.raises(KernelError, match="do not multiply"):
        kernels.matmul_integer(np.zeros((2, 5), np.uint8), packed)
    with pytest.raises(KernelError, match="'b_zero_point' has type uint8; expected int8"):
        kernels.matmul_integer(np.zeros((2, 4), np.uint8), packed, None, np.uint8(0))
