"""A model of convolutions whose wanted tensors are observed as the runtime keeps them: with channels in blocks.

To hand a tensor out as (N, C, H, W), onnxruntime copies it from its own layout, which takes as long as counting it.
Here the model is optimised as a whole, cut into segments afterwards, and the tensors leave a session, and go from one
to the next, as they are. Their values are the same, and do not depend on the cuts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.calibrate.segments import Array, SegmentedModel, SourceGraph, nodes_in_use
from qtool.errors import ModelError
from qtool.runtime.blocked import BlockedValue, block_size, blocked_values, in_blocks
from qtool.runtime.optimized import write_optimized

if TYPE_CHECKING:
    import onnx

_SPATIAL_RANK = 4  # of an image and a filter: others have no such layout


class BlockedModel:
    """What :class:`SegmentedModel` is, as far as wanted tensors are counted; some come with their channels in blocks.

    Args:
        source: The model; it is not changed.
        tensors: Names of the wanted tensors of the top graph.
        per_segment: How many wanted tensors of node outputs are computed by one session.

    Attributes:
        fed: Wanted inputs of the model.
        constants: Wanted initializers.
        computed: Wanted outputs of nodes.
        channels: Those that are yielded as ``(N, ceil(channels / b), .., b)`` -> their channels.

    Raises:
        ConfigError: If a tensor does not exist.
        ModelError: If onnxruntime refuses the model, or a part of what it made of it.
    """

    def __init__(self, source: SourceGraph, tensors: Sequence[str], *, per_segment: int) -> None:
        initializers = {t.name for t in source.proto.graph.initializer}
        initializers |= {t.values.name for t in source.proto.graph.sparse_initializer}
        inputs = {v.name for v in source.proto.graph.input}
        self.computed = [name for name in tensors if name not in initializers | inputs]
        self._rest = SegmentedModel(source, [name for name in tensors if name in initializers | inputs])
        self.fed, self.constants = self._rest.fed, self._rest.constants
        with tempfile.TemporaryDirectory(prefix="qtool-", ignore_cleanup_errors=True) as folder:
            proto = write_optimized(_asked(source, self.computed), Path(folder), base_dir=source.base_dir)
            values = blocked_values(proto.graph)
            self.channels = {name: values[name].channels for name in self.computed if name in values}
            self._names: dict[str, list[str]] = {}
            for name in self.computed:
                self._names.setdefault(values.get(name, BlockedValue(name, 0)).name, []).append(name)
            _tell_sizes(proto.graph, source.proto.graph, self._names)
            self._run = SegmentedModel(
                SourceGraph(proto, Path(folder)), list(self._names), per_segment=per_segment, optimize=False
            )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run: all that is wanted is fed or constant."""
        return self._run.is_empty

    def constant(self, name: str) -> Array:
        """The value of an initializer."""
        return self._rest.constant(name)

    def steps(self, feeds: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], int]]:
        """See :meth:`SegmentedModel.steps`.

        Raises:
            DataError: If a segment does not run.
            ModelError: If an array does not have the channels that onnxruntime said.
        """
        yield from self._rest.steps(feeds)
        for arrays, alive in self._run.steps(feeds):
            seen = {}
            for value, array in arrays.items():
                for name in self._names[value]:
                    seen[name] = in_blocks(array, self.channels[name]) if name in self.channels else array
            arrays.clear()
            yield seen, alive


Run: TypeAlias = "SegmentedModel | BlockedModel"


def open_run(source: SourceGraph, tensors: Sequence[str], *, per_segment: int) -> Run:
    """A model to be run over samples for its wanted tensors, each in the layout in which it costs least to get.

    Raises:
        ConfigError: If a tensor does not exist.
        ModelError: If a session refuses its part of the model, or a wanted tensor is of a type without a range.
    """
    if _has_images(source, tensors) and block_size() is not None:
        try:
            model = BlockedModel(source, tensors, per_segment=per_segment)
        except ModelError:  # of a model, which is then refused again; or of a graph that onnxruntime cannot read back
            pass
        else:
            if model.channels:
                return model
    return SegmentedModel(source, tensors, per_segment=per_segment)


def _has_images(source: SourceGraph, tensors: Sequence[str]) -> bool:
    filters = {t.name for t in source.proto.graph.initializer if len(t.dims) == _SPATIAL_RANK}
    nodes = nodes_in_use(source.proto, set(tensors))
    return any(node.op_type == "Conv" and len(node.input) > 1 and node.input[1] in filters for node, _ in nodes)


def _asked(source: SourceGraph, tensors: Sequence[str]) -> onnx.ModelProto:
    """The model with some values of the top graph as its only outputs."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    del proto.graph.output[:]
    for name in tensors:
        proto.graph.output.add().name = name  # onnxruntime infers type and shape
    return proto


def _tell_sizes(graph: onnx.GraphProto, source: onnx.GraphProto, names: Mapping[str, Sequence[str]]) -> None:
    """Give the values of an optimised graph the shapes that the source says, by which it is cut."""
    known = {value.name: value for value in source.value_info}
    said = {value.name for value in graph.value_info}
    for value, (name, *_) in names.items():
        if value not in said and name in known:
            graph.value_info.add().CopyFrom(known[name])
            graph.value_info[-1].name = value
