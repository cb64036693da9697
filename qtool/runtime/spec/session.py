"""The spec engine as a session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, external_data_helper

from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import TensorInfo
from qtool.runtime.outputs import wanted_outputs
from qtool.runtime.paths import is_utf8
from qtool.runtime.spec.evaluator import NodeError, with_operators
from qtool.runtime.spec.foreign import foreign_node
from qtool.runtime.spec.operators import classes
from qtool.runtime.spec.saturating import Saturating, on_codes

_MAX_MESSAGE = 300


class SpecSession:
    """A model run node by node, as the ONNX documents say, for every element type.

    Quantization operators are those of ``qtool.kernels``, bit for bit; the others are those of ``onnx.reference``, up
    to the order of float sums. Values are dropped after their last use.

    Args:
        model: A file, serialized bytes, or a proto (which is not changed). External data is found beside the file;
            for bytes and protos, in ``base_dir``.
        optimize: Taken for the sake of the protocol; the graph always runs as it is written.
        num_threads: Threads of the kernels; by default what QTOOL_NUM_THREADS says, else 1, because the threads of
            NumPy's BLAS contend with more for the same processors.
        base_dir: Folder that external data of bytes or of a proto is relative to.
        shared_memory: Taken for the sake of the protocol; there is no pool.
        saturating: Compute products of uint8 and int8 as a processor without VNNI does, and count into its record.

    Raises:
        ModelError: If the model is not valid ONNX, or has an operator of another domain that no function of the model
            defines, or one that ``onnx.reference`` lacks; one line.
        ConfigError: If ``num_threads`` is not positive.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto,
        *,
        optimize: bool = True,
        num_threads: int | None = None,
        base_dir: str | Path | None = None,
        shared_memory: bool = False,
        saturating: Saturating | None = None,
    ) -> None:
        del optimize, shared_memory
        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"Number of threads is {num_threads}; expected 1 or more.")
        if num_threads is None:
            threads = None if "QTOOL_NUM_THREADS" in os.environ else 1  # None: the kernels read the variable
        else:
            threads = min(num_threads, os.cpu_count() or 1)
        self._subject = f"Model '{model}'" if isinstance(model, (str, Path)) else "Model"
        proto = _loaded(model, self._subject, base_dir)
        known = onnx.defs.onnx_opset_version()
        opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        if opset > known:
            raise ModelError(
                f"{self._subject} has opset {opset}; onnx {onnx.__version__} knows up to {known}.",
                hint="Install a newer onnx package.",
            )
        foreign = foreign_node(proto)
        if foreign is not None:
            named = f"node '{foreign.name}'" if foreign.name else "a node"
            raise ModelError(
                f"{self._subject} is not accepted by the spec engine: {named} is {foreign.domain}:{foreign.op_type}, "
                "which no ONNX document describes.",
                hint="Use the engine ort. It has operators of its own, and takes those of a library (--custom-ops).",
            )
        try:
            onnx.checker.check_model(_with_shapes(proto))
            self._evaluator = with_operators(classes(threads, saturating))(
                proto if saturating is None else on_codes(proto)
            )
        except Exception as error:  # the checker and the evaluator raise whatever they meet
            raise ModelError(f"{self._subject} is not accepted by the spec engine: {_line(error)}") from error
        initialized = {t.name for t in proto.graph.initializer} | {
            t.values.name for t in proto.graph.sparse_initializer
        }
        required = [value for value in proto.graph.input if value.name not in initialized]
        for value in required:
            if not _is_array(value.type):
                raise ModelError(f"{self._subject}: input '{value.name}' is {_kind(value.type)}; expected a tensor.")
        self.inputs = tuple(_info(value) for value in required)
        self.outputs = tuple(_info(value) for value in proto.graph.output if _is_array(value.type))
        self.opaque_outputs = {v.name: _kind(v.type) for v in proto.graph.output if not _is_array(v.type)}
        defaults = [_info(v) for v in proto.graph.input if v.name in initialized and _is_array(v.type)]
        self._inputs = {info.name: info for info in (*self.inputs, *defaults)}
        self._ranked = {v.name for v in proto.graph.input if v.type.tensor_type.HasField("shape")}

    def run(
        self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once.

        Args:
            feeds: One array per input, of the declared dtype and a fitting shape.
            outputs: Names of the wanted outputs; all arrays, in graph order, by default.

        Returns:
            Output name -> array, in the order asked for.

        Raises:
            ModelError: If an output is asked for that the model has not.
            DataError: If the feeds do not fit, or an operator does not take what it gets; one line.
        """
        known = [info.name for info in self.outputs]
        names = wanted_outputs(self._subject, outputs, known, self.opaque_outputs)
        self._check(feeds)
        if not names:
            return {}
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(names, dict(feeds))
        except NodeError as error:
            raise DataError(f"{self._subject} does not run on these inputs: {_short(str(error))}") from error
        # a copy: an output may be an input, or a constant, as it is
        return {name: np.array(result) for name, result in zip(names, results, strict=True)}

    def _check(self, feeds: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse feeds that are not what the model declares."""

        def misfit(text: str) -> DataError:
            return DataError(f"{self._subject} does not run on these inputs: {text}")

        missing = [info.name for info in self.inputs if info.name not in feeds]
        if missing:
            raise misfit(f"required inputs are missing: {', '.join(missing)}.")
        for name, array in feeds.items():
            info = self._inputs.get(name)
            if info is None:
                raise misfit(f"there is no input '{name}'; expected {', '.join(self._inputs) or 'none'}.")
            text = info.dtype.kind == "U" and array.dtype.kind in "UOT"
            if array.dtype != info.dtype and not text:
                raise misfit(f"input '{name}' is {array.dtype}; expected {info.dtype}.")
            if name in self._ranked and array.ndim != len(info.shape):
                raise misfit(f"input '{name}' has shape {array.shape}; expected {len(info.shape)} axes.")
            for size, declared in zip(array.shape, info.shape, strict=False):
                if isinstance(declared, int) and size != declared:
                    raise misfit(f"input '{name}' has shape {array.shape}; expected {info.shape}.")


def _loaded(model: str | Path | bytes | onnx.ModelProto, subject: str, base_dir: str | Path | None) -> onnx.ModelProto:
    """A proto with all its data in it."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if isinstance(model, onnx.ModelProto):
        proto = model
    elif isinstance(model, bytes):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(model)
        except DecodeError as error:
            raise ModelError(f"{subject} is not accepted by the spec engine: it does not parse as protobuf.") from error
    else:
        if not is_utf8(model):
            raise ModelError(f"{subject} is not a UTF-8 path, which onnx cannot open.")
        if not Path(model).is_file():
            raise ModelError(f"{subject} is not a file that exists.")
        base_dir = Path(model).parent
        try:
            proto = onnx.load(model, load_external_data=False)
        except DecodeError as error:
            raise ModelError(f"{subject} is not accepted by the spec engine: it does not parse as protobuf.") from error
    external = next(
        (t.name for t in proto.graph.initializer if external_data_helper.uses_external_data(t)),
        None,
    )
    if external is None:
        return proto
    if base_dir is None:
        raise ModelError(
            f"{subject} keeps '{external}' in an external file, and its folder is not known.",
            hint="Give the path of the model file instead of the loaded proto.",
        )
    if proto is model:
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    try:
        external_data_helper.load_external_data_for_model(proto, str(base_dir))
    except Exception as error:  # an OSError, or the checker's error for a path that leaves the folder
        raise ModelError(f"{subject} has external data that cannot be read: {_line(error)}") from error
    return proto


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """For the checker, which wants a shape at every input and output where runtimes do without; any shape will do."""
    if all(v.type.tensor_type.HasField("shape") for v in _tensors(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in _tensors(copy):
        value.type.tensor_type.shape.SetInParent()
    return copy


def _tensors(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs and outputs that are tensors."""
    return [v for v in (*proto.graph.input, *proto.graph.output) if v.type.HasField("tensor_type")]


def _is_array(kind: onnx.TypeProto) -> bool:
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type != TensorProto.UNDEFINED


def _kind(kind: onnx.TypeProto) -> str:
    return (kind.WhichOneof("value") or "nothing").removesuffix("_type")


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    text = tensor.elem_type == TensorProto.STRING
    dtype = np.dtype(np.str_) if text else np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return TensorInfo(value.name, dtype, tuple(_size(dim) for dim in tensor.shape.dim))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _line(error: Exception) -> str:
    return _short(" ".join(str(error).split()))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
