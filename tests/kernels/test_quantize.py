from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.dtypes import QDTYPES, QDType
from qtool.errors import KernelError
from tests.kernels.elementwise import (
    BFLOAT16,
    FLOATS,
    NARROW,
    TARGETS,
    Case,
    all_codes,
    assert_same_bits,
    cases,
    floats,
    raw,
    scalar,
)
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

INF = np.inf
NAN = np.nan
BOTH = pytest.mark.parametrize("quantize", [kernels.quantize, reference.quantize_linear], ids=["kernels", "reference"])


def numbers(codes: np.ndarray, name: str) -> np.ndarray:
    return reference.decode(codes, QDTYPES[name])


# Numerics, section 1: the value tables


@BOTH
@pytest.mark.parametrize(
    ("target", "x", "scale", "zero_point", "expected"),
    [
        ("int8", [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], 1, 0, [-2, -2, 0, 0, 2, 2]),
        ("int8", [0.5, 1.5, 2.5, -0.5, -1.5], 1, 1, [1, 3, 3, 1, -1]),
        ("int8", [-129, -128, -127.5, 126.5, 127.5, 300], 1, 0, [-128, -128, -128, 126, 127, 127]),
        ("int8", [3e9, -3e9, INF, -INF, NAN], 1, 0, [127, -128, 127, -128, -128]),
        ("uint8", [3e9, -3e9, INF, -INF, NAN], 1, 128, [255, 0, 255, 0, 0]),
        ("uint2", [-1, 0, 0.5, 1.5, 2.5, 3, 4], 1, 0, [0, 0, 0, 2, 2, 3, 3]),
        ("int2", [-3, -2, -1, 0, 1, 2], 1, 0, [-2, -2, -1, 0, 1, 1]),
        ("uint4", [-1, 7.5, 8.5, 15, 16], 1, 0, [0, 8, 8, 15, 15]),
        ("int4", [8, 7.6, -9, -8.5, 6.5], 1, 0, [7, 7, -8, -8, 6]),
        ("uint16", [-1, 65534.5, 65535, 65536, 1e9], 1, 0, [0, 65534, 65535, 65535, 65535]),
        ("uint16", [-65535.5, -1, 0, 1, 2, NAN], 1, 65535, [0, 65534, 65535, 65535, 65535, 0]),
        ("int16", [-32769, -32767.5, 32766.5, 32768], 1, 0, [-32768, -32768, 32766, 32767]),
        ("int16", [-70000, -65535, 1, 65535, 70000], 1, 32767, [-32768, -32768, 32767, 32767, 32767]),
        ("int8", [1, -1, 0], 0, 0, [127, -128, -128]),  # 0/0 is a NaN
    ],
)
def test_integer_tables(quantize, target, x, scale, zero_point, expected):
    dtype = QDTYPES[target]
    y = quantize(floats(*x), scalar(scale), np.array(zero_point).astype(dtype.numpy))
    assert y.dtype == dtype.numpy
    assert numbers(y, target).tolist() == expected


@BOTH
def test_float16_divides_in_float16(quantize):
    int8 = QDTYPES["int8"]
    x = np.array([0.05002, -0.05002], np.float16)
    assert quantize(x, scalar(0.1, np.float16), output_dtype=int8).tolist() == [1, -1]
    # 0.105 / 0.07 is 1.4996 in float32 and the tie 1.5 in float16; 0.175 / 0.07 is 2.5004 and 2.5.
    x = np.array([0.105, 0.175], np.float16)
    scale = scalar(0.07, np.float16)
    wide, wide_scale = x.astype(np.float32), scale.astype(np.float32)
    assert quantize(x, scale, output_dtype=int8).tolist() == [2, 2]
    assert quantize(wide, scale, output_dtype=int8).tolist() == [2, 2]
    assert quantize(wide, wide_scale, output_dtype=int8, precision=np.float16).tolist() == [2, 2]
    assert quantize(wide, wide_scale, output_dtype=int8).tolist() == [1, 3]
    assert quantize(x, scale, output_dtype=int8, precision=np.float32).tolist() == [1, 3]
    assert quantize(x, wide_scale, output_dtype=int8).tolist() == [1, 3]


