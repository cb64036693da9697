"""Every node of a model, those inside the bodies of If, Loop and Scan too, under a name of its own."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qtool.prepare.graph_edits import bodies


def scoped_nodes(graph: ir.Graph, scope: str = "") -> Iterator[tuple[str, ir.Node]]:
    """(name, node) in graph order, each node followed by those of its bodies.

    A node of the top graph has its own name; one of a body has the way to it in front: ``if_1/then_branch/conv_3``.
    """
    for number, node in enumerate(graph):
        name = node.name or f"node_{node.op_type}_{number}"
        full = f"{scope}/{name}" if scope else name
        yield full, node
        for label, body in bodies(node):
            yield from scoped_nodes(body, f"{full}/{label}")


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a constant: an initializer that no caller can override, or the result of a Constant node."""
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.type != ir.AttributeType.TENSOR else attribute.as_tensor()
