"""What identifies a prepared model: its graph and its weights, not its file, path or formatting.

A fingerprint is a list of parts in the order in which the graph computes, each with a SHA-256: opset, inputs, and node
by node the constants that it is the first to read and the node itself. So that two models differ can be said with a
name: that of the first part that is not the same. Comments, shapes of inner values, names of open dimensions and the
encoding of weights do not count.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a statistics file is read without the graph library
    import onnx_ir as ir

_LARGE_BYTES = 1 << 16


@dataclass(frozen=True)
class Part:
    """One piece of a model.

    Attributes:
        kind: ``opset``, ``input``, ``tensor`` (a constant), ``node``, ``function`` or ``output``.
        name: Its name in the model.
        sha256: Of everything that counts about it, in hexadecimal.
    """

    kind: str
    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"


@dataclass(frozen=True)
class Fingerprint:
    """The parts of a model in a fixed order; equal if and only if the models compute the same by the same nodes."""

    parts: tuple[Part, ...]

    @cached_property
    def sha256(self) -> str:
        """One digest for all parts, in hexadecimal."""
        digest = hashlib.sha256()
        for part in self.parts:
            _add(digest, (part.kind, part.name, part.sha256))
        return digest.hexdigest()

    def first_difference(self, other: Fingerprint) -> tuple[Part | None, Part | None] | None:
        """The first parts in which the two differ, of this and of the other; None where one has no more.

        Constants are compared first: a model that was trained further has the same nodes, and where the nodes are
        others, the weights tell which model it is.

        Returns:
            The two parts, or None if the fingerprints are equal.
        """
        mine, theirs = ([p for p in one.parts if p.kind == "tensor"] for one in (self, other))
        for pair in (*zip_longest(mine, theirs), *zip_longest(self.parts, other.parts)):
            if pair[0] != pair[1]:
                return pair
        return None


def fingerprint(prepared: ir.Model, opset_imports: Mapping[str, int]) -> Fingerprint:
    """The fingerprint of a prepared model.

    Args:
        prepared: The model; it is only read.
        opset_imports: Domain -> version of the model before it was prepared. An operator may mean something else in
            another version; the version that preparation raises the model to depends on what it is quantized to, and
            does not count.
    """
    return fingerprinting(prepared, opset_imports)()


def fingerprinting(prepared: ir.Model, opset_imports: Mapping[str, int]) -> Callable[[], Fingerprint]:
    """:func:`fingerprint` in two steps: the graph is read now, and the constants are when the result is called.

    By then the model may have others in their place; those that it has now are kept until they are read, once.
    """
    graph = prepared.graph
    parts: list[Part | tuple[str, ir.TensorProtocol | None]] = [
        _part("opset", domain or "ai.onnx", version)
        for domain, version in sorted({domain or "ai.onnx": v for domain, v in opset_imports.items()}.items())
    ]
    parts += [_part("input", value.name or "", _interface(value)) for value in graph.inputs]
    left = dict(graph.initializers)
    for node in graph:
        for value in node.inputs:
            if value is not None and value.name is not None and left.get(value.name) is value:
                parts.append((value.name, left.pop(value.name).const_value))
        parts.append(_part("node", node.name or "", _node(node)))
    # what only bodies or the caller read
    parts += [(name, value.const_value) for name, value in left.items()]
    for identifier, function in prepared.functions.items():
        body = [_node(node) for node in function]
        signature = ([v.name for v in function.inputs], [v.name for v in function.outputs])
        parts.append(
            _part("function", ":".join(identifier), (*signature, body, sorted(function.opset_imports.items())))
        )
    parts += [_part("output", value.name or "", _interface(value)) for value in graph.outputs]
    waiting = deque(parts)
    del parts

    def read() -> Fingerprint:
        done: list[Part] = []
        while waiting:
            part = waiting.popleft()
            done.append(part if isinstance(part, Part) else _part("tensor", part[0], _constant(part[1])))
        return Fingerprint(tuple(done))

    return read


def _part(kind: str, name: str, content: object) -> Part:
    digest = hashlib.sha256()
    _add(digest, content)
    return Part(kind, name, digest.hexdigest())


def _add(digest: hashlib._Hash, content: object) -> None:
    """Hash nested sequences of plain values; lengths and types go in, too, so that no two contents look the same."""
    if isinstance(content, (list, tuple)):
        digest.update(b"[%d" % len(content))
        for item in content:
            _add(digest, item)
        return
    data = content if isinstance(content, bytes) else str(content).encode("utf-8", "surrogatepass")
    digest.update(b"%s%d:" % (type(content).__name__.encode(), len(data)))
    digest.update(data)


def _interface(value: ir.Value) -> object:
    shape = None if value.shape is None else [d if isinstance(d, int) else "?" for d in value.shape]
    return (str(value.type), shape)


def _constant(tensor: ir.TensorProtocol | None) -> object:
    return None if tensor is None else _tensor(tensor)


def _tensor(tensor: ir.TensorProtocol) -> object:
    from qtool.prepare.file_weights import FileTensor

    digest = hashlib.sha256()
    if tensor.dtype.name == "STRING":
        for text in np.asarray(tensor.numpy(), dtype=object).ravel():
            _add(digest, text)
    elif isinstance(tensor, FileTensor):
        for piece in tensor.pieces():
            digest.update(piece)
    else:
        digest.update(_bytes(tensor))
    return (tensor.dtype.name, [int(d) for d in tensor.shape.numpy()], digest.hexdigest())


def _bytes(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """What ``tobytes()`` returns, of a large tensor in memory without a copy."""
    if tensor.nbytes < _LARGE_BYTES or tensor.dtype.bitwidth % 8 or sys.byteorder != "little":
        return tensor.tobytes()
    array = tensor.numpy()
    if array.nbytes != tensor.nbytes or not array.flags.c_contiguous:
        return tensor.tobytes()
    return array.reshape(-1).view(np.uint8).data


def _node(node: ir.Node) -> object:
    return (
        (node.domain, node.op_type, node.overload),
        [None if value is None else value.name for value in node.inputs],
        [value.name for value in node.outputs],
        [_attribute(node.attributes[name]) for name in sorted(node.attributes)],
    )


def _attribute(attribute: ir.Attr) -> object:
    if attribute.is_ref():
        return (attribute.name, attribute.type.name, "ref", attribute.ref_attr_name)
    return (attribute.name, attribute.type.name, list(_attribute_value(attribute)))


def _attribute_value(attribute: ir.Attr) -> Iterator[object]:
    from qtool.prepare.graph_edits import tensor_of

    match attribute.type.name:
        case "TENSOR":
            yield _tensor(tensor_of(attribute))
        case "TENSORS":
            yield from (_tensor(tensor) for tensor in attribute.value)
        case "GRAPH":
            yield _body(attribute.as_graph())
        case "GRAPHS":
            yield from (_body(graph) for graph in attribute.as_graphs())
        case "INTS" | "FLOATS" | "STRINGS":
            yield from attribute.value
        case _:  # numbers and texts; types have a telling repr
            yield attribute.value


def _body(graph: ir.Graph) -> object:
    return (
        [(value.name, _interface(value)) for value in graph.inputs],
        [(name, _constant(value.const_value)) for name, value in graph.initializers.items()],
        [_node(node) for node in graph],
        [value.name for value in graph.outputs],
    )
