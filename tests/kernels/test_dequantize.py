from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.dtypes import BFLOAT16 as BFLOAT16_FORMAT
from qtool.dtypes import FLOAT16 as FLOAT16_FORMAT
from qtool.dtypes import QDTYPES
from qtool.errors import KernelError
from qtool.kernels import elementwise
from tests.kernels.elementwise import (
    BFLOAT16,
    E8M0,
    FLOATS,
    TARGETS,
    all_codes,
    assert_same_bits,
    cases,
    floats,
    raw,
    scalar,
)
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

BOTH = pytest.mark.parametrize(
    "dequantize", [kernels.dequantize, reference.dequantize_linear], ids=["kernels", "reference"]
)


# Numerics, section 2: the value tables


@BOTH
@pytest.mark.parametrize(
    ("dtype", "x", "zero_point", "expected"),
    [
        ("uint8", 0, 255, -255),
        ("int8", -128, 127, -255),
        ("uint16", 0, 65535, -65535),
        ("int16", -32768, 32767, -65535),
    ],
)
def test_widens_before_subtracting(dequantize, dtype, x, zero_point, expected):
    y = dequantize(np.array([x], dtype), scalar(1), np.array(zero_point, dtype))
    assert y.tolist() == [expected]


@BOTH
def test_blocked_with_zero_points(dequantize):
    x = np.full((1, 8), 9, np.uint8)
    y = dequantize(x, floats(1, 2, 3, 4)[None], np.array([[1, 2, 3, 4]], np.uint8), axis=1, block_size=2)
    assert y.tolist() == [[8, 8, 14, 14, 18, 18, 20, 20]]


@BOTH
def test_blocked_with_partial_last_block(dequantize):
    y = dequantize(np.ones((7, 1), np.int8), floats(1, 10)[:, None], axis=0, block_size=4)
    assert y.ravel().tolist() == [1, 1, 1, 1, 10, 10, 10]


@BOTH
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_output_type_is_that_of_the_scale_or_output_dtype(dequantize, name):
    dtype = np.dtype(getattr(np, name, BFLOAT16))
    x = np.array([3], np.int8)
    assert dequantize(x, scalar(2, dtype)).dtype == dtype
    assert dequantize(x, scalar(2), output_dtype=dtype).dtype == dtype
    assert dequantize(x, scalar(2, E8M0), output_dtype=dtype).dtype == dtype


@BOTH
def test_the_scale_is_cast_to_the_output_type_before_it_multiplies(dequantize):
    x, scale = np.array([100, 3], np.int8), scalar(0.1)
    y = dequantize(x, scale, output_dtype=np.float16)
    assert y.tolist() == (x.astype(np.float16) * np.float16(0.1)).tolist()
    assert (x.astype(np.float32) * np.float32(0.1)).astype(np.float16).tolist() != y.tolist()


@BOTH
def test_sixteen_bit_codes_do_not_overflow_a_half_precision_output(dequantize):
    y = dequantize(np.array([65535, 2049], np.uint16), scalar(0.001, np.float16))
    s = float(np.float16(0.001))
    assert y.tolist() == [float(np.float16(65535 * s)), float(np.float16(2049 * s))]


@BOTH
def test_int32(dequantize):
    x = np.array([1, -7, (1 << 24) + 1, -(1 << 31)], np.int32)
    assert dequantize(x, scalar(0.5)).tolist() == [0.5, -3.5, 2.0**23, -(2.0**30)]


@BOTH
def test_e8m0_scale_values(dequantize):
    codes = np.array([127, 128, 126, 0, 254, 255], np.uint8).view(E8M0)
    y = dequantize(np.full(6, 3, np.int8), codes, axis=0, output_dtype=np.float32)
    np.testing.assert_array_equal(y, [3, 6, 1.5, 3 * 2.0**-127, np.inf, np.nan])


@BOTH
def test_special_values_of_small_floats(dequantize):
    x = np.array([0x7C, 0xFC, 0x7D, 0x80], np.uint8).view(ml_dtypes.float8_e5m2)
    y = dequantize(x, scalar(2))
    np.testing.assert_array_equal(y, [np.inf, -np.inf, np.nan, -0.0])
    assert np.signbit(y[3])


@BOTH
@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4e2m1", "float6e2m3"])
def test_bits_above_a_narrow_code_do_not_count(dequantize, name):
    dtype = QDTYPES[name]
    codes = all_codes(dtype)
    dirty = (raw(codes) | np.uint8(256 - (1 << dtype.bits))).view(dtype.numpy)
    assert_same_bits(dequantize(dirty, scalar(1)), dequantize(codes, scalar(1)))


# Oracles


