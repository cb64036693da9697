"""One model's top graph with look-ups; weights stay in the proto until they are asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.evaluate.attribution.lazy import tensor_bytes

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.segments import SourceGraph

Array: TypeAlias = npt.NDArray[Any]

_DEFAULT_DOMAINS = ("", "ai.onnx")


def is_op(node: onnx.NodeProto | None, *op_types: str) -> bool:
    """Whether a node is one of these operators of ``ai.onnx``."""
    return node is not None and node.domain in _DEFAULT_DOMAINS and node.op_type in op_types


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


class Graph:
    """The top graph of a model.

    Args:
        source: The model; it is not changed.

    Attributes:
        source: The model.
        nodes: Its nodes, in order.
        inputs: Names of the inputs that a caller feeds.
        outputs: Names of the outputs.
        initializers: Name -> tensor.
    """

    def __init__(self, source: SourceGraph) -> None:
        graph = source.proto.graph
        self.source = source
        self.nodes = list(graph.node)
        self.initializers = {t.name: t for t in graph.initializer}
        self.inputs = tuple(v.name for v in graph.input if v.name not in self.initializers)
        self.outputs = tuple(v.name for v in graph.output)
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(values_read(node)):
                self._readers[name].append(node)

    @property
    def tensors(self) -> Collection[str]:
        """Names of what is computed or fed."""
        return self._producers.keys() | set(self.inputs)

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a value."""
        return self._producers.get(name)

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a value, those whose bodies do included."""
        return self._readers.get(name, [])

    def sole_reader(self, name: str) -> onnx.NodeProto | None:
        """The only node that reads a value, if nobody else sees it."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def is_constant(self, name: str) -> bool:
        """Whether a value is an initializer or the output of a Constant node."""
        return name in self.initializers or is_op(self.producer(name), "Constant")

    def array(self, name: str) -> Array:
        """The elements of a constant; 4-bit types as ``ml_dtypes``."""
        from onnx import numpy_helper

        tensor = self.initializers.get(name)
        if tensor is None:
            node = self._producers[name]
            assert node.op_type == "Constant", f"Bug: {name} is no constant"
            (value,) = node.attribute
            if value.name != "value":
                return np.asarray(_plain(value))
            tensor = value.t
        return numpy_helper.to_array(tensor_bytes(tensor, self.source.base_dir))

    def is_dequantized_constant(self, name: str) -> bool:
        """Whether a value is a DequantizeLinear of a constant."""
        node = self.producer(name)
        return is_op(node, "DequantizeLinear") and node is not None and self.is_constant(node.input[0])

    def dequantized(self, node: onnx.NodeProto) -> Array:
        """What a DequantizeLinear of a constant gives."""
        codes, scale = self.array(node.input[0]), self.array(node.input[1])
        zero = self.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if zero is not None and codes.dtype == np.int32:
            zero = None  # it must be zero
        return kernels.dequantize(
            codes,
            scale,
            zero,
            axis=attribute(node, "axis", 1),
            block_size=attribute(node, "block_size", 0),
        )


def values_read(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads, and those that its bodies name."""
    yield from (name for name in node.input if name)
    for one in node.attribute:
        for graph in [one.g] if one.HasField("g") else list(one.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from values_read(inner)


def _plain(value: onnx.AttributeProto) -> object:
    from onnx import helper

    found = helper.get_attribute_value(value)
    dtype = np.float32 if value.name.startswith("value_float") else None
    return np.asarray(found, dtype)