@BOTH
def test_x_is_cast_to_the_precision_of_the_division_first(quantize):
    # 2049 is the tie of 2048 and 2050 in float16, 70000 is Inf.
    y = quantize(floats(2049, 2051, 70000), scalar(1, np.float16), output_dtype=QDTYPES["uint16"])
    assert y.tolist() == [2048, 2052, 65535]


@BOTH
@pytest.mark.parametrize(
    ("target", "saturate", "x", "expected"),
    [
        (
            "float8e4m3fn",
            True,
            [1.8131605, 448, 464, 465, 1e9, INF, 2**-10, 1.5 * 2**-9, -INF],
            [1.875, 448, 448, 448, 448, 448, 0, 2**-8, -448],
        ),
        ("float8e4m3fn", False, [464, 465, 480, 495, INF, -INF, -1e9], [448, NAN, NAN, NAN, NAN, NAN, NAN]),
        ("float8e5m2", True, [57344, 61440, 1e9, INF, -INF], [57344, 57344, 57344, 57344, -57344]),
        ("float8e5m2", False, [57344, 61439, 61440, 65535, 1e9, -INF], [57344, 57344, INF, INF, INF, -INF]),
        ("float8e4m3fnuz", True, [240, 248, 1e9, -INF], [240, 240, 240, -240]),
        ("float8e4m3fnuz", False, [240, 247.9, 248, INF], [240, 240, NAN, NAN]),
        ("float8e5m2fnuz", False, [57344, 61439, 61440, -INF], [57344, 57344, NAN, NAN]),
        (
            "float4e2m1",
            True,
            [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -100, INF, -INF],
            [0, 1, 1, 2, 2, 4, 4, 6, -6, 6, -6],
        ),
        ("float4e2m1", False, [7, -100, INF, -INF], [6, -6, 6, -6]),
        ("float6e2m3", True, [25, 7.75, INF, -INF, 0.0625, 0.1875], [7.5, 7.5, 7.5, -7.5, 0, 0.25]),
        ("float6e3m2", True, [25, 26, 30, INF, -INF, 0.03125, 0.09375], [24, 24, 28, 28, -28, 0, 0.125]),
    ],
)
def test_small_float_tables(quantize, target, saturate, x, expected):
    y = quantize(floats(*x), scalar(1), output_dtype=QDTYPES[target], saturate=saturate)
    np.testing.assert_array_equal(numbers(y, target), expected)


