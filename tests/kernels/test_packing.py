from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.dtypes import QDTYPES
from qtool.errors import KernelError
from tests.kernels.elementwise import all_codes, raw
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

EVERY_TYPE = pytest.mark.parametrize("dtype", QDTYPES.values(), ids=QDTYPES)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("int4", [1, -2, 3, -4, 5], "e1c305"),
        ("uint4", [1, 15, 3, 12, 5], "f1c305"),
        ("int4", [-8, -7, -6, -5], "98ba"),
        ("int2", [-2, -1, 0, 1], "4e"),
        ("uint2", [3, 0, 1], "13"),
        ("float4e2m1", [0.5, -6, 1.5], "f103"),
        ("int16", [1, -2], "0100feff"),
        ("uint8", [1, 254], "01fe"),
    ],
)
@pytest.mark.parametrize("pack", [kernels.pack, reference.pack], ids=["kernels", "reference"])
def test_tables(name, values, expected, pack):
    dtype = QDTYPES[name]
    packed = pack(np.array(values).astype(dtype.numpy), dtype)
    assert packed.dtype == np.uint8
    assert packed.tobytes().hex() == expected


@pytest.mark.parametrize("pack", [kernels.pack, reference.pack], ids=["kernels", "reference"])
def test_six_bit_codes_are_a_stream_with_low_bits_first(pack):
    dtype = QDTYPES["float6e2m3"]
    codes = np.array([0b000001, 0b100000, 0b111111, 0b010101, 0b100001], np.uint8).view(dtype.numpy)
    assert pack(codes, dtype).tolist() == [0b00000001, 0b11111000, 0b01010111, 0b00100001]


@EVERY_TYPE
@given(size=st.integers(0, 70), seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_round_trip(dtype, size, seed, threads):
    codes = np.random.default_rng(seed).choice(all_codes(dtype), size)
    packed = kernels.pack(codes, dtype, num_threads=threads)
    assert packed.size == dtype.nbytes(size)
    np.testing.assert_array_equal(packed, reference.pack(codes, dtype))
    for found in (
        kernels.unpack(packed, dtype, (size,), num_threads=threads),
        reference.unpack(packed, dtype, (size,)),
    ):
        assert found.dtype == dtype.numpy
        np.testing.assert_array_equal(raw(found), raw(codes))


@EVERY_TYPE
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (2, 3, 4)])
def test_onnx_reads_what_is_packed_and_the_other_way_round(dtype, shape):
    codes = np.random.default_rng(8).choice(all_codes(dtype), shape)
    codes = np.asarray(codes, dtype.numpy)
    tensor = onnx.TensorProto(dims=shape, data_type=dtype.onnx, raw_data=kernels.pack(codes, dtype).tobytes())
    np.testing.assert_array_equal(raw(onnx.numpy_helper.to_array(tensor)) & mask(dtype), raw(codes))
    written = onnx.numpy_helper.from_array(codes).raw_data
    assert written == tensor.raw_data
    np.testing.assert_array_equal(raw(kernels.unpack(written, dtype, shape)), raw(codes))


def mask(dtype):
    return (1 << dtype.bits) - 1


@pytest.mark.parametrize("name", ["int4", "int2", "float6e3m2", "int16"])
def test_strides_and_read_only(name):
    dtype = QDTYPES[name]
    codes = np.random.default_rng(9).choice(all_codes(dtype), (5, 7))[::2, ::-3]
    codes.flags.writeable = False
    np.testing.assert_array_equal(kernels.pack(codes, dtype), reference.pack(np.ascontiguousarray(codes), dtype))


def test_bits_above_the_code_are_dropped():
    dtype = QDTYPES["int4"]
    dirty = np.array([0xF1, 0xFE, 0x05], np.uint8).view(dtype.numpy)
    assert kernels.pack(dirty, dtype).tolist() == [0xE1, 0x05]


def test_out_is_filled_and_returned():
    for name, size in (("int4", 3), ("int8", 5)):
        dtype = QDTYPES[name]
        codes, out = np.arange(5).astype(dtype.numpy), np.zeros(size, np.uint8)
        assert kernels.pack(codes, dtype, out=out) is out
        np.testing.assert_array_equal(out, reference.pack(codes, dtype))


def test_unpack_takes_bytes_and_gives_memory_of_its_own():
    found = kernels.unpack(b"\x01\x02", QDTYPES["int8"], (2,))
    found[0] = 5
    assert found.tolist() == [5, 2]


def test_errors():
    with pytest.raises(KernelError, match="Codes have type uint8; expected int4, which stores int4"):
        kernels.pack(np.zeros(3, np.uint8), QDTYPES["int4"])
    with pytest.raises(KernelError, match=r"Raw data of type uint8 and shape \(3,\); expected 2 bytes for int4"):
        kernels.unpack(b"\x00\x00\x00", QDTYPES["int4"], (2, 2))
    with pytest.raises(KernelError, match=r"out has shape \(3,\)"):
        kernels.pack(np.zeros(4, QDTYPES["int4"].numpy), QDTYPES["int4"], out=np.zeros(3, np.uint8))


@pytest.mark.parametrize("name", ["int2", "uint4", "float6e3m2"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("groups", [8191, 8192, 8193, 16385, 20000])
def test_more_than_a_task(name, threads, groups):
    dtype = QDTYPES[name]
    size = groups * (4 if dtype.bits == 6 else 8 // dtype.bits)
    whole = np.random.default_rng(2).choice(all_codes(dtype), size + 1)
    for codes in (whole[: size - 1], whole[1:size], whole):
        packed = kernels.pack(codes, dtype, num_threads=threads)
        np.testing.assert_array_equal(packed, reference.pack(codes, dtype))
        found = kernels.unpack(packed, dtype, codes.shape, num_threads=threads)
        np.testing.assert_array_equal(raw(found), raw(codes))
