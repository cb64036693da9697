"""``.npy`` files: one for each input, named after it, samples on the leading axis.

For a model of one input the names may be any: the files then follow each other, as several archives do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qtool.calibrate.npy import MAGIC, NpyFiles
from qtool.calibrate.readers._reader import Files, Reader
from qtool.calibrate.sources import ArraySource, SourceInfo, file_sha256
from qtool.errors import DataError
from qtool.runtime import TensorInfo


def _open(files: Files, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> list[ArraySource]:
    if files.named:
        return [_source(files.subject, files.named, inputs, labels)]
    named: dict[str, Path] = {}
    for path in files.paths:
        if path.stem in named:
            raise DataError(
                f"{files.subject}: '{named[path.stem]}' and '{path}' are both named '{path.stem}'; expected one file "
                "for each input.",
                hint="Say which file is for which input: NAME=FILE.npy.",
            )
        named[path.stem] = path
    wanted = {*(i.name for i in inputs), *labels}
    if len(inputs) == 1 and not wanted & named.keys():
        return [_source(f"Sample data '{path}'", {inputs[0].name: path}, inputs, labels) for path in files.paths]
    return [_source(files.subject, named, inputs, labels)]


def _source(
    subject: str, paths: Mapping[str, Path], inputs: Sequence[TensorInfo], labels: Sequence[str]
) -> ArraySource:
    wanted = [*(i.name for i in inputs), *labels]
    infos = [_info(paths[name]) for name in dict.fromkeys(wanted) if name in paths]
    with NpyFiles(paths, subject) as store:
        # turning an array around takes a walk over all of it
        seekable = not any(store.member(i.name).fortran_order for i in inputs if i.name in paths)
    return ArraySource(subject, infos, lambda: NpyFiles(paths, subject), inputs, labels, seekable=seekable)


def _info(path: Path) -> SourceInfo:
    return SourceInfo(str(path), lambda: file_sha256(path))


READER = Reader(
    kind=".npy files",
    form=".npy files named after the inputs or given as NAME=FILE.npy",
    suffix=".npy",
    magic=MAGIC,
    open=_open,
    together=True,
    takes_names=True,
)