@BOTH
@pytest.mark.parametrize(
    ("target", "expected"),  # codes of -0, 0, NaN, -NaN
    [
        ("float8e4m3fn", [0x80, 0x00, 0x7F, 0xFF]),
        ("float8e5m2", [0x80, 0x00, 0x7E, 0xFE]),
        ("float8e4m3fnuz", [0x00, 0x00, 0x80, 0x80]),
        ("float8e5m2fnuz", [0x00, 0x00, 0x80, 0x80]),
        ("float4e2m1", [0x8, 0x0, 0x8, 0x8]),
        ("float6e2m3", [0x20, 0x00, 0x20, 0x20]),
        ("float6e3m2", [0x20, 0x00, 0x20, 0x20]),
    ],
)
@pytest.mark.parametrize("saturate", [True, False])
def test_zeros_and_nans_of_small_floats(quantize, target, expected, saturate):
    x = np.array([0x80000000, 0, 0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    y = quantize(x, scalar(1), output_dtype=QDTYPES[target], saturate=saturate)
    assert raw(y).tolist() == expected


@BOTH
def test_a_zero_point_of_plus_zero_takes_the_sign_from_minus_zero(quantize):
    x, zero = floats(-0.0), np.zeros((), ml_dtypes.float8_e4m3fn)
    assert raw(quantize(x, scalar(1), output_dtype=QDTYPES["float8e4m3fn"])).tolist() == [0x80]
    assert raw(quantize(x, scalar(1), zero)).tolist() == [0x00]
    assert raw(quantize(floats(-1e-9), scalar(1), zero)).tolist() == [0x80]


@BOTH
def test_the_nan_of_zero_by_zero_has_the_sign_of_x(quantize):
    y = quantize(floats(0.0, -0.0), scalar(0), output_dtype=QDTYPES["float8e4m3fn"])
    assert raw(y).tolist() == [0x7F, 0xFF]


@BOTH
def test_nonzero_zero_point_of_a_small_float_is_added_before_rounding(quantize):
    y = quantize(floats(1.0, 1.25), scalar(1), np.array(0.5, ml_dtypes.float4_e2m1fn))
    assert numbers(y, "float4e2m1").tolist() == [1.5, 2.0]


# Exactness


def test_true_division_not_a_reciprocal():
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 1, 64).astype(np.float32)
    ties = (np.arange(-120, 120) + 0.5).astype(np.float32)
    x = np.nextafter(ties[:, None] * scales, np.float32(0))
    expected = np.clip(np.rint((x / scales).astype(np.float64)), -128, 127).astype(np.int8)
    found = kernels.quantize(x, scales, np.zeros(64, np.int8), axis=1)
    np.testing.assert_array_equal(found, expected)
    assert (np.rint(x * (1 / scales)) != np.rint(x / scales)).any()  # the inputs do tell the two apart


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_half_precision_quotients_are_rounded_once(dtype):
    # All positive finite x, subnormal quotients included: on the nearer side of the midpoints to both neighbours.
    infinity = int(raw(np.array([np.inf], dtype))[0])
    x = np.arange(1, infinity, dtype=np.uint16).view(dtype)
    for scale in np.array([0.1, 3.0, 7e-8, 1000.0, 65504.0, 0.33], dtype):
        with np.errstate(over="ignore", under="ignore"):
            found = raw(x / scale)  # as reference.quantize_linear divides
        inside = (found > 0) & (found < infinity - 1)
        exact, code = x[inside].astype(np.float64), found[inside]
        for step in (-1, 1):
            sum_of_two = code.view(dtype).astype(np.float64) + (code + np.uint16(step % 65536)).view(dtype).astype(
                float
            )
            midpoint = sum_of_two / 2 * np.float64(scale)  # exact: twice the bits and one
            assert (exact >= midpoint if step < 0 else exact <= midpoint).all()
            assert (code[exact == midpoint] % 2 == 0).all()


def test_int32_is_rounded_once_to_bfloat16():
    x = np.array([(1 << 24) + (1 << 16) + 1, -((1 << 24) + (1 << 16) + 1)], np.int32)
    # Just above the tie of 2^24 and 2^24 + 2^17; float32 in between would make it the tie, and even the lower one.
    y = kernels.quantize(x, scalar(1 << 17, BFLOAT16), np.zeros((), np.int16), precision=BFLOAT16)
    assert y.tolist() == [129, -129]
    assert reference.quantize_linear(x, scalar(1 << 17, BFLOAT16), np.zeros((), np.int16)).tolist() == [129, -129]


@pytest.mark.parametrize("target", NARROW, ids=lambda t: t.name)
@pytest.mark.parametrize("source", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("saturate", [True, False])
def test_all_half_precision_inputs(target, source, saturate):
    if target.is_integer and not saturate:
        saturate = True
    x = np.arange(1 << 16).astype(np.uint16).view(source)
    with np.errstate(over="ignore"):
        scales = [np.array(s, source) for s in (1.0, 0.1, 2.0**-12, 513.0)]
    for scale in scales:
        found = kernels.quantize(x, scale, output_dtype=target, saturate=saturate)
        assert_same_bits(found, reference.quantize_linear(x, scale, output_dtype=target, saturate=saturate))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_all_codes_round_trip(target):
    codes = all_codes(target)
    for scale in (1.0, 0.3, 1e-20, 1e20):
        for zero_point in (None, np.zeros((), target.numpy), np.array(1, target.numpy)):
            if zero_point is not None and not target.is_integer:
                continue  # a difference of two small floats is not one
            values = kernels.dequantize(codes, scalar(scale), zero_point)
            back = kernels.quantize(values, scalar(scale), zero_point, output_dtype=target, saturate=False)
            if target.format and not target.format.signed_nan:
                np.testing.assert_array_equal(raw(back), raw(codes))
            else:
                nan = np.isnan(values)
                np.testing.assert_array_equal(raw(back)[~nan], raw(codes)[~nan])
                assert np.isnan(numbers(back, target.name)[nan]).all()


@pytest.mark.parametrize("name", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1"])
def test_rounding_agrees_with_ml_dtypes_inside_the_range(name):
    target = QDTYPES[name]
    x = np.random.default_rng(2).normal(size=20000).astype(np.float32) * np.float32(target.qmax / 8)
    x = np.clip(x, target.qmin, target.qmax)
    assert_same_bits(kernels.quantize(x, scalar(1), output_dtype=target), x.astype(target.numpy))


# Kernels are the reference


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("precision", FLOATS, ids=str)
def test_random_bit_patterns(target, precision):
    rng = np.random.default_rng(10)
    x, scale = (rng.integers(0, 2**32, 4000).astype(np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):  # for one half, quotients that are not extreme
        scale[:2000] = np.abs(x[:2000]) * rng.uniform(0.001, 2, 2000).astype(np.float32)
    for saturate in (True, False):
        options = {"axis": 0, "output_dtype": target, "precision": precision, "saturate": saturate}
        assert_same_bits(kernels.quantize(x, scale, **options), reference.quantize_linear(x, scale, **options))


def _both(case: Case, **options) -> None:
    options |= {"axis": case.axis, "block_size": case.block_size}
    if case.zero_point is None:
        options["output_dtype"] = case.target
    found = kernels.quantize(case.x, case.scale, case.zero_point, num_threads=case.threads, **options)
    assert_same_bits(found, reference.quantize_linear(case.x, case.scale, case.zero_point, **options))


@given(cases(), st.booleans(), st.sampled_from([None, *FLOATS]))
@settings(max_examples=200, deadline=None)
def test_kernel_is_the_reference(case, saturate, precision):
    _both(case, saturate=saturate, precision=precision)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("shape", "scale_shape", "axis", "block"),
    [
        ((300, 411), (), 0, 0),
        ((300, 411), (300,), 0, 0),
        ((300, 411), (411,), 1, 0),
        ((300, 411), (300, 13), 1, 32),
        ((300, 411), (5, 411), 0, 64),
        ((7, 130, 5, 31), (7, 3, 5, 31), 1, 50),
        ((3, 40000), (3, 40), 1, 1000),
    ],
)
@pytest.mark.parametrize("name", ["int8", "uint16", "int4", "float8e4m3fn"])
def test_work_larger_than_a_task(shape, scale_shape, axis, block, threads, name):
    rng = np.random.default_rng(3)
    target = QDTYPES[name]
    x = (rng.normal(size=shape) * 20).astype(np.float32)
    scale = rng.uniform(0.05, 0.3, scale_shape).astype(np.float32)
    options = {"axis": axis, "block_size": block, "output_dtype": target}
    found = kernels.quantize(x, scale, num_threads=threads, **options)
    expected = reference.quantize_linear(x, scale, **options)
    assert_same_bits(found, expected)
    packed = kernels.quantize(x, scale, packed=True, num_threads=threads, **options)
    assert_same_bits(packed, reference.pack(expected, target))


def _ties(rng: np.random.Generator, scale: np.ndarray, size: int) -> np.ndarray:
    """Values around every tie of the 8 bits and beyond, the nearest float32 on both sides among them."""
    ties = (rng.integers(-140, 140, size) + 0.5).astype(np.float32) * scale
    return np.nextafter(ties, (ties + rng.integers(-1, 2, size)).astype(np.float32))


@pytest.mark.parametrize("size", [8191, 8192, 8463, 262144 + 8500])
@pytest.mark.parametrize("offset", [0, 1, 15])
def test_runs_that_are_read_in_quarters(size, offset):
    rng = np.random.default_rng(size)
    scale = scalar(0.037)
    x = np.empty(size + 16, np.float32)[offset : offset + size]  # at every alignment of vectors
    x[:] = _ties(rng, scale, size)
    y = np.full(size + 2, 99, np.int8)
    found = kernels.quantize(x, scale, np.array(3, np.int8), out=y[1:-1], num_threads=1)
    np.testing.assert_array_equal(found, reference.quantize_linear(x, scale, np.array(3, np.int8)))
    assert (y[0], y[-1]) == (99, 99)


@pytest.mark.parametrize("blocks", [1, 3, 4, 7, 41])
@pytest.mark.parametrize("block", [255, 256, 300, 1024])
def test_blocks_that_are_read_four_at_a_time(blocks, block):
    rng = np.random.default_rng(block)
    scale = rng.uniform(0.01, 0.1, blocks).astype(np.float32)
    scale[::5] = np.float32(1e-35)  # too small for a reciprocal
    zero = rng.integers(0, 255, blocks).astype(np.uint8)
    x = _ties(rng, np.repeat(scale, block), blocks * block).reshape(blocks, block)
    found = kernels.quantize(x, scale, zero, axis=0, num_threads=1)
    np.testing.assert_array_equal(found, reference.quantize_linear(x, scale, zero, axis=0))


# Packed results


@BOTH
@pytest.mark.parametrize(
    ("target", "x", "expected"),
    [
        ("int4", [1, -2, 3, -4, 5], "e1c305"),
        ("uint4", [1, 15, 3, 12, 99], "f1c30f"),
        ("int2", [-2, -1, 0, 1, 1], "4e01"),
        ("uint2", [3, 0, 1], "13"),
        ("float4e2m1", [0.5, -6, 1.5], "f103"),
        ("int8", [1, -2], "01fe"),
        ("int16", [1, -2], "0100feff"),
        ("float8e4m3fn", [1, -1], "38b8"),
        ("int4", [], ""),
    ],
)
def test_packed_tables(quantize, target, x, expected):
    found = quantize(floats(*x), scalar(1), output_dtype=QDTYPES[target], packed=True)
    assert (found.dtype, found.ndim) == (np.uint8, 1)
    assert found.tobytes().hex() == expected


@given(cases())
@settings(max_examples=100, deadline=None)
def test_packed_is_the_reference(case):
    _both(case, packed=True)


@pytest.mark.parametrize("target", [t for t in NARROW if t.bits < 8], ids=lambda t: t.name)
@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (1, 32), (1, 17), (0, 2)])
def test_packed_rows_of_every_length(target, axis, block):
    """Runs begin and end within a byte, a tile of codes and a task."""
    rng = np.random.default_rng(24)
    for columns in (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 4095, 4097, 32769):
        x = (rng.normal(size=(5, columns)) * target.qmax).astype(np.float32)
        scale_shape = (
            tuple(-(-d // block) if i == axis else d for i, d in enumerate(x.shape)) if block else (x.shape[axis],)
        )
        scale = rng.uniform(0.5, 2, scale_shape).astype(np.float32)
        zero = rng.choice(all_codes(target), scale_shape)
        options = {"axis": axis, "block_size": block}
        expected = reference.quantize_linear(x, scale, zero, packed=True, **options)
        for threads in (1, 3):
            out = misaligned(np.full(expected.size, 0xAA, np.uint8), columns % 5)
            found = kernels.quantize(x, scale, zero, packed=True, out=out, num_threads=threads, **options)
            assert found is out
            assert_same_bits(found, expected)


def test_out_of_a_packed_result():
    x, int4 = floats(1, 2, 3), QDTYPES["int4"]
    with pytest.raises(KernelError, match=r"out has shape \(3,\) and type int4; expected \(2,\) and uint8"):
        kernels.quantize(x, scalar(1), output_dtype=int4, packed=True, out=np.zeros(3, int4.numpy))


def test_bits_above_the_code_of_a_zero_point_do_not_count():
    x = floats(-3, 0, 3)
    for name in ("int4", "uint4", "int2", "uint2"):
        clean = np.array(1, np.uint8).view(QDTYPES[name].numpy)
        dirty = np.array(0x71, np.uint8).view(QDTYPES[name].numpy)
        assert_same_bits(kernels.quantize(x, scalar(1), dirty), kernels.quantize(x, scalar(1), clean))


def test_zero_size_and_scalars():
    empty = np.zeros((0, 3), np.float32)
    assert kernels.quantize(empty, scalar(1)).shape == (0, 3)
    assert kernels.quantize(empty, np.ones(3, np.float32), axis=1).shape == (0, 3)
    assert kernels.quantize(empty, np.ones(0, np.float32), axis=0).shape == (0, 3)
    assert kernels.quantize(empty, np.ones((0, 2), np.float32), axis=1, block_size=2).shape == (0, 3)
    y = kernels.quantize(scalar(2.5), scalar(1))
    assert (y.shape, y.dtype, y.tolist()) == ((), np.uint8, 2)


def test_a_vector_with_one_scale_is_per_tensor():
    y = kernels.quantize(floats(1, 2, 3), floats(0.5), np.array([3], np.int8), axis=1)
    assert y.tolist() == [5, 7, 9]


def test_the_scale_may_be_int32_with_a_precision():
    y = kernels.quantize(floats(3, 5), np.array(2, np.int32), precision=np.float32)
    assert y.tolist() == [2, 2]


def test_out_is_filled_and_returned():
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((3, 4), np.int8)
    y = kernels.quantize(x, scalar(0.1), np.zeros((), np.int8), out=out)
    assert y is out
    np.testing.assert_array_equal(out, reference.quantize_linear(x, scalar(0.1), np.zeros((), np.int8)))


def test_inputs_are_left_alone():
    x, scale = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1], floats(1, 2, 3)
    before = x.copy(), scale.copy()
    kernels.quantize(x, scale, axis=1)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(scale, before[1])


# Errors state what was found and what was expected


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(3), scalar(1)), {}, "x has type float64; expected float32, float16, bfloat16, int32"),
        ((floats(1).astype(">f4"), scalar(1)), {}, "x has type float32 in foreign byte order; expected float32"),
        ((floats(1, 2), scalar(1, np.float64)), {}, "Scale has type float64; expected float32"),
        ((floats(1, 2), np.array(2, np.int32)), {}, "Scale has type int32; expected a precision"),
        ((floats(1, 2), scalar(1)), {"precision": np.float64}, "precision is float64; expected float32"),
        ((np.zeros((2, 3), np.float32), floats(1, 2)), {"axis": 1}, r"Scale has shape \(2,\); expected \(3,\)"),
        ((np.zeros((2, 3), np.float32), floats(1, 2)), {"axis": 2}, "Axis 2 is out of range for a tensor of rank 2"),
        (
            (np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)),
            {},
            "Scale has rank 2 and block_size is 0; expected a scalar or a 1-D scale",
        ),
        (
            (np.zeros((2, 9), np.float32), np.ones((2, 3), np.float32)),
            {"block_size": 5},
            "block_size is 5 for 9 elements and 3 scales along axis 1; expected 3 to 4",
        ),
        (
            (np.zeros((2, 9), np.float32), np.ones((2, 1), np.float32)),
            {"block_size": 8},
            "expected 9 or more",
        ),
        (
            (np.zeros((2, 9), np.float32), np.ones((2, 7), np.float32)),
            {"block_size": 1},
            r"expected another number of scales \(no block size gives 7\)",
        ),
        (
            (np.zeros((2, 9), np.float32), np.ones((3, 3), np.float32)),
            {"block_size": 3},
            r"Scale has shape \(3, 3\); expected \(2, 3\)",
        ),
        ((np.zeros((2, 9), np.float32), scalar(1)), {"block_size": 3}, "Scale has rank 0 and block_size is 3"),
        ((np.zeros((2, 9), np.float32), scalar(1)), {"block_size": -1}, "block_size is -1; expected a positive"),
        ((floats(1), scalar(1), np.zeros(2, np.int8)), {}, r"Zero point has shape \(2,\); expected that of the scale"),
        ((floats(1), scalar(1), np.zeros((), np.int32)), {}, "Zero point has type int32; expected a quantized type"),
        (
            (floats(1), scalar(1), np.zeros((), np.int8)),
            {"output_dtype": QDTYPES["uint8"]},
            "Zero point has type int8; expected output_dtype, uint8",
        ),
        ((floats(1), scalar(1)), {"output_dtype": QDTYPES["float8e8m0"]}, "it is a scale type"),
        (
            (floats(1), scalar(1)),
            {"out": np.zeros(2, np.uint8)},
            r"out has shape \(2,\) and type uint8; expected \(1,\)",
        ),
        ((floats(1), scalar(1)), {"out": np.zeros(1, np.int8)}, "and type int8; expected"),
        ((floats(1, 2), scalar(1)), {"out": np.zeros(4, np.uint8)[::2]}, "out is not C-contiguous"),
    ],
)
def test_errors(arguments, options, message):
    with pytest.raises(KernelError, match=message):
        kernels.quantize(*arguments, **options)