@pytest.mark.parametrize("dtype", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("output", FLOATS, ids=str)
def test_all_codes_are_what_ml_dtypes_says(dtype, output):
    codes = all_codes(dtype)
    with np.errstate(over="ignore"):
        expected = codes.astype(np.float32).astype(output)  # the first is exact
    assert_same_bits(kernels.dequantize(codes, scalar(1, output)), expected)


@pytest.mark.parametrize(("output", "form"), [(np.dtype(np.float16), FLOAT16_FORMAT), (BFLOAT16, BFLOAT16_FORMAT)])
def test_half_precision_products_are_rounded_once(output, form):
    # Against exact rational arithmetic, with ties, subnormal results and sums of 17 bits.
    rng = np.random.default_rng(5)
    x = rng.integers(0, 65536, 300).astype(np.uint16)
    zero_point = rng.integers(0, 65536, 300).astype(np.uint16)
    unit = form.magnitude(1)
    scales = np.concatenate([rng.uniform(unit, 200 * unit, 150), rng.uniform(1e-4, 0.5, 150)]).astype(output)
    found = kernels.dequantize(x, scales, zero_point, axis=0)
    for i in range(300):
        exact = Fraction(int(x[i]) - int(zero_point[i])) * Fraction(float(scales[i]))
        value = Fraction(float(found[i]))
        code = int(raw(found[i : i + 1])[0]) & 0x7FFF
        below = Fraction(form.magnitude(code - 1)) if code else None
        above = Fraction(form.magnitude(code + 1))
        size = abs(exact)
        assert exact == 0 or value == 0 or (exact > 0) == (value > 0)
        assert size <= (abs(value) + above) / 2
        assert below is None or size >= (abs(value) + below) / 2
        if below is not None and size in ((abs(value) + above) / 2, (abs(value) + below) / 2):
            assert code % 2 == 0


@given(cases(), st.sampled_from([None, *FLOATS]))
@settings(max_examples=200, deadline=None)
def test_kernel_is_the_reference(case, output):
    codes = kernels.quantize(
        case.x, case.scale, case.zero_point, axis=case.axis, block_size=case.block_size, output_dtype=case.target
    )
    if output is None and case.scale.dtype == E8M0:
        output = FLOATS[0]
    options = {"axis": case.axis, "block_size": case.block_size, "output_dtype": output}
    if codes.ndim >= 2:
        codes = np.ascontiguousarray(codes.swapaxes(0, -1)).swapaxes(0, -1)
    codes.flags.writeable = False
    found = kernels.dequantize(codes, case.scale, case.zero_point, num_threads=case.threads, **options)
    assert_same_bits(found, reference.dequantize_linear(codes, case.scale, case.zero_point, **options))


@given(st.integers(0, 2**32 - 1), st.sampled_from(FLOATS))
@settings(max_examples=30, deadline=None)
def test_int32_kernel_is_the_reference(seed, output):
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2**31), 2**31, (4, 5)).astype(np.int32) >> rng.integers(0, 31, (4, 5)).astype(np.int32)
    scale = rng.uniform(1e-6, 1e-3, 5).astype(np.float32)
    options = {"axis": 1, "output_dtype": output}
    assert_same_bits(kernels.dequantize(x, scale, **options), reference.dequantize_linear(x, scale, **options))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("scale_shape", "axis", "block"),
    [((), 0, 0), ((300,), 0, 0), ((411,), 1, 0), ((300, 13), 1, 32), ((5, 411), 0, 64)],
)
@pytest.mark.parametrize("name", ["int8", "int16", "uint4", "float8e5m2"])
@pytest.mark.parametrize("output", [np.float32, np.float16])
def test_work_larger_than_a_task(scale_shape, axis, block, threads, name, output):
    rng = np.random.default_rng(6)
    codes = rng.choice(all_codes(QDTYPES[name]), (300, 411))
    scale = rng.uniform(0.001, 0.01, scale_shape).astype(np.float32)
    options = {"axis": axis, "block_size": block, "output_dtype": output}
    found = kernels.dequantize(codes, scale, num_threads=threads, **options)
    assert_same_bits(found, reference.dequantize_linear(codes, scale, **options))


