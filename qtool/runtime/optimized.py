"""The graph that onnxruntime makes of a model: which operators it fused, and how it lays arrays out."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.runtime.custom_ops import add_custom_ops
from qtool.runtime.ort import _FATAL_ONLY, _source, refusal

if TYPE_CHECKING:
    import onnx

_DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OptimizedNode:
    """A node of an optimised graph.

    Attributes:
        name: Its name: that of the operator that was fused, as a rule, sometimes with a suffix ("/MatMulAddFusion").
        op_type: Its operator.
        domain: Empty for ai.onnx.
        inputs: Names of the values that it reads; empty names are inputs left out.
        outputs: Names of the values that it writes.
        body: Whether it stands in the body of an If, Loop or Scan.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: bool = False


def optimized_nodes(
    model: str | Path | bytes | onnx.ModelProto, *, base_dir: str | Path | None = None
) -> list[OptimizedNode]:
    """The nodes of a model as onnxruntime would run it on the CPU, but for changes of layout, in graph order.

    The last of its levels only moves Convs and pools to NHWC between Transposes and replaces no operator of numbers; it
    is left out, so that a count says what was fused.

    Args:
        model: A file, serialized bytes, or a proto; it is not changed. Nothing stays on the disk.
        base_dir: Folder that external data of bytes or of a proto is relative to.

    Raises:
        ModelError: If onnxruntime does not load the model.
    """
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="qtool-") as folder:
        proto = _written(model, Path(folder), ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, base_dir)
        return _nodes(proto.graph, body=False)


def write_optimized(
    model: onnx.ModelProto | bytes, folder: Path, *, base_dir: str | Path | None = None
) -> onnx.ModelProto:
    """A model as onnxruntime runs it on this processor and no other, layouts included.

    Args:
        model: Serialized bytes, or a proto; it is not changed.
        folder: Gets two files, of which one holds the larger weights of the proto that is returned.
        base_dir: Folder that external data of ``model`` is relative to.

    Raises:
        ModelError: If onnxruntime does not load the model.
    """
    import onnxruntime as ort

    return _written(model, folder, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, base_dir)


def _written(
    model: str | Path | bytes | onnx.ModelProto, folder: Path, level: Any, base_dir: str | Path | None
) -> onnx.ModelProto:
    import onnx
    import onnxruntime as ort

    subject = f"Model '{model}'" if isinstance(model, (str, Path)) else "Model"
    source = _source(model, subject, base_dir)
    path = folder / "optimized.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    add_custom_ops(options)
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    # weights beside the graph: it can be read without them, and a model beyond 2 GB can be written
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False  # it would round the weights, its only content, up to the next power of two
    if base_dir is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(base_dir))
    try:
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ORT's exceptions share no base class but this
        raise refusal(subject, error) from error
    return onnx.load(str(path), load_external_data=False)


def optimized_ops(model: str | Path | bytes | onnx.ModelProto, *, base_dir: str | Path | None = None) -> Counter[str]:
    """Operator types of :func:`optimized_nodes`, counted; one of another domain is named like any other."""
    return Counter(node.op_type for node in optimized_nodes(model, base_dir=base_dir))


def _nodes(graph: onnx.GraphProto, *, body: bool) -> list[OptimizedNode]:
    found = []
    for node in graph.node:
        domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
        found.append(OptimizedNode(node.name, node.op_type, domain, tuple(node.input), tuple(node.output), body))
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found += _nodes(inner, body=True)
    return found
