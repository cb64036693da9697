"""Damaged and forged sample files: one clear line each, in little memory, and nothing is written."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from qtool.__main__ import main
from qtool.calibrate import npz
from qtool.errors import DataError
from tests.calibrate.readers import corruptions
from tests.calibrate.readers.corruptions import ROWS, flipped, forged, read

ROOT = Path(__file__).resolve().parents[3]
FORGED, FLIPPED = dict(forged()), dict(flipped())
CHECKSUM = ".npz "


def test_there_are_many():
    assert len(FORGED) > 120
    assert len(FLIPPED) > 120
    for name, content in corruptions.WHOLE.items():
        assert len(content) > 4000, name


@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_is_refused(tmp_path, name):
    data = FORGED[name](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError) as caught:
        read(data)
    assert caught.value.message.count("\n") == 0
    assert caught.value.message.endswith(".")
    assert str(tmp_path) in caught.value.message
    assert len(caught.value.message) < 600
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", FLIPPED)
def test_what_is_flipped_is_refused_or_harmless(tmp_path, name):
    try:
        got = read(FLIPPED[name](tmp_path))
    except DataError as error:
        got, lines = None, error.message.splitlines()
        assert len(lines) == 1
    if got is None:
        return
    assert got.dtype == np.float32
    if CHECKSUM in name:
        np.testing.assert_array_equal(got, ROWS)
    else:  # a value, or the shape of a tensor of so many values
        assert got.size == ROWS.size


def test_whole_files_are_read(tmp_path):
    for name, content in corruptions.WHOLE.items():
        np.testing.assert_array_equal(read(corruptions.writer(name, content)(tmp_path)), ROWS)


def test_a_sample_that_is_next_to_nothing_in_the_archive_is_a_bomb(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((2, 1_000_000), np.float32))
    assert read(str(tmp_path / "a.npz")).shape == (2, 1_000_000)
    monkeypatch.setattr(npz, "_BOMB_BYTES", 3_999_999)
    with pytest.raises(DataError, match=r"inflates to \d+ times .* 4000000 bytes for each sample; .* a zip bomb"):
        read(str(tmp_path / "a.npz"))


SCRIPT = """
import json, resource, sys, tempfile
from pathlib import Path
from qtool.errors import QtoolError
import onnx.numpy_helper, ml_dtypes
from tests.calibrate.readers.corruptions import flipped, forged, read, writer, WHOLE

folder = Path(sys.argv[1])
for name, content in WHOLE.items():  # whatever is imported late
    read(writer(name, content)(folder))
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (96 << 20),) * 2)
refused = {}
bombs = {name: lambda _, path=path: path for name, path in json.loads(sys.argv[2]).items()}
cases = {**dict(forged()), **dict(flipped()), **bombs}
for name, make in cases.items():
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        try:
            read(make(Path(fresh)))
        except QtoolError as error:
            refused[name] = error.message
print(json.dumps(refused))
"""


class Sparse:
    """A file in which stretches of zeros take no space."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        if (
            any(memoryview(data)[:64])
            or any(memoryview(data)[-64:])
            or len(data) < 4096
            or np.frombuffer(data, "u1").any()
        ):
            return self.file.write(data)
        self.file.seek(len(data), 1)
        return len(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def write_zeros(path: Path, shape: tuple[int, ...], method: int | None) -> None:
    """An .npz archive, or an .npy file, of float32 zeros that needs little memory and disk to write."""
    header, nbytes = corruptions.npy_header(shape), 4 * int(np.prod(shape))
    if method is None:
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + nbytes)
        return
    chunk = bytes(1 << 20)
    with (
        path.open("wb") as file,
        zipfile.ZipFile(Sparse(file), "w", method) as archive,
        archive.open("x.npy", "w") as stream,
    ):
        stream.write(header)
        for start in range(0, nbytes, len(chunk)):
            stream.write(chunk[: nbytes - start])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc and RLIMIT_AS")
def test_all_of_them_in_little_memory(tmp_path):
    """The same ones and true bombs, in a process that may not grow by more than 96 MB."""
    bombs = {
        "row": ((1, 75 << 20), zipfile.ZIP_DEFLATED, "that is refused as a zip bomb."),
        "row below the limit": (
            (1, 50 << 20),
            zipfile.ZIP_DEFLATED,
            "does not fit into memory: 1 samples take 209715200",
        ),
        "npy row": ((1, 50 << 20), None, "does not fit into memory: 1 samples take 209715200 bytes."),
        "npy of a row of 4 GB": (
            (2, 1 << 30),
            None,
            "takes 4294967296 bytes for each sample; expected at most 2147483648.",
        ),
    }
    for name, (shape, method, _) in bombs.items():
        write_zeros(tmp_path / f"{name}.{'npy' if method is None else 'npz'}", shape, method)
    paths = {
        name: str(tmp_path / f"{name}.{'npy' if method is None else 'npz'}") for name, (_, method, _) in bombs.items()
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, json.dumps(paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    refused = json.loads(run.stdout)
    assert [name for name in FORGED if name not in refused] == []
    for name, (_, _, said) in bombs.items():
        assert said in refused[name]


STREAM = """
import resource, sys
import numpy as np
from qtool.calibrate.samples import open_samples
from tests.calibrate.readers.corruptions import INPUTS

options = eval(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = open_samples(sys.argv[1], INPUTS, **options)
for _ in range(2):
    rows = sum(rows for rows, feeds in samples.counted_batches(2) if feeds["x"].shape[1] == 1 << 18)
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("kind", ["stored", "deflated", "npy"])
@pytest.mark.parametrize(("options", "count"), [({}, 300), ({"limit": 50, "shuffle_seed": 1}, 50)])
def test_memory_does_not_depend_on_the_size_of_the_file(tmp_path, kind, options, count):
    """300 samples of 1 MB."""
    method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "npy": None}[kind]
    path = tmp_path / ("x.npy" if method is None else "x.npz")
    write_zeros(path, (300, 1 << 18), method)
    run = subprocess.run(
        [sys.executable, "-c", STREAM, path, repr(options)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    rows, megabytes = map(int, run.stdout.split())
    assert rows == count
    assert megabytes < 24


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in FORGED if name.startswith(("member ", "npz header ", "tensor "))),
        *(name for name in FORGED if name.startswith("truncated ")),
    ][::2],
)
def test_the_command_says_one_line_and_writes_nothing(examples, tmp_path, capsys, name):
    data = FORGED[name](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    model = str(examples / "mnist_cnn.onnx")
    code = main(["calibrate", model, "--data", data, "-o", str(tmp_path / "s.npz")])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    line, *hints = captured.err.splitlines()
    assert line.startswith("error: Sample data")
    assert all(hint.startswith("hint: ") for hint in hints)
    assert sorted(tmp_path.rglob("*")) == before