@pytest.mark.parametrize("stream", [False, True], ids=["cached", "streamed"])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int4", "uint2", "float8e4m3fn", "float6e2m3"])
def test_every_length_of_run_and_alignment(monkeypatch, stream, name):
    monkeypatch.setattr(elementwise, "STREAM_BYTES", 0 if stream else 1 << 60)
    codes = np.random.default_rng(8).choice(all_codes(QDTYPES[name]), 300)
    scale, zero = scalar(0.3), codes[:1].reshape(())
    expected = reference.dequantize_linear(codes, scale, zero)
    memory = np.zeros(400, np.float32)
    for n in (*range(68), 127, 128, 129, 191, 192, 255, 280):
        out = memory[n % 17 : n % 17 + n]
        assert_same_bits(
            kernels.dequantize(codes[n % 5 : n % 5 + n], scale, zero, out=out), expected[n % 5 : n % 5 + n]
        )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("scale_shape", "axis", "block"), [((), 0, 0), ((300,), 0, 0), ((411,), 1, 0), ((300, 13), 1, 32)]
)
@pytest.mark.parametrize("name", ["int8", "uint16", "int4", "float8e5m2"])
def test_stores_past_the_cache_give_the_same(monkeypatch, scale_shape, axis, block, threads, name):
    monkeypatch.setattr(elementwise, "STREAM_BYTES", 0)
    rng = np.random.default_rng(9)
    codes = rng.choice(all_codes(QDTYPES[name]), (300, 411))
    scale = rng.uniform(0.001, 0.01, scale_shape).astype(np.float32)
    options = {"axis": axis, "block_size": block}
    found = kernels.dequantize(codes, scale, num_threads=threads, **options)
    assert_same_bits(found, reference.dequantize_linear(codes, scale, **options))


def _ort_dequantize(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, **attributes) -> np.ndarray:
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    output = onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], **attributes)],
        "dequantize",
        [],
        [onnx.helper.make_tensor_value_info("y", output, x.shape)],
        [onnx.numpy_helper.from_array(a, n) for a, n in ((x, "x"), (scale, "s"), (zero_point, "z"))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})[0]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("output", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("scale_shape", "attributes"),
    [((), {}), ((6,), {"axis": 0}), ((40,), {"axis": 1}), ((6, 3), {"axis": 1, "block_size": 16})],
)
def test_onnxruntime_agrees(name, output, scale_shape, attributes):
    rng = np.random.default_rng(7)
    codes = all_codes(QDTYPES[name])
    x, zero_point = rng.choice(codes, (6, 40)), np.asarray(rng.choice(codes, scale_shape))
    scale = rng.uniform(1e-3, 1, scale_shape).astype(output)
    found = kernels.dequantize(x, scale, zero_point, **attributes)
    assert_same_bits(found, _ort_dequantize(x, scale, zero_point, **attributes))


# Shapes, out, errors


def test_zero_size_and_scalars():
    assert kernels.dequantize(np.zeros((0, 3), np.int8), scalar(1)).shape == (0, 3)
    y = kernels.dequantize(np.array(5, np.uint8), scalar(2), np.array(1, np.uint8))
    assert (y.shape, y.dtype, y.tolist()) == ((), np.float32, 8.0)


def test_out_is_filled_and_returned():
    out = np.zeros(3, np.float16)
    assert kernels.dequantize(np.array([1, 2, 3], np.int8), scalar(0.5), output_dtype=np.float16, out=out) is out
    assert out.tolist() == [0.5, 1, 1.5]


def test_negative_zero_survives_a_zero_zero_point():
    x = np.array([0x80], np.uint8).view(ml_dtypes.float8_e4m3fn)
    y = kernels.dequantize(x, scalar(1), np.zeros((), ml_dtypes.float8_e4m3fn))
    assert math.copysign(1, y[0]) == -1


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(3), scalar(1)), {}, "x has type float64; expected a quantized type or int32"),
        ((np.zeros(3, ">i2"), scalar(1)), {}, "x has type int16 in foreign byte order; expected a quantized type"),
        ((np.zeros(3, np.uint8).view(E8M0), scalar(1)), {}, "x has type float8_e8m0fnu; expected"),
        ((np.zeros(3, np.int8), scalar(1, np.float64)), {}, "Scale has type float64; expected float32"),
        ((np.zeros(3, np.int8), scalar(1, E8M0)), {}, "there is no output_dtype; expected one"),
        ((np.zeros(3, np.int8), scalar(1)), {"output_dtype": np.float64}, "output_dtype is float64; expected float32"),
        ((np.zeros(3, np.int32), scalar(1), np.zeros((), np.int32)), {}, "x has type int32 and there is a zero point"),
        (
            (np.zeros(3, np.int8), scalar(1), np.zeros((), np.uint8)),
            {},
            "Zero point has type uint8; expected that of x",
        ),
        ((np.zeros(3, np.int8), scalar(1), np.zeros(3, np.int8)), {}, r"Zero point has shape \(3,\); expected that of"),
        ((np.zeros((2, 3), np.int8), floats(1, 2)), {}, r"Scale has shape \(2,\); expected \(3,\)"),
        ((np.zeros(3, np.int8), scalar(1)), {"out": np.zeros(3)}, "out has shape"),
    ],
)
def test_errors(arguments, options, message):
    with pytest.raises(KernelError, match=message):
        kernels.dequantize(*arguments, **options)
