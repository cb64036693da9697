"""A unit's operator alone, as a small model: f(W~; .) from the quantized file and f(W; .) from the float one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qtool.errors import ModelError
from qtool.evaluate.attribution.graph import Array, Graph, is_op, values_read
from qtool.evaluate.attribution.units import Unit
from qtool.runtime import Session, create_session

if TYPE_CHECKING:
    import onnx

MOST_NODES = 48
"""Nodes of the float model that one quantized operator may stand for: what is more is a mistake in the matching."""
_HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU")
_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True)
class FloatPart:
    """What a unit stands for in the float model.

    Attributes:
        nodes: From its operands to its output, in order.
        inputs: Further tensors that they read: inputs of the model.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]

    @property
    def heaviest(self) -> onnx.NodeProto:
        """The node that a user would call the operator."""
        return next((node for node in self.nodes if node.op_type in _HEAVY), self.nodes[-1])


def float_part(unit: Unit, reference: Graph) -> FloatPart | None:
    """The nodes of the float model between a unit's operands and its output; None if they do not belong together."""
    known = {operand.tensor for operand in unit.operands}
    needed: dict[int, onnx.NodeProto] = {}
    inputs: dict[str, None] = {}
    waiting = [unit.output]
    while waiting:
        name = waiting.pop()
        node = reference.producer(name)
        if name in known or (node is not None and id(node) in needed):
            continue
        if node is None:
            if name in reference.inputs:
                inputs[name] = None
            continue
        needed[id(node)] = node
        if len(needed) > MOST_NODES:
            return None
        waiting += list(values_read(node))
    nodes = tuple(node for node in reference.nodes if id(node) in needed)
    return FloatPart(nodes, tuple(inputs)) if nodes else None


class Operator:
    """Both forms of a unit's operator.

    Args:
        unit: The unit.
        part: What it stands for in the float model.
        quantized: Graph of the quantized model.
        reference: Graph of the float model.
    """

    def __init__(self, unit: Unit, part: FloatPart, quantized: Graph, reference: Graph) -> None:
        self._unit, self._part = unit, part
        self._graphs = quantized, reference
        self._stored: Session | None = None
        self._float: Session | None = None
        self._kept = False

    @property
    def has_own_weights(self) -> bool:
        """Whether f(W~; .) is another function than f(W; .)."""
        return self._unit.weight is not None or any(
            value.dtype != np.float32 or value.size > 1 for value in self._unit.constants.values()
        )

    def stored(self, operands: Mapping[str, Array], feeds: Mapping[str, Array]) -> Array:
        """f(W~; x).

        Args:
            operands: Tensor of the float model -> x.
            feeds: Inputs of the model.
        """
        if not self.has_own_weights:
            return self.exact(operands, feeds)
        if self._stored is None:
            self._stored = self._stored_session(operands)
        slots = {operand.slot: operands[operand.tensor] for operand in self._unit.operands}
        return self._stored.run({name: _array(slots[name]) for name in self._names(self._stored)})[OUT]

    def exact(self, operands: Mapping[str, Array], feeds: Mapping[str, Array]) -> Array:
        """f(W; x); see :meth:`stored`."""
        values = {**{name: feeds[name] for name in self._part.inputs}, **operands}
        if self._float is None:
            self._float = self._float_session(values)
        return self._float.run({name: _array(values[name]) for name in self._names(self._float)})[OUT]

    @property
    def nbytes(self) -> int:
        """About what the weights of the sessions take that there are now."""
        weights = sum(4 * array.size for array in self._unit.constants.values())
        return weights * sum(session is not None for session in (self._stored, self._float))

    def keep(self) -> int:
        """Let the sessions outlive :meth:`close`; what that takes more than before, in bytes."""
        before, self._kept = self._kept, True
        return 0 if before else self.nbytes

    def close(self, *, kept: bool = False) -> None:
        """Drop the sessions, unless they are kept; they are made again when they are asked for.

        Args:
            kept: Whether to drop those that are kept, too.
        """
        if kept or not self._kept:
            self._stored = self._float = None

    @staticmethod
    def _names(session: Session) -> list[str]:
        return [info.name for info in session.inputs]

    def _stored_session(self, operands: Mapping[str, Array]) -> Session:
        from onnx import numpy_helper

        unit = self._unit
        model = _model(self._graphs[0], self._graphs[1])
        nodes, result = list(unit.nodes), unit.result
        if unit.saturates:
            clamps, result = self._clamps(result)
            nodes += clamps
            for clamp in clamps:
                for name in clamp.input[1:]:
                    if name:
                        model.graph.initializer.append(_named(self._graphs[1], name))
        read = {name for node in nodes for name in node.input}
        for name, array in unit.constants.items():
            if name in read:
                if array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub":
                    _embed(model.graph.initializer.add(), name, array)
                else:
                    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        values = {operand.slot: operands[operand.tensor] for operand in unit.operands}
        return self._session(model, nodes, values, result, self._graphs[0])

    def _clamps(self, value: str) -> tuple[list[onnx.NodeProto], str]:
        """Copies of what ends the float part and is the saturation of an integer operator."""
        import onnx

        found: list[onnx.NodeProto] = []
        for node in reversed(self._part.nodes):
            if not is_op(node, *_CLAMPS) or (found and node.output[0] != found[-1].input[0]):
                break
            found.append(node)
        copies = []
        for number, node in enumerate(reversed(found)):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[0] = value
            value = f"{value}:clamp{number}"
            copy.output[0] = value
            copies.append(copy)
        return copies, value

    def _float_session(self, values: Mapping[str, Array]) -> Session:
        reference = self._graphs[1]
        model = _model(reference, reference)
        made = {name for node in self._part.nodes for name in node.output}
        read = dict.fromkeys(name for node in self._part.nodes for name in values_read(node))
        for name in read:
            if name in reference.initializers and name not in made and name not in values:
                model.graph.initializer.append(reference.initializers[name])
        return self._session(model, self._part.nodes, values, self._unit.output, reference)

    def _session(
        self,
        model: onnx.ModelProto,
        nodes: Sequence[onnx.NodeProto],
        values: Mapping[str, Array],
        result: str,
        graph: Graph,
    ) -> Session:
        import onnx
        from onnx import helper

        model.graph.node.extend(nodes)
        model.graph.node.append(onnx.NodeProto(op_type="Identity", input=[result], output=[OUT]))
        read = {name for node in nodes for name in values_read(node)}
        for name, array in values.items():
            if name in read:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                model.graph.input.append(helper.make_tensor_value_info(name, kind, [None] * array.ndim))
        model.graph.output.add().name = OUT
        return create_session(
            model.SerializeToString(),
            num_threads=1,  # several units are worked on at a time
            base_dir=graph.source.base_dir,
            shared_memory=True,
        )


