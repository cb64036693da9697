"""``.npz`` archives: an array for each input, samples on the leading axis. Several follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qtool.calibrate.npz import NpzFile
from qtool.calibrate.readers._reader import Files, Reader
from qtool.calibrate.sources import ArraySource, SourceInfo, file_sha256
from qtool.runtime import TensorInfo


def _open(files: Files, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> list[ArraySource]:
    return [_source(path, inputs, labels) for path in files.paths]


def _source(path: Path, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> ArraySource:
    info = SourceInfo(str(path), lambda: file_sha256(path))
    keys = {*(i.name for i in inputs), *labels}
    verified: set[str] = set()
    return ArraySource(
        f"Sample data '{path}'", [info], lambda: NpzFile(path, verified=verified, keys=keys), inputs, labels
    )


READER = Reader(kind=".npz files", form="an .npz file (numpy.savez)", suffix=".npz", magic=b"PK\x03\x04", open=_open)
