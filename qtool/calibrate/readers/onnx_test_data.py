"""Folders of the ONNX backend tests: ``test_data_set_0/input_0.pb``, a serialized TensorProto for each input.

Each data set is one sample, fed as it is. A tensor belongs to the input of its name, or, if it has none, to the input
of its number. What a tensor keeps elsewhere (external data) is never looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.calibrate.layout import cast, cast_note, place_whole, require_names
from qtool.calibrate.readers._reader import Files, Reader
from qtool.calibrate.selection import Range, Run
from qtool.calibrate.sources import Feeds, Source, SourceInfo, file_sha256
from qtool.errors import DataError
from qtool.runtime import TensorInfo

_SET = re.compile(r"test_data_set_(\d+)")
_INPUT = re.compile(r"input_(\d+)\.pb")
_MAX_BYTES = 2 << 30  # of a protobuf message


class DataSet(Source):
    """One sample from a folder of tensors."""

    seekable = True

    def __init__(self, folder: Path, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> None:
        self.subject = f"Sample data '{folder}'"
        self._inputs = tuple(inputs)
        self._paths = _inputs_of(folder)
        for key in labels:
            self.labels(key)
        arrays = self._arrays()
        require_names(self.subject, inputs, arrays)
        for info in inputs:
            place_whole(self.subject, info, arrays[info.name])
        notes = (cast_note(self.subject, info, arrays[info.name].dtype) for info in inputs)
        self.notes = tuple(note for note in notes if note)
        names = {info.name for info in inputs}
        self.ignored = tuple(name for name in arrays if name not in names)
        self.infos = tuple(_info(path) for path in self._paths.values())
        self.runs = (Run(1, None),)
        self.batch = None

    def parts(self, size: int, ranges: Sequence[Range]) -> Iterator[tuple[Run, Feeds]]:
        """See :meth:`Source.parts`."""
        del size
        if ranges:
            arrays = self._arrays()
            require_names(self.subject, self._inputs, arrays)
            yield (
                self.runs[0],
                {
                    info.name: cast(self.subject, info, place_whole(self.subject, info, arrays[info.name]))
                    for info in self._inputs
                },
            )

    def labels(self, key: str) -> npt.NDArray[Any]:
        """There are none.

        Raises:
            DataError: Always.
        """
        raise DataError(
            f"{self.subject} has no array '{key}' for the labels: a folder of tensors holds inputs only.",
            hint="Give labelled samples as an .npz file.",
        )

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        origin: dict[str, Path] = {}
        for number, path in self._paths.items():
            name, array = read_tensor(path)
            if not name:
                name = self._inputs[number].name if number < len(self._inputs) else f"input_{number}"
            if name in arrays:
                raise DataError(
                    f"{self.subject}: '{origin[name].name}' and '{path.name}' are both for input '{name}'; expected "
                    "one tensor for each input."
                )
            arrays[name], origin[name] = array, path
        return arrays


def read_tensor(path: Path) -> tuple[str, npt.NDArray[Any]]:
    """Name and values of a serialized TensorProto; text comes as text.

    Raises:
        DataError: If the file cannot be read, is no tensor, or holds fewer or more values than its shape says.
    """
    import onnx
    from onnx import numpy_helper

    subject = f"Sample data '{path}'"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{subject} is larger than 2 GB, which a protobuf message cannot be.")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{subject} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise DataError(f"{subject} does not fit into memory.") from error
    try:
        tensor = onnx.TensorProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError, whatever the implementation
        raise DataError(f"{subject} is damaged, or no serialized ONNX tensor.") from error
    if tensor.data_location != onnx.TensorProto.DEFAULT or tensor.external_data:
        raise DataError(
            f"{subject} keeps its values in another file, which is never opened.",
            hint="Save the tensor with its values inside.",
        )
    if not tensor.data_type:
        raise DataError(f"{subject} is no serialized ONNX tensor: it has no element type.")
    if tensor.data_type not in onnx.TensorProto.DataType.values():
        raise DataError(f"{subject} is damaged: there is no element type {tensor.data_type}.")
    if any(size < 0 for size in tensor.dims):
        raise DataError(f"{subject} is damaged: its shape is {list(tensor.dims)}.")
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
        if array.dtype.hasobject:
            array = np.array([_text(value) for value in array.reshape(-1)], np.str_).reshape(array.shape)
    except MemoryError as error:
        raise DataError(f"{subject} does not fit into memory.") from error
    except Exception as error:  # whatever NumPy or onnx raise on values that do not match type and shape
        reason = " ".join(str(error).split()).rstrip(".")[:160] or type(error).__name__
        raise DataError(f"{subject} is damaged: {reason}.") from error
    return tensor.name, array


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8")


def _info(path: Path) -> SourceInfo:
    return SourceInfo(str(path), lambda: file_sha256(path))


def _inputs_of(folder: Path) -> Mapping[int, Path]:
    return _numbered(folder, _INPUT)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Entries of a folder by the number in their names, ascending."""
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DataError(f"Sample data '{folder}' cannot be read: {error.strerror or error}.") from error
    found: dict[int, Path] = {}
    for path in entries:
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        number = int(match[1])
        if number in found:
            raise DataError(
                f"Sample data '{folder}' holds '{found[number].name}' and '{path.name}', which have the same number."
            )
        found[number] = path
    return dict(sorted(found.items()))


def _is_folder(folder: Path) -> bool:
    return bool(_numbered(folder, _INPUT)) or any(p.is_dir() for p in _numbered(folder, _SET).values())


def _data_sets(folder: Path) -> list[Path]:
    if _numbered(folder, _INPUT):
        return [folder]
    sets = [path for path in _numbered(folder, _SET).values() if path.is_dir()]
    for path in sets:
        if not _inputs_of(path):
            raise DataError(f"Sample data '{path}' is empty: there is no input_0.pb in it.")
    return sets


def _open(files: Files, inputs: Sequence[TensorInfo], labels: Sequence[str]) -> list[DataSet]:
    return [DataSet(folder, inputs, labels) for path in files.paths for folder in _data_sets(path)]


READER = Reader(
    kind="ONNX test data sets",
    form="a folder with test_data_set_0/input_0.pb as the ONNX tests have it",
    suffix=".pb",
    magic=b"",
    open=_open,
    folder=_is_folder,
    files=lambda path: [tensor for folder in _data_sets(path) for tensor in _inputs_of(folder).values()],
    takes_files=False,
)
