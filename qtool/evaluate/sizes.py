"""How many bytes a model takes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.errors import ModelError

if TYPE_CHECKING:
    import onnx


def model_bytes(model: str | Path | bytes | onnx.ModelProto) -> int:
    """Bytes of a model file plus those of every external data file that one of its tensors names.

    A file is counted whole and once, however many tensors live in it. A model in memory counts as its serialized form.

    Raises:
        ModelError: If the file, or one that it names, is missing or cannot be read as ONNX.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if isinstance(model, bytes):
        return len(model)
    if isinstance(model, onnx.ModelProto):
        return int(model.ByteSize())
    path = Path(model)
    try:
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"Model '{path}' cannot be read: {error.strerror or error}.") from error
    except DecodeError as error:
        raise ModelError(f"Model '{path}' is not an ONNX file, or it is cut off.") from error
    files = {path.resolve()}
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            files.add((path.parent / location).resolve())
    try:
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise ModelError(
            f"Model '{path}' names the external data file '{error.filename}', which cannot be read: {error.strerror}.",
            hint="Keep the data file beside the model.",
        ) from error


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that may hold data: initializers and attributes, of subgraphs and local functions too."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)
