"""A model that is run piece by piece, so that what is observed of it can be dropped long before its end.

A runtime keeps all outputs of a model until the run is over: a model with every activation among its outputs needs the
memory of them all. Cut into segments, each a session of its own, it needs the outputs of one segment and the few
tensors that later ones read. Nothing is computed twice. Cuts depend on the model and the wanted tensors, never on data.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.errors import ConfigError, ModelError
from qtool.runtime import Session, create_session
from qtool.runtime.lean import release

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = npt.NDArray[Any]

TENSORS_PER_SEGMENT = 6
BYTES_PER_SEGMENT = 8 << 20  # of a sample's wanted tensors: what comes first is still near when it is counted
_RELEASE_BYTES = 8 << 20
# by the number of the element type in TensorProto
ITEM_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2}
_OBSERVED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class SourceGraph:
    """A model's graph with the folder of its external data."""

    proto: onnx.ModelProto
    base_dir: Path | None


def read_graph(model: onnx.ModelProto | str | PathLike[str]) -> SourceGraph:
    """The proto of a file (its external data stays there), or the proto that is given.

    Raises:
        ModelError: If the file cannot be read.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        return SourceGraph(model, None)
    path = Path(fspath(model))
    try:
        return SourceGraph(onnx.load(path, load_external_data=False), path.resolve().parent)
    except Exception as error:  # OSError, or protobuf's DecodeError
        raise ModelError(f"Model '{path}' cannot be read: {' '.join(str(error).split())[:200]}.") from error


@dataclass
class _Segment:
    """A session, and how its arrays come and go."""

    session: Session
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    dropped: tuple[str, ...] = field(default=())  # read by no later segment


class SegmentedModel:
    """A model whose wanted tensors are visited while it runs.

    Args:
        source: The model; it is not changed.
        tensors: Names of the wanted tensors of the top graph.
        per_segment: How many wanted tensors of node outputs are computed by one session.
        num_threads: Threads of one operator.
        strict: False leaves out wanted tensors of other types instead of refusing them.
        observed: Types that a wanted tensor may have; by default those that have a range.
        optimize: False for a graph that was optimised before it was cut.

    Attributes:
        fed: Wanted inputs of the model.
        constants: Wanted initializers.
        computed: Wanted outputs of nodes.

    Raises:
        ConfigError: If a tensor does not exist.
        ModelError: If a session refuses its part of the model, or a wanted tensor is of a type without a range.
    """

    def __init__(
        self,
        source: SourceGraph,
        tensors: Sequence[str],
        *,
        per_segment: int = TENSORS_PER_SEGMENT,
        num_threads: int | None = 1,
        strict: bool = True,
        observed: Collection[str] = _OBSERVED,
        optimize: bool = True,
    ) -> None:
        self._source = source
        self._optimize = optimize
        self._types = observed
        graph = source.proto.graph
        self._initializers = {t.name: t for t in graph.initializer}
        self._initializers |= {t.values.name: t for t in graph.sparse_initializer}
        self._inputs = {v.name: v for v in graph.input if v.name not in self._initializers}
        produced = {name for node in graph.node for name in node.output if name}
        _require_known(tensors, self._inputs.keys() | self._initializers.keys() | produced)
        self.fed = [name for name in tensors if name in self._inputs]
        self.constants = [name for name in tensors if name in self._initializers]
        self.computed = [name for name in tensors if name in produced]
        self._sizes = {t.name: _nbytes_of(t.data_type, t.dims) for t in graph.initializer}
        for value in graph.value_info:  # as a batch of one sample has them; what is open counts nothing
            tensor = value.type.tensor_type
            self._sizes[value.name] = _nbytes_of(tensor.elem_type, [d.dim_value or 1 for d in tensor.shape.dim])
        self._strict = strict
        self._num_threads = num_threads
        if source.base_dir is None and self.computed:
            _require_embedded(source.proto)
        self._segments = self._build(per_segment)

    @staticmethod
    def ancestors(source: SourceGraph, name: str) -> list[str]:
        """Outputs of the nodes that a tensor depends on, in the order of the nodes; its own is the last."""
        nodes = nodes_in_use(source.proto, {name})
        return [output for node, _ in nodes for output in node.output if output]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run: all that is wanted is fed or constant."""
        return not self._segments

    def constant(self, name: str) -> Array:
        """The value of an initializer."""
        from onnx import numpy_helper

        folder = str(self._source.base_dir) if self._source.base_dir is not None else ""
        return numpy_helper.to_array(self._initializers[name], folder)

    def steps(self, feeds: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], int]]:
        """Run the model; yield the wanted tensors of each segment, those that are fed first.

        Yields:
            Name -> array, to be dropped before the next step, and the bytes of all arrays that are alive.

        Raises:
            DataError: If a segment does not run.
        """
        values = dict(feeds)
        if self.fed:
            yield {name: values[name] for name in self.fed}, _nbytes(values.values())
        for segment in self._segments:
            arrays = segment.session.run({name: values[name] for name in segment.inputs}, segment.outputs)
            values |= arrays
            alive = _nbytes(values.values())
            for name in segment.dropped:
                values.pop(name, None)
            seen = {name: arrays[name] for name in segment.wanted}
            arrays.clear()
            yield seen, alive

    def read_from(self, first: int) -> set[str]:
        """Values that segments from ``first`` on read and do not make themselves; nothing if there are none."""
        read: set[str] = set()
        for segment in reversed(self._segments[first:]):
            read = (read - set(segment.outputs)) | set(segment.inputs)
        return read

    def first_reader(self, name: str) -> int:
        """The first segment that reads a value."""
        return next(at for at, segment in enumerate(self._segments) if name in segment.inputs)

    def resume(
        self, values: Mapping[str, Array], first: int, kept: Collection[str]
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Run the model from a segment on.

        Args:
            values: What :meth:`read_from` names, and those of the kept ones that earlier segments make.
            first: The segment to begin with.
            kept: Names of wanted tensors that stay to the end.

        Yields:
            The number of each segment, before it is run, and the values that it and later ones read, with the kept
            ones so far; in the end the number of segments, and the kept ones.

        Raises:
            DataError: If a segment does not run.
        """
        held = dict(values)
        for number, segment in enumerate(self._segments[first:], first):
            yield number, held
            arrays = segment.session.run({name: held[name] for name in segment.inputs}, segment.outputs)
            held |= arrays
            for name in segment.dropped:
                if name not in kept:
                    held.pop(name, None)
        yield len(self._segments), held

    # ------------------------------------------------------------------------------------------------------- building

    def _build(self, per_segment: int) -> list[_Segment]:
        nodes = nodes_in_use(self._source.proto, set(self.computed))
        wanted = set(self.computed)
        cuts, found, size = [], 0, 0
        for index, (node, _) in enumerate(nodes):
            found += sum(name in wanted for name in node.output)
            size += sum(self._sizes.get(name, 0) for name in node.output if name in wanted)
            if found >= per_segment or (found and size >= BYTES_PER_SEGMENT):
                cuts.append(index + 1)
                found = size = 0
        if nodes and (not cuts or cuts[-1] < len(nodes)):
            cuts.append(len(nodes))
        last_use = {name: index for index, (_, used) in enumerate(nodes) for name in used}
        types: dict[str, tuple[np.dtype[Any], tuple[int | str | None, ...] | None]] = {}
        segments: list[_Segment] = []
        ends: list[int] = []
        start = weights = 0
        while start < len(nodes):
            stop = next(cut for cut in cuts if cut > start)
            segment = self._segment(nodes, start, stop, wanted, last_use, types)
            while segment is None:  # a value that cannot leave a session crosses the cut
                stop = next(cut for cut in cuts if cut > stop)
                segment = self._segment(nodes, start, stop, wanted, last_use, types)
            segments.append(segment)
            ends.append(stop)
            weights += sum(self._sizes.get(name, 0) for _, used in nodes[start:stop] for name in used)
            if weights >= _RELEASE_BYTES:
                release(cycles=False)  # onnxruntime lays weights out anew, and what it has freed may be as large
                weights = 0
            start = stop
        for position, (segment, stop) in enumerate(zip(segments, ends, strict=True)):
            held = {*segment.outputs, *segment.inputs}
            if position == 0:
                held |= self._inputs.keys()
            segment.dropped = tuple(name for name in held if last_use.get(name, -1) < stop)
        if self._strict:
            return segments
        self.computed = [name for segment in segments for name in segment.wanted]
        return segments

    def _segment(
        self,
        nodes: Sequence[tuple[onnx.NodeProto, frozenset[str]]],
        start: int,
        stop: int,
        wanted: set[str],
        last_use: Mapping[str, int],
        types: dict[str, tuple[np.dtype[Any], tuple[int | str | None, ...] | None]],
    ) -> _Segment | None:
        """Nodes start to stop as a session; None if it would hand on what no array holds."""
        import onnx
        from onnx import helper

        part = nodes[start:stop]
        made = [name for node, _ in part for name in node.output if name]
        read = list(dict.fromkeys(name for _, used in part for name in sorted(used)))
        inside = set(made)
        inputs = [n for n in read if n not in inside and (n in self._inputs or n in types)]
        observed = [n for n in made if n in wanted]
        outputs = [n for n in made if n in wanted or last_use.get(n, -1) >= stop]
        proto = onnx.ModelProto(
            ir_version=self._source.proto.ir_version,
            opset_import=self._source.proto.opset_import,
            functions=self._source.proto.functions,
        )
        graph = proto.graph
        graph.name = self._source.proto.graph.name or "segment"
        for name in inputs:
            if name in self._inputs:
                graph.input.append(self._inputs[name])
            else:
                dtype, shape = types[name]
                kind = helper.np_dtype_to_tensor_dtype(dtype)
                graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        for name in read:
            tensor = self._initializers.get(name)
            if isinstance(tensor, onnx.SparseTensorProto):
                graph.sparse_initializer.append(tensor)
            elif tensor is not None:
                graph.initializer.append(tensor)
        graph.node.extend(node for node, _ in part)
        for name in outputs:
            graph.output.add().name = name  # a name is all that onnxruntime needs: it infers type and shape itself
        session = create_session(
            _serialized(proto),
            optimize=self._optimize,
            num_threads=self._num_threads,
            base_dir=self._source.base_dir,
            shared_memory=True,
        )
        infos = {info.name: info for info in session.outputs}
        crossing = [n for n in outputs if last_use.get(n, -1) >= stop]
        if stop < len(nodes) and any(n not in infos or infos[n].dtype.kind == "U" for n in crossing):
            return None
        for name in observed:
            if self._strict and (name not in infos or infos[name].dtype.name not in self._types):
                found = infos[name].dtype.name if name in infos else session.opaque_outputs[name]
                raise ModelError(
                    f"Tensor '{name}' is {found}; expected a type that has a range: {', '.join(self._types)}."
                )
        observed = [n for n in observed if n in infos and infos[n].dtype.name in self._types]
        kept = [n for n in outputs if n in infos]
        declared = {v.name for v in self._source.proto.graph.output}
        for name in crossing:
            if name in infos:
                shape = infos[name].shape if name not in declared else (None,) * len(infos[name].shape)
                # onnxruntime gives a shape of no dimensions where it does not know the rank, too
                types[name] = (infos[name].dtype, shape or None)
        return _Segment(session, tuple(inputs), tuple(kept), tuple(observed))


def nodes_in_use(proto: onnx.ModelProto, needed: set[str]) -> list[tuple[onnx.NodeProto, frozenset[str]]]:
    """The nodes that some tensors depend on, in order, each with the values that it or its bodies read."""
    needed = set(needed)
    kept = []
    for node in reversed(proto.graph.node):
        if needed.intersection(node.output):
            used = frozenset(_names_read(node))
            needed |= used
            kept.append((node, used))
    return kept[::-1]


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads; for a node with bodies, also whatever is named in them."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _names_read(inner)


def _serialized(proto: onnx.ModelProto) -> bytes:
    try:
        serialized: bytes = proto.SerializeToString()
    except Exception as error:  # protobuf raises EncodeError or ValueError, by implementation
        raise ModelError(
            "The model is larger than 2 GB, which a protobuf message cannot be.",
            hint="Save it with external data and give the path of the file.",
        ) from error
    return serialized


def _require_known(tensors: Sequence[str], known: set[str]) -> None:
    for name in tensors:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise ConfigError(
                f"The model's graph has no tensor '{name}'.",
                hint=f"Did you mean {' or '.join(repr(n) for n in near)}?"
                if near
                else "Only tensors of the top graph and of If branches can be observed, not those inside Loop bodies.",
            )


def _require_embedded(proto: onnx.ModelProto) -> None:
    from onnx.external_data_helper import uses_external_data

    for tensor in proto.graph.initializer:
        if uses_external_data(tensor):
            raise ModelError(
                f"The model keeps '{tensor.name}' in an external file, and its folder is not known.",
                hint="Give the path of the model file instead of the loaded proto.",
            )


def _nbytes_of(code: int, dims: Iterable[int]) -> int:
    return ITEM_BYTES.get(code, 0) * math.prod(dims)


def _nbytes(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)
