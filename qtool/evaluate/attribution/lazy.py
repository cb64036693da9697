"""A model without its weights in memory: they are read from the model's own file where and when they are needed.

An ONNX file is one protobuf message, and the bytes of a weight stand in it as they are. A proto of the same model in
which each large weight is "external data" in that very file takes no memory, can be cut and copied at will, and gives
onnxruntime what it maps instead of copying.
"""

from __future__ import annotations

import mmap
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from qtool import wire
from qtool.calibrate.segments import SourceGraph, read_graph

if TYPE_CHECKING:
    import onnx

SMALL_BYTES = 1024


def lazy_graph(model: str | PathLike[str] | onnx.ModelProto) -> SourceGraph:
    """A model that may be changed; weights of a file stay in the file.

    Raises:
        ModelError: If the file cannot be read.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return SourceGraph(copy, None)
    proto = light_proto(Path(fspath(model)).resolve())
    return read_graph(model) if proto is None else SourceGraph(proto, Path(fspath(model)).resolve().parent)


def light_proto(path: Path) -> onnx.ModelProto | None:
    """A file's proto with large weights left in the file; None where that cannot be done."""
    try:
        return _without_weights(path)
    except (OSError, ValueError):  # whatever is wrong, the usual reader has words for it
        return None


def _without_weights(path: Path) -> onnx.ModelProto | None:
    """The proto; None where the file is not laid out as one expects, or has data beside it."""
    import onnx

    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        top = list(wire.fields(data, 0, len(data)))
        graphs = [field for field in top if field[0] == wire.GRAPH]
        if len(graphs) != 1:
            return None
        _, kind, _, start, end = graphs[0]
        if kind != wire.BYTES:
            return None
        head = b"".join(data[field[2] : field[4]] for field in top if field[0] != wire.GRAPH)
        rest, tensors = [], []
        for number, kind, tag, content, stop in wire.fields(data, start, end):
            if number == wire.INITIALIZER and kind == wire.BYTES:
                tensors.append(_tensor(data, content, stop, path.name))
            else:
                rest.append(data[tag:stop])
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(head)
            proto.graph.MergeFromString(b"".join(rest))
        except Exception:  # protobuf's own error types moved between versions
            return None
    if any(tensor is None for tensor in tensors):
        return None
    proto.graph.initializer.extend(tensor for tensor in tensors if tensor is not None)
    return proto


def _tensor(data: mmap.mmap, start: int, end: int, location: str) -> onnx.TensorProto | None:
    """An initializer, its data being a place in the file if there is much of it; None if it is external already."""
    import onnx

    pieces, raw = [], None
    for number, kind, tag, content, stop in wire.fields(data, start, end):
        if number in (wire.EXTERNAL_DATA, wire.DATA_LOCATION):
            return None
        if number == wire.RAW_DATA and kind == wire.BYTES and stop - content > SMALL_BYTES:
            raw = content, stop - content
        else:
            pieces.append(data[tag:stop])
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(b"".join(pieces))
    except Exception:  # as above
        return None
    if raw is not None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", str(raw[0])), ("length", str(raw[1]))):
            tensor.external_data.add(key=key, value=value)
    return tensor


def tensor_bytes(tensor: onnx.TensorProto, folder: Path | None) -> onnx.TensorProto:
    """A tensor with its data, read from the file that it names; the tensor itself stays as it is."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    if not uses_external_data(tensor):
        return tensor
    place = {entry.key: entry.value for entry in tensor.external_data}
    whole = onnx.TensorProto()
    whole.CopyFrom(tensor)
    del whole.external_data[:]
    whole.data_location = onnx.TensorProto.DEFAULT
    path = Path("" if folder is None else folder) / place["location"]
    with path.open("rb") as stream:
        stream.seek(int(place.get("offset", "0")))
        whole.raw_data = stream.read(int(place["length"])) if "length" in place else stream.read()
    return whole
