"""The few edits and questions that every pass shares: constants, consumers, fresh names, origins.

Edits go by object, never by name. Two facts of onnx_ir shape them: a clone shares its tensors, types and attributes
with the model it came from (so they are replaced, never changed in place), and ``value.uses()`` includes the nodes of
If/Loop/Scan bodies (so a captured value has a consumer in another graph).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

ORIGIN_KEY = "qtool.origin"

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
_TENSOR, _TENSORS = ir.AttributeType.TENSOR, ir.AttributeType.TENSORS
_FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


class PreparePass(ir.passes.InPlacePass):
    """A pass that changes the model in place and can say in plain words what it did.

    Args:
        bodies: Whether it also walks the bodies of If, Loop and Scan; only of account to the passes that say so.

    Attributes:
        count: How often the pass did its one thing, over all calls.
    """

    def __init__(self, *, bodies: bool = False) -> None:
        super().__init__()
        self.count = 0
        self._bodies = bodies

    def scope(self, model: ir.Model) -> list[ir.Graph]:
        """The graphs to walk: the top graph, and the bodies behind it if they are wanted."""
        return list(all_graphs(model)) if self._bodies else [model.graph]

    @property
    def actions(self) -> tuple[str, ...]:
        """Human lines; empty when nothing happened."""
        line = self.describe() if self.count else None
        return () if line is None else (line,)

    def describe(self) -> str | None:
        """One line for ``count`` changes; None if they are not worth one."""
        return None


def is_onnx_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is one of these operators of the ``ai.onnx`` domain."""
    return node is not None and node.domain == "" and node.op_type in op_types


def is_float_type(dtype: ir.DataType | None) -> bool:
    """Whether the type is one of float32, float16, bfloat16, float64."""
    return dtype in _FLOAT_TYPES


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no caller can override."""
    return value is not None and value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant (read-only: it may be a view of a mapped file), or None for anything else."""
    if value is None or not is_constant(value):
        return None
    assert value.const_value is not None
    return value.const_value.numpy()


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a constant, without reading it; None for anything else."""
    if value is None or not is_constant(value):
        return None
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input, or None where it is left out, by an empty name or by a shorter list."""
    return node.inputs[index] if index < len(node.inputs) else None


def sole_consumer(value: ir.Value) -> ir.Node | None:
    """The one node that reads the value once, in the value's own graph; None if anything else reads it.

    A graph output has the caller as a consumer; a value that a body captures has one in another graph.
    """
    uses = tuple(value.uses())
    if value.is_graph_output() or len(uses) != 1:
        return None
    producer, consumer = value.producer(), uses[0].node
    return consumer if producer is not None and consumer.graph is producer.graph else None


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The top graph, then every body, each once, in the order of ``model.graphs()``, which takes ten times as long."""
    seen: dict[int, ir.Graph] = {}
    _add_graphs(model.graph, seen)
    yield from seen.values()


def _add_graphs(graph: ir.Graph, seen: dict[int, ir.Graph]) -> None:
    if id(graph) in seen:
        return
    seen[id(graph)] = graph
    for node in graph:
        for attribute in node.attributes.data.values():  # a UserDict looks up each key anew
            if attribute.type == _GRAPH:
                _add_graphs(attribute.value, seen)
            elif attribute.type == _GRAPHS:
                for body in attribute.value:
                    _add_graphs(body, seen)


class NameAllocator:
    """Names that are new in the whole model, bodies included: bodies see the names of the graphs around them."""

    def __init__(self, model: ir.Model) -> None:
        self._values: set[str] = set()
        self._nodes: set[str] = set()
        self._last_value: dict[str, int] = {}
        self._last_node: dict[str, int] = {}
        for graph in all_graphs(model):
            self._values.update(value.name or "" for value in graph.inputs)
            self._values.update(graph.initializers)
            for node in graph:
                self._nodes.add(node.name or "")
                self._values.update(value.name or "" for value in node.outputs)

    @staticmethod
    def _fresh(base: str, used: set[str], last: dict[str, int]) -> str:
        name, number = base, last.get(base, 0)  # no name ever becomes free again
        while not name or name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        last[base] = number
        return name

    def value(self, base: str) -> str:
        """A value name: ``base`` itself if it is free, else with a number."""
        return self._fresh(base, self._values, self._last_value)

    def node(self, base: str) -> str:
        """A node name: ``base`` itself if it is free, else with a number."""
        return self._fresh(base, self._nodes, self._last_node)


def new_constant(graph: ir.Graph, names: NameAllocator, base: str, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
    """Register an array as an initializer under a fresh name.

    Args:
        graph: The graph that gets the initializer.
        names: The allocator of the model.
        base: What the name starts with.
        array: Any shape, of the NumPy type that belongs to ``dtype``; kept, not copied.
        dtype: The element type.
    """
    name = names.value(base)
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def new_node(
    names: NameAllocator,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    base: str,
    origin: ir.Node,
    attributes: Sequence[ir.Attr] = (),
    output: str | None = None,
) -> ir.Node:
    """A node of ``ai.onnx`` with one output, that stands for the same user nodes as ``origin``; not yet in a graph."""
    node = ir.Node("", op_type, inputs, attributes, num_outputs=1, name=names.node(base))
    node.outputs[0].name = names.value(output if output is not None else f"{base}_output")
    set_origin(node, origin_of(origin))
    return node


def origin_of(node: ir.Node) -> list[str]:
    """The names of the user's nodes that this node stands for, its own first."""
    text = node.metadata_props.get(ORIGIN_KEY)
    return [node.name or ""] if text is None else list(json.loads(text))