def test_out_must_not_be_the_input():
    x = np.zeros(4, np.float32)
    with pytest.raises(KernelError, match="out shares memory with the input"):
        kernels.quantize(x, scalar(1), out=x.view(np.uint8)[:4])


@pytest.mark.parametrize("block", [3, 4])
def test_every_legal_block_size_works(block):
    x = np.arange(9, dtype=np.float32).reshape(1, 9)
    scale = np.array([[1, 2, 4]], np.float32)
    found = kernels.quantize(x, scale, axis=1, block_size=block)
    np.testing.assert_array_equal(found, np.rint(x / np.repeat(scale, block, axis=1)[:, :9]).astype(np.uint8))


# Vector widths, alignment, and the neighbourhood of ties


def misaligned(values: np.ndarray, elements: int) -> np.ndarray:
    """A copy that begins ``elements`` items after a cache line."""
    memory = np.zeros(values.nbytes + 128 + elements * values.itemsize, np.uint8)
    start = -memory.ctypes.data % 64 + elements * values.itemsize
    view = memory[start : start + values.nbytes].view(values.dtype)
    view[:] = values
    return view


@pytest.mark.parametrize("name", ["int8", "uint8", "int4", "uint2", "int16", "uint16", "float8e4m3fn", "float4e2m1"])
@pytest.mark.parametrize("source", [*FLOATS, np.dtype(np.int32)], ids=str)
def test_every_length_of_run_and_alignment(name, source):
    target = QDTYPES[name]
    rng = np.random.default_rng(20)
    values = np.rint(rng.normal(size=200) * target.qmax * 4).astype(np.float32) / np.float32(8)
    with np.errstate(over="ignore"):
        whole, scale, zero = values.astype(source), scalar(0.5), np.array(1).astype(target.numpy)
    expected = reference.quantize_linear(whole, scale, zero)
    each, zeros = rng.uniform(0.4, 0.6, 200).astype(np.float32), rng.choice(all_codes(target), 200)
    expected_each = reference.quantize_linear(whole, each, zeros, axis=0)
    for n in (*range(1, 68), 127, 128, 129, 191, 192):
        x = misaligned(whole[:n], n % 7)
        out = misaligned(np.zeros(n, target.numpy), n % 5)
        assert_same_bits(kernels.quantize(x, scale, zero, out=out), expected[:n])
        assert_same_bits(kernels.quantize(x, each[:n], zeros[:n], axis=0, out=out), expected_each[:n])


