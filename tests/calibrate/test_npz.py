import io
import random
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool.calibrate import npy
from qtool.calibrate.npz import NpzFile
from qtool.errors import DataError


def pieces(path, name, size):
    with NpzFile(path) as archive:
        return list(archive.rows(archive.member(name), size))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("npz")


DTYPES = ["<f4", ">f4", "<f8", "<f2", "<i8", ">i4", "u1", "?", "<U5", "<c8"]


@settings(max_examples=40, deadline=None)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    dtype=st.sampled_from(DTYPES),
    size=st.integers(1, 7),
    compressed=st.booleans(),
    fortran=st.booleans(),
    data=st.data(),
)
def test_rows_are_the_array(folder, shape, dtype, size, compressed, fortran, data):
    count = int(np.prod(shape))
    array = np.arange(count).reshape(shape).astype(dtype)
    if fortran:
        array = np.asfortranarray(array)
    path = folder / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, first=np.zeros(3), **{"a/b:0": array})
    with NpzFile(path) as archive:
        assert archive.names == ("first", "a/b:0")
        member = archive.member("a/b:0")
        assert member.shape == shape
        got = list(archive.rows(member, size))
        whole = archive.read(member)
    np.testing.assert_array_equal(whole, array)
    assert whole.dtype.isnative
    assert [len(piece) for piece in got] == [min(size, shape[0] - i) for i in range(0, shape[0], size)]
    if got:
        np.testing.assert_array_equal(np.concatenate(got), array)
    assert all(piece.flags.c_contiguous and piece.dtype == array.dtype.newbyteorder("=") for piece in got)


def test_fortran_members_are_turned_in_strips(tmp_path, monkeypatch):
    monkeypatch.setattr(npy, "_TRANSPOSE_BYTES", 100)
    array = np.asfortranarray(np.random.default_rng(0).standard_normal((7, 3, 5, 2), np.float32))
    np.savez(tmp_path / "a.npz", a=array)
    np.testing.assert_array_equal(np.concatenate(pieces(tmp_path / "a.npz", "a", 3)), array)


def test_two_members_are_read_in_step(tmp_path):
    a, b = np.arange(3000, dtype=np.float32).reshape(10, 300), np.arange(20).reshape(10, 2)
    np.savez_compressed(tmp_path / "a.npz", a=a, b=b)
    with NpzFile(tmp_path / "a.npz") as archive:
        for start, (x, y) in enumerate(
            zip(archive.rows(archive.member("a"), 1), archive.rows(archive.member("b"), 1), strict=True)
        ):
            np.testing.assert_array_equal(x, a[start : start + 1])
            np.testing.assert_array_equal(y, b[start : start + 1])


def test_zero_dimensional_member(tmp_path):
    np.savez(tmp_path / "a.npz", sr=np.int64(16000))
    with NpzFile(tmp_path / "a.npz") as archive:
        assert archive.read(archive.member("sr")) == 16000


# ---------------------------------------------------------------------------------------------------------- refusals


def refuse(path, match, name="a"):
    with pytest.raises(DataError, match=match) as caught:
        pieces(path, name, 2)
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message


def test_missing_file_and_folder(tmp_path):
    refuse(tmp_path / "no.npz", r"^Sample data '.*no\.npz' cannot be read: No such file or directory\.$")
    refuse(tmp_path, "cannot be read: Is a directory")


def test_npy_and_other_files(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    refuse(tmp_path / "a.npy", "is a .npy file; expected an .npz file")
    (tmp_path / "a.npz").write_bytes(b"")
    refuse(tmp_path / "a.npz", "is not an .npz file")
    (tmp_path / "a.npz").write_text("hello world")
    refuse(tmp_path / "a.npz", "is not an .npz file")


def test_pickles_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{"x": 1}, [2]], dtype=object))
    refuse(tmp_path / "a.npz", "array 'a' holds Python objects")


def test_structured_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3, [("x", "f4"), ("y", "i4")]))
    refuse(tmp_path / "a.npz", "array 'a' is a structured array")


