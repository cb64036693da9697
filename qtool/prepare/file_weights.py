"""Weights that stay in their file until they are read, each time anew.

Parsing a model as protobuf holds the file and the parsed weights in memory at once, and then the weights for as long as
the model lives. Here the file is walked field by field instead, the payload of large initializers is stepped over, and
what is parsed is a model without them.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool import wire
from qtool.errors import ModelError

if TYPE_CHECKING:
    import onnx

MIN_BYTES = 1 << 16  # a weight below this is parsed with the rest
# fields of a tensor in onnx.proto with its values in another form, or in another file
_ELSEWHERE = frozenset((4, 5, 6, 7, 10, 11, 13, 14))
# whole bytes an element, and the same bytes in memory as in the file
_TYPES = frozenset(
    getattr(ir.DataType, name)
    for name in (
        *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64"),
        *("UINT8", "UINT16", "UINT32", "UINT64"),
    )
)


class WeightFile:
    """An open file, read at given places; closed with the last tensor that reads from it.

    Args:
        path: The file.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._state()

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill a buffer.

        Raises:
            ModelError: If the file is not what it was, or cannot be read.
        """
        done = 0
        try:
            while done < len(target):
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
                if not count:
                    break
                done += count
            changed = self._state() != self._stamp
        except OSError as error:
            raise ModelError(f"'{self._path}' cannot be read: {error.strerror}.") from error
        if changed or done < len(target):
            raise ModelError(f"'{self._path}' was changed while it was in use.", hint="Run it again.")


class FileTensor(ir.LazyTensor):
    """A tensor whose values are read whenever they are asked for, and kept by whoever asked.

    Args:
        file: Where they are.
        offset: Of the first byte; elements follow each other in C order, little-endian.
        dtype: One of whole bytes.
        shape: Dimensions.
        name: Its name.
    """

    def __init__(self, file: WeightFile, offset: int, dtype: ir.DataType, shape: ir.Shape, name: str | None) -> None:
        super().__init__(lambda: ir.Tensor(self.numpy(), dtype=dtype), dtype, shape, name=name)
        self._file = file
        self._offset = offset

    def numpy(self) -> npt.NDArray[Any]:
        """The values, in an array of the caller's own.

        Raises:
            ModelError: If the file is not what it was.
        """
        array: npt.NDArray[Any] = np.empty(self.shape.numpy(), self.dtype.numpy())
        if array.size:
            self._file.read_into(array.reshape(-1).view(np.uint8).data, self._offset)
        return array

    def tobytes(self) -> bytes:
        """The bytes of the values.

        Raises:
            ModelError: If the file is not what it was.
        """
        return self.numpy().tobytes()

    def pieces(self, nbytes: int = 1 << 20) -> Iterator[memoryview]:
        """The bytes one stretch after the other, in a buffer that the next one overwrites.

        Raises:
            ModelError: If the file is not what it was.
        """
        buffer = memoryview(bytearray(min(nbytes, self.nbytes)))
        for start in range(0, self.nbytes, max(1, len(buffer))):
            piece = buffer[: min(len(buffer), self.nbytes - start)]
            self._file.read_into(piece, self._offset + start)
            yield piece

    def tofile(self, file: Any) -> None:
        """Write the bytes.

        Raises:
            ModelError: If the file is not what it was.
        """
        for piece in self.pieces():
            file.write(piece)


def supported() -> bool:
    """Whether weights can stay in files here: a file that is open must not be in the way of what replaces it."""
    return hasattr(os, "preadv") and sys.byteorder == "little"


class Skeleton:
    """A model file without the payload of its large initializers.

    Attributes:
        data: Serialized model.
        payloads: Place among the initializers of the graph -> offset and length of its raw data in the file.
    """

    def __init__(self, data: bytes, payloads: dict[int, tuple[int, int]]) -> None:
        self.data = data
        self.payloads = payloads

    def attach(self, model: ir.Model, proto: onnx.ModelProto, file: WeightFile) -> bool:
        """Give a model that was made of the skeleton its weights.

        Args:
            model: Made of ``proto``.
            proto: Parsed from :attr:`data`.
            file: The file that the skeleton is of.

        Returns:
            False if some weight is not what it should be: parsing the whole file will say what is wrong.
        """
        values = model.graph.initializers
        if len(values) != len(proto.graph.initializer):
            return False
        for place, (offset, length) in self.payloads.items():
            value = values.get(proto.graph.initializer[place].name)
            old = None if value is None else value.const_value
            if value is None or old is None or old.dtype not in _TYPES or old.nbytes != length:
                return False
            new = FileTensor(file, offset, old.dtype, ir.Shape(old.shape.numpy()), old.name)
            new.doc_string = old.doc_string
            new.metadata_props.update(old.metadata_props)
            value.const_value = new
        return True


def skeleton_of(path: Path) -> Skeleton | None:
    """Walk a model file; None if it has no large initializers, or is not well formed.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _walk_model(data)
        except ValueError:
            return None


def _walk_model(data: mmap.mmap) -> Skeleton | None:
    kept: list[bytes] = []
    graph: list[bytes] | None = None
    payloads: dict[int, tuple[int, int]] = {}
    for field in wire.fields(data, 0, len(data)):
        if field.number != wire.GRAPH or field.wire != wire.BYTES:
            kept.append(data[field.tag : field.end])
            continue
        if graph is not None:
            return None  # two parts of one message, which a parser merges
        graph = []
        place = 0
        for inner in wire.fields(data, field.content, field.end):
            is_tensor = inner.number == wire.INITIALIZER and inner.wire == wire.BYTES
            raw = _raw_data(data, inner) if is_tensor and inner.end - inner.content > MIN_BYTES else None
            if raw is None:
                graph.append(data[inner.tag : inner.end])
            else:
                rest = data[inner.content : raw.tag] + data[raw.end : inner.end]
                graph.append(wire.message(wire.INITIALIZER, rest))
                payloads[place] = (raw.content, raw.end - raw.content)
            place += is_tensor
    if graph is None or not payloads:
        return None
    return Skeleton(b"".join([*kept, wire.message(wire.GRAPH, b"".join(graph))]), payloads)


def _raw_data(data: mmap.mmap, tensor: wire.Field) -> wire.Field | None:
    """The raw data of a tensor; None if there are few, or it has its values in another form."""
    found = None
    for field in wire.fields(data, tensor.content, tensor.end):
        if field.number in _ELSEWHERE:
            return None
        if field.number == wire.RAW_DATA:
            if found is not None or field.wire != wire.BYTES:
                return None
            found = field
    return found if found is not None and found.end - found.content >= MIN_BYTES else None


def move_to_file(model: ir.Model, path: Path) -> None:
    """Let the weights of a model be read from a copy of it, instead of holding them in memory.

    Args:
        model: Its large initializers become tensors of the file; their values are the same.
        path: The model, saved with external data. The file may go while its tensors are in use.

    Raises:
        OSError: If it cannot be read.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    files: dict[str, WeightFile] = {}
    for proto in onnx.load(path, load_external_data=False).graph.initializer:
        value = model.graph.initializers.get(proto.name)
        held = None if value is None else value.const_value
        if value is None or held is None or not uses_external_data(proto) or isinstance(held, FileTensor):
            continue
        if held.dtype not in _TYPES or held.nbytes < MIN_BYTES:
            continue
        info = ExternalDataInfo(proto)
        if info.location not in files:
            files[info.location] = WeightFile(path.parent / info.location)
        file = files[info.location]
        value.const_value = FileTensor(file, info.offset or 0, held.dtype, ir.Shape(held.shape.numpy()), held.name)