@pytest.mark.parametrize("name", ["int8", "uint8", "int4", "uint2"])
@pytest.mark.parametrize(
    "exponent", [-149, -140, -126, -101, -100, -99, -40, -5, 0, 3, 60, 99, 100, 101, 118], ids=lambda e: f"2^{e}"
)
def test_ties_and_their_neighbours(name, exponent):
    target = QDTYPES[name]
    rng = np.random.default_rng(21)
    scales = np.ldexp(np.concatenate([[1, 1], rng.uniform(1, 2, 14)]), exponent).astype(np.float32)
    scales[1] *= -1
    ties = np.arange(target.qmin - 3, target.qmax + 4) + 0.5
    for scale in scales:
        near = (ties * np.float64(scale)).astype(np.float32).view(np.int32)
        x = (near[:, None] + np.arange(-4, 5, dtype=np.int32)).ravel().view(np.float32)
        for zero in (target.qmin, 0, target.qmax):
            point = np.array(zero).astype(target.numpy)
            assert_same_bits(kernels.quantize(x, scale, point), reference.quantize_linear(x, scale, point))


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-45, 1e-38, 2.0**-100, 0.3, -0.3, 2.0**100, 3e38, INF, NAN])
@pytest.mark.parametrize("name", ["int8", "uint8", "uint4", "float8e5m2"])
def test_extreme_scales_and_random_bit_patterns(scale, name):
    target = QDTYPES[name]
    x = np.random.default_rng(22).integers(0, 2**32, 20000).astype(np.uint32).view(np.float32)
    x[:7] = [0, -0.0, INF, -INF, NAN, 3e38, -3e38]
    found = kernels.quantize(x, scalar(scale), output_dtype=target)
    assert_same_bits(found, reference.quantize_linear(x, scalar(scale), output_dtype=target))


