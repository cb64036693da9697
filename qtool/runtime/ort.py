"""onnxruntime on the CPU, with its errors turned into one line each.

Three choices were measured on the zoo: spinning worker threads stay on (off: 10-60 % slower), but stop at the end of a
run (they would take the processors from the other model's next one: a float and a quantized model in turn were seen to
take twice as long as one after the other); and the memory arena stays on (off: up to three times slower where
activations are large).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import TensorInfo
from qtool.runtime.arena import register_arena
from qtool.runtime.custom_ops import HINT, add_custom_ops
from qtool.runtime.lean import is_lean
from qtool.runtime.outputs import wanted_outputs
from qtool.runtime.paths import is_utf8

if TYPE_CHECKING:
    import onnx

# ORT's spelling of element types -> numpy or ml_dtypes name. 4-bit types are missing: ORT hands them out packed.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "bool": "bool",
    "string": "str",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "complex64": "complex64",
    "complex128": "complex128",
}
# ml_dtypes types, which numpy() and run() of ORT do not know -> TensorProto.DataType
_EXTENSION_TYPES = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
_FATAL_ONLY = 4  # errors come as exceptions; ORT would print them on stderr as well
_SOURCE_POSITION = re.compile(r"\S*onnxruntime\S*\.(?:h|cc):\d+ .*?\) ")
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NO_MEMORY = re.compile(r"Failed to allocate memory|bad_alloc|Available memory of|bad allocation")
_UNKNOWN_OPERATOR = re.compile(r"[\w.]+:\w+\(-?\d+\) is not a registered function/op")
_MAX_MESSAGE = 300


class OrtSession:
    """A model loaded by onnxruntime (CPU provider).

    Args:
        model: A file, serialized bytes, or a proto (which is not changed). External data is found beside the file;
            for bytes and protos, in ``base_dir``.
        optimize: False runs the graph as it is written, node by node.
        num_threads: Threads of one operator, at most one per processor; by default ORT takes one per physical core.
        base_dir: Folder that external data of bytes or of a proto is relative to.
        shared_memory: Take memory from the one arena that all such sessions of the process share.

    Raises:
        ModelError: If ORT does not load the model; one line.
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
    ) -> None:
        import onnxruntime as ort

        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"Number of threads is {num_threads}; expected 1 or more.")
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        add_custom_ops(options)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # more threads than processors only wait for each other, spinning
        options.intra_op_num_threads = min(num_threads or 0, os.cpu_count() or 1)
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if is_lean():
            options.enable_cpu_mem_arena = False
            options.intra_op_num_threads = 1  # each thread reserves a stack and buffers of its own
            options.enable_mem_pattern = False
        elif shared_memory:
            register_arena()
            options.add_session_config_entry("session.use_env_allocators", "1")
            # weights would leave holes in the arena, and a part of its last chunk unused
            options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        if base_dir is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(base_dir))
        subject = f"Model '{model}'" if isinstance(model, (str, Path)) else "Model"
        if isinstance(model, (str, Path)) and not is_utf8(model):
            raise ModelError(f"{subject} is not a UTF-8 path, which onnxruntime cannot open.")
        source = _source(model, subject, base_dir)
        try:
            session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ORT's exceptions share no base class but this
            raise refusal(subject, error) from error
        self._session = session
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _FATAL_ONLY
        self._subject = subject
        self.inputs = tuple(_info(arg, subject, "input") for arg in session.get_inputs())
        arrays = [arg for arg in session.get_outputs() if _type_name(arg) is not None]
        self.outputs = tuple(_info(arg, subject, "output") for arg in arrays)
        self.opaque_outputs = {arg.name: str(arg.type) for arg in session.get_outputs() if _type_name(arg) is None}
        self._output_types = {info.name: info.dtype for info in self.outputs}
        self._input_types = {info.name: info.dtype for info in self.inputs}

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
            DataError: If ORT does not take the feeds or fails while it computes; one line.
            MemoryError: If it gets no memory.
        """
        names = wanted_outputs(self._subject, outputs, self._output_types, self.opaque_outputs)
        if not names:  # ORT takes an empty list for "all"
            return {}
        types = [self._output_types[name] for name in names]
        fed = [self._input_types[name] for name in feeds if name in self._input_types]
        try:
            if any(dtype.name in _EXTENSION_TYPES for dtype in types + fed):
                arrays = self._run_values(names, types, feeds)
            else:
                arrays = self._session.run(names, dict(feeds), self._run_options)
        except Exception as error:  # as above
            if _NO_MEMORY.search(str(error)):
                raise MemoryError(_line(error)) from error
            raise DataError(f"{self._subject} does not run on these inputs: {_line(error)}") from error
        return dict(zip(names, arrays, strict=True))

    def _run_values(
        self, names: list[str], types: list[np.dtype[Any]], feeds: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[Any]]:
        import onnxruntime as ort

        values = {}
        for name, array in feeds.items():
            code = _EXTENSION_TYPES.get(array.dtype.name)
            if code is None:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
            else:
                bits = np.ascontiguousarray(array).view(np.dtype(f"uint{8 * array.itemsize}"))
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, code)
        results = self._session.run_with_ort_values(names, values, self._run_options)
        return [
            _copy_out(value, dtype) if dtype.name in _EXTENSION_TYPES else value.numpy()
            for value, dtype in zip(results, types, strict=True)
        ]


def refusal(subject: str, error: Exception) -> ModelError:
    """What a model that onnxruntime does not load ends with."""
    import onnxruntime as ort

    reason = _line(error)
    hint = HINT if _UNKNOWN_OPERATOR.search(reason) else None
    return ModelError(f"{subject} is not accepted by onnxruntime {ort.__version__}: {reason}", hint=hint)


def _copy_out(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The content of an OrtValue whose element type ORT's numpy() refuses."""
    shape = tuple(value.shape())
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    data = ctypes.string_at(value.data_ptr(), nbytes)
    return np.frombuffer(data, dtype).reshape(shape)


