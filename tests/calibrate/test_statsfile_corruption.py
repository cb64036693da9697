"""Damaged and forged statistics files: one clear line each, in little memory, and nothing is written."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from qtool.__main__ import main
from qtool.calibrate.statsfile import load_statistics
from qtool.errors import DataError
from tests.cases.files_support import mlp, samples, snapshot

Members = dict[str, bytes]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real statistics file."""
    folder = tmp_path_factory.mktemp("whole")
    qtool.calibrate(mlp(), samples(9), output=folder / "s.npz")
    return (folder / "s.npz").read_bytes()


def members_of(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def archive_of(members: Members, *, method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def header_of(members: Members) -> dict[str, Any]:
    return json.loads(np.load(io.BytesIO(members["header.npy"])).tobytes())


def with_header(members: Members, text: Any) -> bytes:
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return archive_of(members | {"header.npy": npy(np.frombuffer(raw, np.uint8))})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(min(len(value), 2)):
            yield from leaves(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def forged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Each must be refused."""
    dice, members = random.Random(6), members_of(whole)
    for length in {0, 1, 21, len(whole) - 1, *(dice.randrange(len(whole)) for _ in range(20))}:
        yield f"truncated to {length}", whole[:length]
    for name in members:
        yield f"without {name}", archive_of({key: value for key, value in members.items() if key != name})
        for kind in ("f8", "O", "U3", "M8[s]", [("a", "i4")]):
            array = np.zeros(3, kind)
            yield f"{name} of type {kind}", archive_of(members | {name: npy(array)})
        yield f"{name} empty", archive_of(members | {name: b""})
        yield f"{name} cut", archive_of(members | {name: members[name][:-1]})
        yield f"{name} longer", archive_of(members | {name: members[name] + b"\0"})
    lies = {"descr": "<i8", "fortran_order": False, "shape": (1 << 40, 8192)}
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(lying, lies)
    yield "a shape of terabytes", archive_of(members | {"histograms.npy": lying.getvalue() + b"\0" * 4096})
    for path in (
        "../../x.npy",
        "/etc/x.npy",
        "..\\x.npy",
        "C:\\x.npy",
        "x/",
        "x.npy",
        "x.pkl",
        "a\nb.npy",
        "batch_9_0.npy",
    ):
        yield f"member {path!r}", archive_of(members | {path: npy(np.zeros(2))})
    twice = archive_of(members | {"headex.npy": members["header.npy"]}).replace(b"headex", b"header")
    yield "a member twice", twice
    yield "compressed", archive_of(members, method=zipfile.ZIP_DEFLATED)
    yield "bzip2", archive_of(members, method=zipfile.ZIP_BZIP2)
    bomb = npy(np.frombuffer(b" " * (30 << 20) + b"{}", np.uint8))
    yield "a header that inflates", archive_of(members | {"header.npy": bomb}, method=zipfile.ZIP_DEFLATED)
    zeros = npy(np.zeros((3, 8192 * 64), np.int64))
    yield "histograms that inflate", archive_of(members | {"histograms.npy": zeros}, method=zipfile.ZIP_DEFLATED)
    for text in (b"", b"{", b"[" * 60000, b'{"kind":' * 20000, b"null", b"\xff", b"9" * 5000, b'{"kind": Infinity}'):
        yield f"header {text[:12]!r}", with_header(members, text)
    header = header_of(members)
    for path in leaves(header):
        for new in (None, -1, 1e999, "x", [], {}, [[[[1]]]], 1 << 70):
            old = header
            for key in path:
                old = old[key]
            free = new is None and path[-1:] in (("clip_weight",), ("floor",))  # null is infinity
            if path not in (("qtool_version",), ("batches", "cut")) and old != new and not free:
                yield f"header {path} = {new!r}"[:80], with_header(members, replaced(header, path, new))


@pytest.fixture(scope="module")
def forgeries(whole: bytes) -> dict[str, bytes]:
    """What :func:`forged` makes; some of it takes a second to deflate."""
    return dict(forged(whole))


def flipped(whole: bytes) -> Iterator[bytes]:
    dice = random.Random(7)
    for _ in range(100):
        damaged = bytearray(whole)
        place = dice.choice([dice.randrange(len(whole)), dice.randrange(300), len(whole) - 1 - dice.randrange(600)])
        damaged[place] ^= 1 << dice.randrange(8)
        yield bytes(damaged)


def refusal(path: Path) -> str | None:
    try:
        load_statistics(path)
    except DataError as error:
        return error.message
    return None


def test_what_is_forged_is_refused_in_little_memory(forgeries, tmp_path):
    assert len(forgeries) > 300
    path = tmp_path / "s.npz"
    tracemalloc.start()
    try:
        for name, data in forgeries.items():
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            message = refusal(path)
            assert message is not None, name
            assert tracemalloc.get_traced_memory()[1] - before < 10 * len(data) + (4 << 20), name
            assert len(message.splitlines()) == 1, name
            assert message.startswith(f"Statistics file '{path}'"), name
            assert message.endswith("."), name
            assert len(message) < 500, name
    finally:
        tracemalloc.stop()
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_a_flipped_bit_is_refused_or_harmless(whole, tmp_path):
    (tmp_path / "whole.npz").write_bytes(whole)
    expected, refused = load_statistics(tmp_path / "whole.npz"), 0
    for data in flipped(whole):
        (tmp_path / "s.npz").write_bytes(data)
        try:
            got = load_statistics(tmp_path / "s.npz")
        except DataError as error:
            refused += len(error.message.splitlines()) == 1
            continue
        assert (got.statistics, got.model, got.coverage) == (expected.statistics, expected.model, expected.coverage)
        for one, other in zip(got.kept.batches, expected.kept.batches, strict=True):
            np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
    assert refused > 60


Command = Callable[[Path], list[str]]
COMMANDS: dict[str, Command] = {
    "show": lambda f: ["stats", "show", str(f / "s.npz"), "--method", "all"],
    "merge": lambda f: ["stats", "merge", str(f / "good.npz"), str(f / "s.npz"), "-o", str(f / "out.npz")],
    "diff": lambda f: ["stats", "diff", str(f / "good.npz"), str(f / "s.npz")],
    "quantize": lambda f: ["quantize", str(f / "m.onnx"), "--stats", str(f / "s.npz"), "-o", str(f / "q.onnx")],
    "resume": lambda f: ["calibrate", f"{f / 'm.onnx'}", f"--data={f / 'c.npz'}", f"-o{f / 'n'}", "--checkpoint=3"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_end_with_a_line_and_write_nothing(whole, forgeries, tmp_path, command, capsys):
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples(9))
    (tmp_path / "good.npz").write_bytes(whole)
    cases = list(forgeries.items())
    for name, data in cases[:: len(cases) // 12]:
        (tmp_path / ("n.partial" if command == "resume" else "s.npz")).write_bytes(data)
        before = snapshot(tmp_path)
        assert main(COMMANDS[command](tmp_path)) == 2, name
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert [line.partition(":")[0] for line in lines] in (["error"], ["error", "hint"]), captured.err
        assert snapshot(tmp_path) == before


def test_a_process_of_little_memory_survives_a_bomb(whole, tmp_path):
    """What the archive claims is compared with what it holds before any of it is inflated."""
    zeros = np.zeros((3, 8192 << 12), np.int64)
    members = members_of(whole)
    path = tmp_path / "s.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            if name != "histograms.npy":
                archive.writestr(name, content)
        with archive.open("histograms.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(
                stream, {"descr": "<i8", "fortran_order": False, "shape": (3, 8192 << 12)}
            )
            for _ in range(96):
                stream.write(bytes(zeros.nbytes // 96))
    assert path.stat().st_size < 4 << 20
    code = (
        "import resource, sys; from qtool.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_AS, (700 << 20,) * 2)\n"
        "sys.exit(main(['stats', 'show', sys.argv[1]]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith(f"error: Statistics file '{path}'")
    assert len(ended.stderr.splitlines()) == 2
