"""Read a model from a file or an object, and say in one line what is wrong with it if it cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from qtool.errors import ModelError
from qtool.prepare.file_weights import MIN_BYTES, WeightFile, skeleton_of, supported
from qtool.prepare.graph_edits import all_graphs, attribute_tensors, bodies
from qtool.runtime.paths import is_utf8

if TYPE_CHECKING:
    import onnx

_CHUNK = 1 << 20
_PROTOBUF_LIMIT = 2**31
_LFS_POINTER = b"version https://git-lfs"

SORTED_KEY = "qtool.sorted"  # in the meta of a model whose nodes were not in order

# The field of TensorProto that holds one element per entry; packed types are left to the decoder.
_TYPED_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.STRING: "string_data",
    **dict.fromkeys(
        (
            *(ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.UINT8),
            *(ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),
        ),
        "int32_data",
    ),
}


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from.

    Attributes:
        path: The file, absolute; None for a model given as an object.
        sha256: Of the file's bytes followed by those of its external data files in order of first use; for an object,
            of its deterministic serialization, followed likewise.
        nbytes: The size of what was hashed.
        data_files: Its external data files, in order of first use.
    """

    path: Path | None
    sha256: str
    nbytes: int
    data_files: tuple[Path, ...] = ()


def load_model(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *, keep_in_file: bool = False) -> ir.Model:
    """The model as an ``ir.Model``; weights in external files stay there until they are read.

    Args:
        model: A path, a ``ModelProto`` or an ``ir.Model`` (returned as it is). Never changed.
        keep_in_file: Leave large weights of a file there, too, and read them each time they are asked for: for a model
            that no caller gets, who might write over the file.

    Raises:
        ModelError: If it is missing, not a model, damaged, or its external data is.
    """
    import onnx

    if isinstance(model, ir.Model):
        loaded, subject = model, "The model"
    elif isinstance(model, onnx.ModelProto):
        loaded, subject = _from_proto(model, "The model"), "The model"
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        subject = f"'{path}'"
        loaded = _read(path, subject, keep_in_file=keep_in_file)
    else:
        raise ModelError(
            f"A model is a path, an onnx.ModelProto or an onnx_ir.Model; found {type(model).__name__}.",
        )
    _check_external_data(loaded, subject)
    if not isinstance(model, ir.Model):
        _check_tensor_sizes(loaded, subject)
    _check_graph(loaded, subject)
    if loaded is not model and not _is_sorted(loaded.graph, set()):
        _sort(loaded, subject)
    return loaded


def load_light(proto: onnx.ModelProto, path: Path) -> ir.Model:
    """A model whose weights are left in its own file, as external data there; checked like any other.

    Raises:
        ModelError: If it is not valid.
    """
    subject = f"'{path}'"
    if not is_utf8(path) or path.stat().st_size >= _PROTOBUF_LIMIT:
        raise ModelError(f"{subject} cannot be opened by onnxruntime.")
    loaded = _from_proto(proto, subject)
    for tensor in _external_tensors(loaded):
        tensor.base_dir = path.absolute().parent
        if tensor.length != tensor.nbytes:
            raise ModelError(f"{subject} is damaged: weight '{tensor.name}' has {tensor.length} bytes.")
    _check_external_data(loaded, subject)
    _check_tensor_sizes(loaded, subject)
    _check_graph(loaded, subject)
    return loaded


def describe_source(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, loaded: ir.Model | None = None
) -> ModelSource:
    """Hash and size of a model.

    Args:
        model: What was given to :func:`load_model`.
        loaded: What it returned; read again if left out.

    Raises:
        ModelError: If a file cannot be read, or an object cannot be serialized.
    """
    import onnx

    digest, nbytes, path = hashlib.sha256(), 0, None
    if isinstance(model, ir.Model | onnx.ModelProto):
        loaded = loaded if loaded is not None else load_model(model)
        proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model.clone())
        try:
            data = proto.SerializeToString(deterministic=True)
        except Exception as error:  # protobuf's own error types moved between versions
            raise ModelError("The model is larger than 2 GB in memory.", hint="Save it with external data.") from error
        digest.update(data)
        nbytes += len(data)
    else:
        path = Path(model).absolute()
        loaded = loaded if loaded is not None else load_model(path)
        nbytes += _hash_file(path, digest)
    data_files = external_files(loaded)
    for data_path in data_files:
        nbytes += _hash_file(data_path, digest)
    return ModelSource(path, digest.hexdigest(), nbytes, data_files)


def _hash_file(path: Path, digest: hashlib._Hash) -> int:
    size = 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}.") from error
    return size