def _source(model: str | Path | bytes | onnx.ModelProto, subject: str, base_dir: str | Path | None) -> str | bytes:
    """What InferenceSession takes, after the checks whose failure ORT words badly."""
    if isinstance(model, (str, Path)):
        if not Path(model).is_file():
            raise ModelError(f"{subject} is not a file that exists.")
        return str(model)
    if isinstance(model, bytes):
        return model
    from onnx.external_data_helper import uses_external_data

    external = next((t.name for t in model.graph.initializer if uses_external_data(t)), None)
    if external is not None and base_dir is None:
        raise ModelError(
            f"{subject} keeps '{external}' in an external file, and its folder is not known.",
            hint="Give the path of the model file instead of the loaded proto.",
        )
    try:
        serialized: bytes = model.SerializeToString()
    except Exception as error:  # protobuf raises EncodeError or ValueError, by implementation
        raise ModelError(
            f"{subject} is larger than 2 GB, which a protobuf message cannot be.",
            hint="Save it with external data and give the path of the file.",
        ) from error
    return serialized


def _type_name(arg: Any) -> str | None:
    """Name of the numpy (or ml_dtypes) type of an input or output, or None for what is no array."""
    match = re.fullmatch(r"tensor\((\w+)\)", arg.type)
    return _DTYPES.get(match[1]) if match else None


def _info(arg: Any, subject: str, kind: str) -> TensorInfo:
    name = _type_name(arg)
    if name is None:
        raise ModelError(f"{subject}: {kind} '{arg.name}' is {arg.type}; expected a tensor of a type that numpy has.")
    return TensorInfo(arg.name, _dtype(name), tuple(arg.shape))


def _dtype(name: str) -> np.dtype[Any]:
    if name not in _EXTENSION_TYPES:
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def _line(error: Exception) -> str:
    """ORT's message on one line, without status codes and positions in ORT's own source."""
    text = _STATUS.sub("", " ".join(str(error).split()))
    text = _SOURCE_POSITION.sub("", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
