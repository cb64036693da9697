"""Make values inside the branches of If observable: as further outputs of the Ifs around them.

A branch that is not taken hands out an empty tensor in its place, so that its values count nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from qtool.prepare.branches import if_branches
from qtool.prepare.graph_edits import NameAllocator, bodies, is_onnx_op


def expose_branches(model: ir.Model, names: Collection[str]) -> ir.Model:
    """A model whose top graph has all of these tensors as outputs of its nodes, under their own names.

    Args:
        model: A prepared model, in which no two values have one name; it is not changed.
        names: Tensors anywhere in the top graph and the branches.

    Returns:
        The model itself if none of the names is in a branch, else a copy. Inside the branches the values of the copy
        have other names.
    """
    wanted = set(names)
    inside = {v.name for graph in if_branches(model.graph) for node in graph for v in node.outputs}
    if not wanted & inside:
        return model
    copy = model.clone()
    allocator = NameAllocator(copy)
    for node in list(copy.graph):
        if is_onnx_op(node, "If"):
            _expose(node, wanted, allocator)
    return copy


def _expose(node: ir.Node, wanted: Collection[str], names: NameAllocator) -> list[ir.Value]:
    """Add outputs to an If for each wanted value in its branches, at any depth; those outputs."""
    added = []
    branches = [body for _, body in bodies(node)]
    for branch in branches:
        for value in list(_found(branch, wanted, names)):
            name = value.name or ""
            value.name = names.value(f"{name}_inside")
            for other in branches:
                source = value if other is branch else _empty(other, value, names)
                _add_output(other, source, names)
            node.resize_outputs(len(node.outputs) + 1)
            output = node.outputs[-1]
            output.name, output.type = name, value.type
            added.append(output)
    return added


def _found(branch: ir.Graph, wanted: Collection[str], names: NameAllocator) -> Iterator[ir.Value]:
    for node in list(branch):
        yield from [value for value in node.outputs if value.name in wanted]
        if is_onnx_op(node, "If"):
            yield from _expose(node, wanted, names)


def _empty(graph: ir.Graph, like: ir.Value, names: NameAllocator) -> ir.Value:
    dtype = like.dtype if like.dtype is not None else ir.DataType.FLOAT
    tensor = ir.Tensor(np.zeros((0,), dtype.numpy()), dtype=dtype)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=names.node("empty"))
    node.outputs[0].name = names.value("empty")
    node.outputs[0].type = ir.TensorType(dtype)
    graph.append(node)
    return node.outputs[0]


def _add_output(graph: ir.Graph, value: ir.Value, names: NameAllocator) -> None:
    """Through an Identity: the value may be an output of the branch already."""
    node = ir.Node("", "Identity", [value], num_outputs=1, name=names.node("exposed"))
    node.outputs[0].name = names.value("exposed")
    node.outputs[0].type = value.type if value.type is not None else ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    graph.outputs.append(node.outputs[0])