@pytest.mark.parametrize("block", [1, 2, 16, 31, 32, 33, 64])
@pytest.mark.parametrize("blocks", [1, 2, 3, 16, 17, 33, 35])
@pytest.mark.parametrize("name", ["int8", "int4", "float4e2m1"])
def test_blocks_whose_scales_have_nothing_in_common(block, blocks, name):
    target = QDTYPES[name]
    rng = np.random.default_rng(23)
    scale = np.ldexp(rng.uniform(1, 2, (3, blocks)), rng.integers(-8, 8, (3, blocks))).astype(np.float32)
    scale = np.where(
        rng.random(scale.shape) < 0.2, rng.choice(floats(0, INF, NAN, 1e-44, 3e38, -0.1), scale.shape), scale
    )
    zero = rng.choice(all_codes(target), scale.shape)
    for n in {blocks * block, blocks * block - block // 2}:
        ties = rng.integers(-40, 40, (3, n)) / np.float32(2)
        with np.errstate(all="ignore"):
            x = (ties * np.repeat(scale, block, axis=1)[:, :n]).astype(np.float32)
        options = {"axis": 1, "block_size": block}
        found = kernels.quantize(x, scale, zero, **options)
        assert_same_bits(found, reference.quantize_linear(x, scale, zero, **options))


@pytest.mark.parametrize("target", NARROW, ids=lambda t: t.name)
@pytest.mark.parametrize("source", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_all_half_precision_inputs_divided_in_float32(target, source):
    x = np.arange(1 << 16).astype(np.uint16).view(source)
    for scale in (scalar(0.1), scalar(3e-4)):
        found = kernels.quantize(x, scale, output_dtype=target)
        assert_same_bits(found, reference.quantize_linear(x, scale, output_dtype=target))


# onnxruntime, optimisations off


def _ort_quantize(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, target: QDType, **attributes) -> np.ndarray:
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    wide = onnx.TensorProto.INT8 if target.kind == "int" else onnx.TensorProto.UINT8
    nodes = [onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes)]
    output, output_type = "q", target.onnx
    if target.bits == 4:  # numpy has no type for it: the session cannot return one
        nodes.append(onnx.helper.make_node("Cast", ["q"], ["y"], to=wide))
        output, output_type = "y", wide
    graph = onnx.helper.make_graph(
        nodes,
        "quantize",
        [onnx.helper.make_tensor_value_info("x", onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [onnx.helper.make_tensor_value_info(output, output_type, x.shape)],
        [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(zero_point, "z")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("source", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("scale_shape", "attributes"),
    [((), {}), ((6,), {"axis": 0}), ((40,), {"axis": 1}), ((6, 3), {"axis": 1, "block_size": 16})],
)
def test_onnxruntime_agrees(name, source, scale_shape, attributes):
    rng = np.random.default_rng(4)
    target = QDTYPES[name]
    x = (rng.normal(size=(6, 40)) * target.qmax / 4).astype(source)
    x[0, :5] = [0, -0.0, np.inf, -np.inf, 0.5]
    scale = rng.uniform(0.3, 1.2, scale_shape).astype(source)
    low, high = max(int(target.qmin), -100), min(int(target.qmax), 100)
    zero_point = np.asarray(rng.integers(low, high + 1, scale_shape)).astype(target.numpy)
    # onnxruntime 1.32 divides float16 in float32, against the operator's document (but as its `precision` could ask).
    found = kernels.quantize(x, scale, zero_point, precision=np.float32, **attributes)
    expected = _ort_quantize(x, scale, zero_point, target, **attributes)
    np.testing.assert_array_equal(numbers(found, name), expected.astype(np.float32))
