"""What both model files are: hashes, element types, the settings that one was made with, and its largest tensors.

Nothing of this needs a sample, and no weight is read but to hash the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qtool.evaluate.json_form import Json
from qtool.version import package_version

if TYPE_CHECKING:
    import os

    import onnx
    import onnx_ir as ir

TENSORS_SHOWN = 50
METADATA_PREFIX = "qtool."
_LONG_NAMES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class TypeShare:
    """The constants of one element type.

    Attributes:
        dtype: Element type.
        tensors: How many there are.
        nbytes: Bytes of their elements.
    """

    dtype: str
    tensors: int
    nbytes: int

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON."""
        return {"dtype": self.dtype, "tensors": self.tensors, "bytes": self.nbytes}


@dataclass(frozen=True)
class ModelFile:
    """One model.

    Attributes:
        sha256: Of the file followed by its external data files; for a model in memory, of its serialization.
        nbytes: The size of what was hashed.
        opset: Version of the default operator set; None without one.
        ir_version: Of the file format.
        nodes: Nodes of the graph, without those of its subgraphs.
        types: Constants by element type, the largest first.
        metadata: The model's metadata under ``qtool.``, without that prefix: how qtool made it.
    """

    sha256: str
    nbytes: int
    opset: int | None
    ir_version: int | None
    nodes: int
    types: tuple[TypeShare, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON."""
        return {
            "sha256": self.sha256,
            "bytes": self.nbytes,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "nodes": self.nodes,
            "types": [one.to_dict() for one in self.types],
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True)
class StoredTensor:
    """One constant.

    Attributes:
        name: In the model; that of its node for a Constant.
        dtype: Element type.
        shape: Sizes.
        nbytes: Bytes of its elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "bytes": self.nbytes}


@dataclass(frozen=True)
class Details:
    """Both models.

    Attributes:
        float_model: The reference.
        quantized_model: The candidate.
        tensors: The largest constants of the candidate, at most :data:`TENSORS_SHOWN`.
        other_tensors: How many more there are.
        other_bytes: Bytes of those.
        made_from_float: Whether the candidate says that it was made from this very reference; None if it says nothing.
        version: Of the qtool that evaluates.
    """

    float_model: ModelFile
    quantized_model: ModelFile
    tensors: tuple[StoredTensor, ...]
    other_tensors: int
    other_bytes: int
    made_from_float: bool | None
    version: str

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON."""
        return {
            "float_model": self.float_model.to_dict(),
            "quantized_model": self.quantized_model.to_dict(),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "other_tensors": self.other_tensors,
            "other_bytes": self.other_bytes,
            "made_from_float": self.made_from_float,
            "version": self.version,
        }


def model_details(
    float_model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    quant_model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
) -> Details:
    """Read both models.

    Raises:
        ModelError: If one cannot be read.
    """
    reference, _ = _described(float_model)
    candidate, tensors = _described(quant_model)
    source = candidate.metadata.get("source.sha256")
    others = tensors[TENSORS_SHOWN:]
    return Details(
        float_model=reference,
        quantized_model=candidate,
        tensors=tensors[:TENSORS_SHOWN],
        other_tensors=len(others),
        other_bytes=sum(tensor.nbytes for tensor in others),
        made_from_float=None if source is None else source == reference.sha256,
        version=package_version(),
    )


def _described(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
) -> tuple[ModelFile, tuple[StoredTensor, ...]]:
    """A model, and all its constants with the largest first."""
    from qtool.prepare.load import describe_source, load_model

    loaded = load_model(model)
    source = describe_source(model, loaded)
    tensors = sorted(_constants(loaded), key=lambda tensor: (-tensor.nbytes, tensor.name))
    counts: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        number, nbytes = counts.get(tensor.dtype, (0, 0))
        counts[tensor.dtype] = number + 1, nbytes + tensor.nbytes
    metadata = {
        key.removeprefix(METADATA_PREFIX): value
        for key, value in sorted(loaded.metadata_props.items())
        if key.startswith(METADATA_PREFIX)
    }
    types = (TypeShare(dtype, number, nbytes) for dtype, (number, nbytes) in counts.items())
    described = ModelFile(
        sha256=source.sha256,
        nbytes=source.nbytes,
        opset=loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx")),
        ir_version=loaded.ir_version,
        nodes=len(loaded.graph),
        types=tuple(sorted(types, key=lambda one: (-one.nbytes, one.dtype))),
        metadata=metadata,
    )
    return described, tuple(tensors)


def _constants(model: ir.Model) -> Iterator[StoredTensor]:
    """Initializers and Constant nodes, of subgraphs and local functions too."""
    import onnx_ir as ir

    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield _stored(name, value.const_value)
    bodies = (model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    for body in bodies:
        for node in body:
            if node.op_type == "Constant":
                for attribute in node.attributes.values():
                    if attribute.type == ir.AttributeType.TENSOR:
                        yield _stored(node.outputs[0].name or node.name or "", attribute.as_tensor())


def _stored(name: str, tensor: ir.TensorProtocol) -> StoredTensor:
    shape = tuple(size if isinstance(size, int) else 0 for size in tensor.shape)
    dtype = tensor.dtype.name.lower()
    return StoredTensor(name, _LONG_NAMES.get(dtype, dtype), shape, int(tensor.nbytes))