def _read(path: Path, subject: str, *, keep_in_file: bool) -> ir.Model:
    if not path.exists():
        raise ModelError(f"{subject} does not exist.")
    if path.is_dir():
        raise ModelError(f"{subject} is a folder; expected an ONNX file.")
    if not is_utf8(path):
        raise ModelError(f"{subject} is not a UTF-8 path, which onnx and onnxruntime cannot open.")
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"{subject} is empty; expected an ONNX file.")
        if size >= _PROTOBUF_LIMIT:
            raise ModelError(
                f"{subject} has {size} bytes; one protobuf file holds less than 2 GB.",
                hint="Save the model with external data.",
            )
        with path.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise ModelError(f"{subject} is a Git LFS pointer, not the model itself.", hint="Run: git lfs pull")
        model = _without_weights(path, subject) if keep_in_file and size > MIN_BYTES and supported() else None
        if model is not None:
            return _placed(model, path)
        import onnx

        # Parsed here, not by onnx_ir.load: the file's name must not decide on a text format, which onnxruntime could
        # not read, and the folder must be absolute, or the check that external data stays inside it is skipped.
        proto = onnx.load_model(path, format="protobuf", load_external_data=False)
    except OSError as error:
        raise ModelError(f"{subject} cannot be read: {error.strerror or error}.") from error
    except ModelError:
        raise
    except Exception as error:  # protobuf's own error types moved between versions
        raise ModelError(
            f"{subject} is not an ONNX model, or is truncated: it does not parse as protobuf.",
            hint="Copy or download the file again, and compare its size.",
        ) from error
    return _placed(_from_proto(proto, subject), path)


def _without_weights(path: Path, subject: str) -> ir.Model | None:
    """The model with large weights left in the file; None if it has none, or is damaged.

    Raises:
        OSError: If the file cannot be read.
    """
    import onnx

    skeleton = skeleton_of(path)
    if skeleton is None:
        return None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(skeleton.data)
        model = _from_proto(proto, subject)
    except Exception:  # protobuf's own error types moved; what is wrong is said where the file is parsed whole
        return None
    return model if skeleton.attach(model, proto, WeightFile(path)) else None


def _placed(model: ir.Model, path: Path) -> ir.Model:
    """The model, its external tensors told where the file is."""
    folder = path.absolute().parent  # not resolved: data files lie beside the link, not beside its target
    for tensor in _external_tensors(model):
        tensor.base_dir = folder
    return model


def _holds_map(type_proto: onnx.TypeProto) -> bool:
    """Whether a type is a map, or holds one at any depth."""
    kind = type_proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _holds_map(getattr(type_proto, kind).elem_type)
    return bool(kind == "map_type")


def _from_proto(proto: onnx.ModelProto, subject: str) -> ir.Model:
    if not proto.ir_version or not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{subject} is not a complete ONNX model: ir_version, graph or opset_import is missing.",
            hint="Copy or download the file again, and compare its size.",
        )
    if proto.graph.sparse_initializer:
        raise ModelError(f"{subject} has sparse initializers, which qtool does not read.")
    names = Counter(tensor.name for tensor in proto.graph.initializer)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:  # runtimes do not agree on which one counts
        raise ModelError(f"{subject} is not valid: initializer '{twice}' is there {names[twice]} times; expected one.")
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not (entry.value.isascii() and entry.value.isdigit()):
                raise ModelError(
                    f"{subject} is not valid: weight '{tensor.name}' has the {entry.key} '{entry.value}' in its data "
                    "file; expected a number of bytes."
                )
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if _holds_map(info.type):
            raise ModelError(
                f"{subject} has a map, '{info.name}', which qtool does not read; expected only tensors and sequences.",
                hint="A classifier can be exported without ZipMap: its probabilities are a tensor then.",
            )
    try:
        return ir.from_proto(proto)
    except Exception as error:  # onnx_ir wraps whatever it meets in its own SerdeError, with the whole proto as text
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).splitlines() or [type(cause).__name__])[0].split(". ")[0][:200]
        raise ModelError(f"{subject} is not a valid ONNX model: {reason}.") from error


def _all_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor of the model: initializers and attributes, of all graphs and functions."""
    inside = (g for f in model.functions.values() for g in (f.graph, *f.subgraphs()))
    for graph in (*all_graphs(model), *inside):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            yield from attribute_tensors(node)


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for tensor in _all_tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor


def external_files(model: ir.Model) -> tuple[Path, ...]:
    """The files that hold a model's weights beside it, in order of first use."""
    return tuple(Path(path) for path in dict.fromkeys(tensor.path for tensor in _external_tensors(model)))


