"""Models as callers give them: their interface, and forms that a runtime loads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.api.settings import ModelLike
from qtool.errors import ModelError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.runtime import TensorInfo


def interface_of(model: ModelLike) -> tuple[TensorInfo, ...]:
    """What samples of a model must hold; weights stay in the file, and are only checked to be there.

    Raises:
        ModelError: If the model cannot be read, or as :func:`inputs_of` does.
    """
    from qtool.evaluate.attribution.lazy import light_proto
    from qtool.prepare.load import load_light, load_model

    if isinstance(model, (str, os.PathLike)):
        proto = light_proto(Path(model))
        try:
            if proto is not None:
                return inputs_of(load_light(proto, Path(model)))
        except ModelError:  # load_model() has the right words for what is wrong
            pass
    return inputs_of(load_model(model))


def inputs_of(model: ir.Model) -> tuple[TensorInfo, ...]:
    """What samples must hold.

    Raises:
        ModelError: If an input is a sequence, a map or an optional, or has neither type nor rank.
    """
    for value in _caller_inputs(model):
        if not _is_tensor(value):
            kind = type(value.type).__name__.removesuffix("Type").lower()
            raise ModelError(
                f"Input '{value.name}' is of the type {kind}, which samples cannot hold; expected a tensor.",
                hint="Export the model with tensors as its inputs.",
            )
    return tuple(_info(v) for v in _caller_inputs(model))


def _caller_inputs(model: ir.Model) -> list[ir.Value]:
    """Inputs that have no default."""
    return [v for v in model.graph.inputs if v.name not in model.graph.initializers]


def _is_tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return value.type is None or isinstance(value.type, ir.TensorType)


def tensors_of(model: ir.Model) -> list[str]:
    """Names of the inputs of a model's graph and of the outputs of its nodes, those in branches of If too."""
    from qtool.prepare.branches import if_branches

    graphs = (model.graph, *if_branches(model.graph))
    outputs = [v.name or "" for graph in graphs for node in graph for v in node.outputs]
    return [*(v.name or "" for v in model.graph.inputs), *outputs]


def described(value: ir.Value) -> TensorInfo:
    """What a person is shown of an input or output; the dtype ``object`` stands for what is no tensor."""
    import numpy as np

    from qtool.runtime import TensorInfo

    if _is_tensor(value):
        return _info(value)
    return TensorInfo(value.name or "", np.dtype(object), ())


def _info(value: ir.Value) -> TensorInfo:
    import numpy as np
    import onnx_ir as ir

    from qtool.runtime import TensorInfo

    if value.dtype in (None, ir.DataType.UNDEFINED):
        kind = "no type" if value.type is None else type(value.type).__name__
        raise ModelError(f"Value '{value.name}' of the model's interface has {kind}; expected a tensor.")
    dtype = np.dtype(np.str_) if value.dtype == ir.DataType.STRING else np.dtype(value.dtype.numpy())
    if value.shape is None:
        raise ModelError(f"Value '{value.name}' of the model's interface has no shape; expected a known rank.")
    # old exporters write -1 for a dimension of any size
    shape = tuple((d if d >= 0 else None) if isinstance(d, int) else d.value for d in value.shape.dims)
    return TensorInfo(value.name or "", dtype, shape)


def constants_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every constant tensor: initializers and Constant nodes, of subgraphs too."""
    from qtool.prepare.graph_edits import all_graphs, attribute_tensors

    graphs = list(all_graphs(model))
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in (node for graph in graphs for node in graph):
        if node.op_type == "Constant":
            yield from attribute_tensors(node)


def _has_external_data(model: ir.Model) -> bool:
    import onnx_ir as ir

    return any(isinstance(t, ir.ExternalTensor) for t in constants_of(model))


_PROTO_LIMIT = 1_900_000_000


def as_proto(
    model: ir.Model, limit: int = _PROTO_LIMIT
) -> tuple[onnx.ModelProto | Path, Path | None, Callable[[], None]]:
    """A form of a model that a runtime loads: a proto, or a temporary file if it is too large for one.

    Args:
        model: Any.
        limit: Bytes of constants from which it is a file, whose weights are then not held in memory once more.
    """
    import onnx_ir as ir

    if sum(t.nbytes for t in constants_of(model)) < limit and not _has_external_data(model):
        return ir.to_proto(model), None, _nothing
    folder = tempfile.TemporaryDirectory(prefix="qtool-")
    path = Path(folder.name) / "model.onnx"
    ir.save(model, path, external_data="model.onnx.data")
    return path, Path(folder.name), folder.cleanup


def as_runnable(
    model: ModelLike, loaded: ir.Model, prepared: ir.Model
) -> tuple[str | Path | onnx.ModelProto, Path | None, Callable[[], None]]:
    """The user's own model, for the runtime; or another form of it if the runtime would refuse its names or order."""
    from qtool.prepare.load import SORTED_KEY

    names = [node.name for node in loaded.graph if node.name]
    if len(names) != len(set(names)):
        return as_proto(prepared)
    if isinstance(model, (str, os.PathLike)) and SORTED_KEY not in loaded.meta:
        return Path(model), None, _nothing
    return as_proto(loaded)


def parsed(model: ModelLike | bytes) -> ModelLike:
    """Bytes as a proto."""
    if not isinstance(model, bytes):
        return model
    import onnx

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as error:  # protobuf's own error types moved between versions
        raise ModelError("The bytes of the model do not parse as protobuf.") from error
    return proto


def comparable(model: ModelLike, cleanup: ExitStack) -> str | Path | onnx.ModelProto:
    """A model as the runtime takes it; temporary files live as long as ``cleanup``."""
    import onnx
    import onnx_ir as ir

    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, ir.Model):
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model; found {type(model).__name__}."
        )
    runnable, _, remove = as_proto(model)
    cleanup.callback(remove)
    return runnable


def _nothing() -> None:
    """Nothing to clean up."""
