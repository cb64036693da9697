"""Sample files that are damaged or forged, in many ways, all from fixed seeds."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from qtool.calibrate.samples import open_samples
from qtool.runtime import TensorInfo
from tests.calibrate.readers.support import tensor

INPUTS = (TensorInfo("x", np.dtype(np.float32), ("N", "T")),)
ROWS = np.random.default_rng(0).standard_normal((40, 30), np.float32)

Make = Callable[[Path], str]


def npy(array: np.ndarray = ROWS) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npy_header(shape: object, dtype: object = "<f4", order: object = False) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_2_0(stream, {"descr": dtype, "fortran_order": order, "shape": shape})
    return stream.getvalue()


def npz(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return stream.getvalue()


STORED, DEFLATED = npz(("x.npy", npy()), method=zipfile.ZIP_STORED), npz(("x.npy", npy()))
TENSOR = tensor(ROWS, "x").SerializeToString()
WHOLE = {"stored.npz": STORED, "deflated.npz": DEFLATED, "x.npy": npy(), "test_data_set_0/input_0.pb": TENSOR}


def writer(name: str, content: bytes) -> Make:
    def make(folder: Path) -> str:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return str(path.parent if name.endswith(".pb") else path)

    return make


def forged() -> Iterator[tuple[str, Make]]:
    """Each must be refused."""
    dice = random.Random(4)
    for name, content in WHOLE.items():
        for length in {0, 1, 7, len(content) - 1, *(dice.randrange(len(content)) for _ in range(8))}:
            yield f"truncated {name} {length}", writer(name, content[:length])
    types = [np.int64, np.uint8, np.complex64, np.bool_, "<U4", "S3", "M8[s]", object, [("a", "f4")], "V4"]
    for number, dtype in enumerate(types):
        array = np.zeros((40, 30), dtype)
        yield f"npz of type {number}", writer("a.npz", npz(("x.npy", npy(array))))
        yield f"npy of type {number}", writer("x.npy", npy(array))
    shapes = [(1 << 40, 30), (1 << 62, 1 << 62), (-40, 30), (40, -30), (0, 30), (), (40,), (40, 30, 2, 1), (41, 30)]
    for shape in shapes:
        lying = npy_header(shape) + ROWS.tobytes()
        yield f"npz of shape {shape}", writer("a.npz", npz(("x.npy", lying)))
        yield f"npy of shape {shape}", writer("x.npy", lying)
    for number, header in enumerate(
        [
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
            b"\x93NUMPY\x07\x00\x10\x00" + b" " * 16,
            b"\x93NUMPY\x01\x00\x40\x00" + b"(" * 64,
            npy_header(b"40"),
            npy_header((40.5, 30)),
            npy_header((40, 30), "__import__('os')"),
            npy_header((40, 30), "|O"),
            npy_header((40, 30), order="yes"),
        ]
    ):
        yield f"npz header {number}", writer("a.npz", npz(("x.npy", header + ROWS.tobytes())))
        yield f"npy header {number}", writer("x.npy", header + ROWS.tobytes())
    for path in ("../../x.npy", "/x.npy", "..\\x.npy", "C:\\x.npy", "a/../../x.npy", "x.npy/", "sub/", "/etc/"):
        yield f"member {path}", writer("a.npz", npz(("x.npy", npy()), (path, b"" if path.endswith("/") else npy())))
        yield f"only member {path}", writer("a.npz", npz((path, b"" if path.endswith("/") else npy())))
    twice = npz(("x.npy", npy()), ("y.npy", npy(ROWS + 1))).replace(b"y.npy", b"x.npy")
    yield "a member twice", writer("a.npz", twice)
    yield "bzip2", writer("a.npz", npz(("x.npy", npy()), method=zipfile.ZIP_BZIP2))
    yield (
        "encrypted",
        writer("a.npz", STORED.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")),
    )
    yield "no arrays", writer("a.npz", npz())
    yield "a pickle", writer("a.npz", npz(("x.pkl", b"\x80\x04.")))
    size = STORED.index(b"PK\x01\x02") + 24
    for number in (1, 1 << 31, 0xFFFFFFFE):
        claim = bytearray(STORED)
        claim[size : size + 4] = number.to_bytes(4, "little")
        yield f"npz claims {number} bytes", writer("a.npz", bytes(claim))
    for number, change in enumerate(
        [
            {"dims": [1 << 40, 30]},
            {"dims": [1 << 62, 1 << 62]},
            {"dims": [-1, 30]},
            {"dims": [39, 30]},
            {"dims": []},
            {"data_type": 7},
            {"data_type": 8},
            {"data_type": 22},
            {"data_type": 99},
            {"raw_data": b""},
            {"name": "z"},
        ]
    ):
        one = tensor(ROWS, "x")
        for key, value in change.items():
            if isinstance(value, list):
                del one.dims[:]
                one.dims.extend(value)
            else:
                setattr(one, key, value)
        yield f"tensor {number}", writer("test_data_set_0/input_0.pb", one.SerializeToString())


def flipped() -> Iterator[tuple[str, Make]]:
    """A bit is another one: refused, or without meaning, or a value where there is no checksum."""
    dice = random.Random(5)
    for name, content in WHOLE.items():
        for _ in range(60 if name.endswith(".npz") else 25):
            position, bit = dice.randrange(len(content) if dice.random() < 0.3 else 300), dice.randrange(8)
            damaged = bytearray(content)
            damaged[-position if dice.random() < 0.5 else position] ^= 1 << bit
            yield f"flipped {name} {position}.{bit}", writer(name, bytes(damaged))


def read(data: str) -> np.ndarray:
    """All rows, as they are fed.

    Raises:
        QtoolError: If the data are refused.
    """
    return np.concatenate([feeds["x"] for feeds in open_samples(data, INPUTS).batches(7)])