def _check_external_data(model: ir.Model, subject: str) -> None:
    checked: dict[Path, int] = {}
    for tensor in _external_tensors(model):
        path = Path(tensor.path)
        if path not in checked:
            if not path.is_file():
                raise ModelError(
                    f"{subject} keeps weight '{tensor.name}' in '{tensor.location}', which is missing: "
                    f"no file '{path}'.",
                    hint="Put the data file beside the model, or pass the model's path instead of a ModelProto.",
                )
            checked[path] = path.stat().st_size
            if checked[path]:
                _check_readable(tensor, subject)
        length = tensor.length or tensor.nbytes
        if length < tensor.nbytes:
            raise ModelError(
                f"{subject} is damaged: weight '{tensor.name}' has {length} bytes in '{tensor.location}', "
                f"expected {tensor.nbytes}."
            )
        needed = (tensor.offset or 0) + length
        if needed > checked[path]:
            raise ModelError(
                f"{subject} keeps weight '{tensor.name}' in '{path}', which is truncated: "
                f"expected {needed} bytes or more, found {checked[path]}.",
                hint="Copy or download the data file again.",
            )


def _check_readable(tensor: ir.ExternalTensor, subject: str) -> None:
    """Let onnx_ir open one tensor of the file: it refuses paths and links that lead out of the model's folder."""
    probe = ir.ExternalTensor(
        tensor.location,
        0,
        1,
        ir.DataType.UINT8,
        shape=ir.Shape((1,)),
        name="probe",
        base_dir=tensor.base_dir,
    )
    try:
        probe.tobytes()
    except ValueError as error:
        if "symlink" in str(error) or "hard link" in str(error):
            raise ModelError(
                f"{subject} keeps its weights in '{tensor.path}', a link that leads out of the model's folder.",
                hint="Download caches do this: copy the model's folder with links resolved (cp -rL), use the copy.",
            ) from error
        raise ModelError(
            f"{subject} keeps its weights outside its own folder: '{tensor.location}'.",
            hint="Save the model again with its data file beside it.",
        ) from error
    except OSError as error:
        raise ModelError(f"'{tensor.path}' cannot be read: {error.strerror}.") from error


def _check_tensor_sizes(model: ir.Model, subject: str) -> None:
    """The data of a tensor must have the length that its type and shape ask for."""
    from onnx_ir.serde import TensorProtoTensor

    for tensor in _all_tensors(model):
        if not isinstance(tensor, TensorProtoTensor):
            continue
        if tensor.raw.HasField("raw_data"):
            found, expected, unit = len(tensor.raw.raw_data), tensor.nbytes, "bytes"
        elif tensor.dtype in _TYPED_FIELDS:
            found, expected, unit = len(getattr(tensor.raw, _TYPED_FIELDS[tensor.dtype])), tensor.size, "elements"
        else:
            continue
        if found != expected:
            raise ModelError(
                f"{subject} is damaged: weight '{tensor.name}' has {found} {unit}, expected {expected}.",
                hint="Copy or download the file again.",
            )


def _check_graph(model: ir.Model, subject: str) -> None:
    """Every value that is read must come from somewhere, and there must be an output."""
    graph = model.graph
    if not graph.outputs:
        raise ModelError(f"{subject} has no graph output.")
    for scope in all_graphs(model):
        for node in scope:
            for value in node.inputs:
                if value is not None and _is_dangling(value):
                    raise ModelError(
                        f"{subject} is not valid: node '{node.name}' ({node.op_type}) reads '{value.name}', "
                        "which nothing produces."
                    )
    for value in graph.outputs:
        if _is_dangling(value):
            raise ModelError(f"{subject} is not valid: nothing produces its output '{value.name}'.")


def _is_dangling(value: ir.Value) -> bool:
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def _is_sorted(graph: ir.Graph, seen: set[ir.Node]) -> bool:
    """Whether every node comes behind those that make what it reads, what its bodies capture included."""
    for node in graph:
        producers = [value.producer() for value in node.inputs if value is not None]
        if any(producer is not None and producer not in seen for producer in producers):
            return False
        if not all(_is_sorted(body, seen) for _, body in bodies(node)):
            return False
        seen.add(node)
    return True


def _sort(model: ir.Model, subject: str) -> None:
    """Bring the nodes into an order that computes; runtimes refuse a file that has none."""
    try:
        model.graph.sort()
    except ValueError as error:
        raise ModelError(
            f"{subject} is not valid: its nodes form a cycle, so that none of them can be first."
        ) from error
    model.meta[SORTED_KEY] = True