def npy_bytes(shape, dtype="<f4", data=b""):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def write_zip(path, content, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.npy", content)


@pytest.mark.parametrize(
    "content",
    [
        npy_bytes((1 << 40, 8)),  # claims 32 TB
        npy_bytes((10, 8), data=bytes(4 * 79)),  # a value short
        npy_bytes((10, 8), data=bytes(4 * 81)),  # a value too many
        npy_bytes((-1, 8)),
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16,
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'(((",
        b"",
    ],
)
def test_headers_that_lie(tmp_path, content):
    write_zip(tmp_path / "a.npz", content)
    refuse(tmp_path / "a.npz", "array 'a' (has a damaged header|is damaged: its header describes)")


def test_a_sample_of_many_gigabytes_is_refused_before_it_is_allocated(tmp_path, monkeypatch):
    write_zip(tmp_path / "a.npz", npy_bytes((1, 100_000), data=bytes(400_000)))
    monkeypatch.setattr(npy, "_MAX_ROW_BYTES", 399_999)
    refuse(tmp_path / "a.npz", "takes 400000 bytes for each sample; expected at most 399999")


def test_whole_arrays_have_the_same_limit(tmp_path, monkeypatch):
    write_zip(tmp_path / "a.npz", npy_bytes((100, 1000), data=bytes(400_000)))
    monkeypatch.setattr(npy, "_MAX_ROW_BYTES", 399_999)
    with NpzFile(tmp_path / "a.npz") as archive, pytest.raises(DataError, match="takes 400000 bytes; expected at most"):
        archive.read(archive.member("a"))


def test_bombs_are_refused_in_little_memory(tmp_path):
    """256 MB of spaces in a header, and of zeros in an array of a wrong shape, each in a file of 256 kB."""
    length = 256 << 20
    bombs = {
        "header": b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + b" " * length,
        "array": npy_bytes((1, length // 8), data=bytes(length)),
    }
    for name, content in bombs.items():
        write_zip(tmp_path / f"{name}.npz", content)
    del bombs, content
    tracemalloc.start()
    try:
        for name in ("header", "array"):
            with pytest.raises(DataError, match=r"has a damaged header|its header describes"):
                pieces(tmp_path / f"{name}.npz", "a", 1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_other_compression_methods(tmp_path):
    write_zip(tmp_path / "a.npz", npy_bytes((2,), data=bytes(8)), zipfile.ZIP_BZIP2)
    refuse(tmp_path / "a.npz", "zip compression method 12; expected stored or deflated")


@pytest.mark.parametrize("compressed", [True, False])
def test_truncated_files(tmp_path, compressed):
    whole = tmp_path / "whole.npz"
    array = np.random.default_rng(0).standard_normal((50, 20), np.float32)
    (np.savez_compressed if compressed else np.savez)(whole, a=array)
    content = whole.read_bytes()
    cut = tmp_path / "cut.npz"
    for length in range(0, len(content) - 1, 97):
        cut.write_bytes(content[:length])
        refuse(cut, "Sample data")


@pytest.mark.parametrize("compressed", [True, False])
def test_flipped_bits_are_found_or_harmless(tmp_path, compressed):
    whole = tmp_path / "whole.npz"
    array = np.random.default_rng(0).standard_normal((50, 20), np.float32)
    (np.savez_compressed if compressed else np.savez)(whole, a=array)
    content = whole.read_bytes()
    flipped = tmp_path / "flipped.npz"
    dice = random.Random(0)
    positions = [
        *range(200),
        *range(len(content) - 150, len(content)),
        *(dice.randrange(len(content)) for _ in range(300)),
    ]
    found = 0
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << dice.randrange(8)
        flipped.write_bytes(damaged)
        try:
            with NpzFile(flipped) as archive:
                if archive.names != ("a",):
                    found += 1  # the name itself was hit: the input is reported as missing
                    continue
                got = np.concatenate(list(archive.rows(archive.member("a"), 7)))
        except DataError as error:
            lines = error.message.splitlines()
            found += 1
        else:  # a time stamp or another field without meaning for the data
            np.testing.assert_array_equal(got, array)
            lines = [""]
        assert len(lines) == 1
    assert found > len(positions) // 2