OUT = "qtool:out"


def _model(graph: Graph, other: Graph) -> onnx.ModelProto:
    """An empty model of the graph's operator sets."""
    import onnx

    source = graph.source.proto
    return onnx.ModelProto(
        ir_version=max(source.ir_version, other.source.proto.ir_version),
        opset_import=source.opset_import,
        functions=source.functions,
        graph=onnx.GraphProto(name="operator"),
    )


def _named(graph: Graph, name: str) -> onnx.TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(graph.array(name) if graph.is_constant(name) else _computed(graph, name), name)


def _computed(graph: Graph, name: str) -> Array:
    """A value that nodes compute from constants, as exporters write the bounds of a Clip (Constant -> Cast)."""
    model = _model(graph, graph)
    nodes: list[onnx.NodeProto] = []
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        if value in graph.initializers:
            model.graph.initializer.append(graph.initializers[value])
            continue
        node = graph.producer(value)
        if node is None:
            raise ModelError(f"Tensor '{name}', a bound, depends on '{value}', an input; expected a constant.")
        nodes.append(node)
        new = [read for read in values_read(node) if read not in seen]
        waiting += new
        seen.update(new)
    order = {id(node): position for position, node in enumerate(graph.nodes)}
    model.graph.node.extend(sorted(nodes, key=lambda node: order[id(node)]))
    model.graph.output.add().name = name
    return create_session(model.SerializeToString(), num_threads=1, base_dir=graph.source.base_dir).run({})[name]


def _embed(tensor: onnx.TensorProto, name: str, array: Array) -> None:
    """Give a tensor of a model its content in place: appending one would copy it once more."""
    from onnx import helper

    tensor.name = name
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.dims.extend(array.shape)
    tensor.raw_data = array.tobytes()


def _array(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape)