def set_origin(node: ir.Node, names: Sequence[str], *, always: bool = False) -> None:
    """Record which of the user's nodes this node stands for; when it is only itself, only if ``always``."""
    unique = list(dict.fromkeys(names))
    if unique == [node.name] and not always:
        node.metadata_props.pop(ORIGIN_KEY, None)
    else:
        node.metadata_props[ORIGIN_KEY] = json.dumps(unique)


def add_origin(node: ir.Node, absorbed: ir.Node) -> None:
    """Record that ``node`` now also does what ``absorbed`` did."""
    set_origin(node, origin_of(node) + origin_of(absorbed))


def take_over(value: ir.Value, replaced: ir.Value) -> None:
    """Let ``value`` stand wherever ``replaced`` stood, under the name of ``replaced``, graph outputs included.

    The old name of ``value`` disappears: the numbers that it named are no longer computed.
    """
    name = replaced.name
    replaced.replace_all_uses_with(value, replace_graph_outputs=True)
    replaced.name = None
    value.name = name
    value.type = replaced.type if replaced.type is not None else value.type
    value.shape = replaced.shape if replaced.shape is not None else value.shape
    value.doc_string = replaced.doc_string
    value.metadata_props.clear()
    value.metadata_props.update(replaced.metadata_props)


def absorb_follower(node: ir.Node, follower: ir.Node) -> None:
    """Remove ``follower``, whose result ``node`` computes from now on."""
    assert follower.graph is not None
    take_over(node.outputs[0], follower.outputs[0])
    add_origin(node, follower)
    follower.graph.remove(follower, safe=True)


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """The tensor of an attribute.

    ``as_tensor()`` asks it for each member of the protocol, which for many constants takes longer than to read them.

    Raises:
        TypeError: If it is of another type.
    """
    return attribute.value if attribute.type == _TENSOR else attribute.as_tensor()


def attribute_tensors(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    """The tensors among the attributes of a node."""
    for attribute in node.attributes.data.values():
        if attribute.is_ref():
            continue
        if attribute.type == _TENSOR:
            yield attribute.value
        elif attribute.type == _TENSORS:
            yield from attribute.value


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs of a node, each with a label: the attribute's name, numbered where the attribute is a list."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for number, graph in enumerate(attribute.as_graphs()):
                yield f"{attribute.name}[{number}]", graph


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def string_attribute(node: ir.Node, name: str, default: str) -> str:
    """A string attribute or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


def plural(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
