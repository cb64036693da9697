"""Bring Gemm into the one form that later stages quantize: Y = A B + C with alpha = beta = 1, no transposes, C (N,).

    alpha * op(A) op(B) + beta * C

A constant B absorbs alpha and transB, a constant C absorbs beta; transA becomes a Transpose node. Where B is not
constant, or C is not one row, the node becomes MatMul (and Add). Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import (
    NameAllocator,
    PreparePass,
    constant_array,
    constant_shape,
    float_attribute,
    input_at,
    int_attribute,
    is_float_type,
    is_onnx_op,
    new_constant,
    new_node,
    plural,
)


class NormalizeGemmPass(PreparePass):
    """Rewrite float Gemm nodes; the node keeps its name, and its output value keeps its own.

    Integer Gemm, and a Gemm whose element type is unknown, stay as they are.
    """

    def describe(self) -> str:
        """One line for the rewritten nodes."""
        return f"normalized {plural(self.count, 'Gemm')}"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once."""
        names, before = NameAllocator(model), self.count
        for graph in self.scope(model):
            for node in graph:
                if is_onnx_op(node, "Gemm") and _normalize(node, graph, names):
                    self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)


def _normalize(node: ir.Node, graph: ir.Graph, names: NameAllocator) -> bool:
    dtype = _element_type(node)
    a, b, c = node.inputs[0], node.inputs[1], input_at(node, 2)
    if dtype is None or a is None or b is None:
        return False
    alpha, beta = float_attribute(node, "alpha", 1.0), float_attribute(node, "beta", 1.0)
    trans_a, trans_b = bool(int_attribute(node, "transA", 0)), bool(int_attribute(node, "transB", 0))
    shape = constant_shape(b)
    row = None if c is None or shape is None else _bias_row(c, shape[0 if trans_b else 1])
    keeps_gemm = shape is not None and (c is None or row is not None)
    if keeps_gemm and alpha == beta == 1.0 and not trans_a and not trans_b and (c is None or _is_row(c, row)):
        return False

    if trans_a:
        node.replace_input_with(0, _transpose(a, node, graph, names))
    if shape is not None:
        weight = constant_array(b) if trans_b or alpha != 1.0 else None
        if weight is not None:
            array = np.ascontiguousarray(weight.T if trans_b else weight)
            scaled = array if alpha == 1.0 else (array.astype(np.float64) * alpha).astype(weight.dtype)
            suffix = "transposed" if trans_b else "scaled"
            node.replace_input_with(1, new_constant(graph, names, f"{b.name}_{suffix}", scaled, dtype))
        alpha = 1.0
    elif trans_b:
        node.replace_input_with(1, _transpose(b, node, graph, names))
    for name in ("alpha", "beta", "transA", "transB"):
        node.attributes.pop(name, None)

    if keeps_gemm:
        if c is not None and beta == 0.0:
            node.resize_inputs(2)
        elif c is not None and row is not None and (beta != 1.0 or not _is_row(c, row)):
            array = (row.astype(np.float64) * beta).astype(row.dtype)
            node.replace_input_with(2, new_constant(graph, names, f"{c.name}_row", array, dtype))
        return True

    node.resize_inputs(2)
    node.op_type = "MatMul"
    tail = node
    if alpha != 1.0:
        tail = _append(tail, "Mul", _scalar(alpha, dtype, f"{node.name}_alpha", graph, names), node, graph, names)
    if c is not None and beta != 0.0:
        _append(tail, "Add", _times(c, beta, dtype, node, graph, names), node, graph, names)
    return True


def _element_type(node: ir.Node) -> ir.DataType | None:
    """The float type of the operands; None if it is unknown or not a float type."""
    for value in (*node.inputs, node.outputs[0]):
        if value is None:
            continue
        dtype = value.const_value.dtype if value.is_initializer() and value.const_value is not None else value.dtype
        if dtype is not None:
            return dtype if is_float_type(dtype) else None
    return None


def _bias_row(c: ir.Value, columns: int) -> np.ndarray | None:
    """A constant C that is the same for every row of the product, as shape (columns,); None otherwise."""
    array = constant_array(c)
    if array is None or not (array.size == 1 or array.shape in ((columns,), (1, columns))):
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (columns,)))


def _is_row(c: ir.Value, row: np.ndarray | None) -> bool:
    array = constant_array(c)
    return array is not None and row is not None and array.shape == row.shape


def _transpose(value: ir.Value, node: ir.Node, graph: ir.Graph, names: NameAllocator) -> ir.Value:
    permutation = [ir.AttrInt64s("perm", [1, 0])]
    transpose = new_node(
        names, "Transpose", [value], base=f"{node.name}_transpose", origin=node, attributes=permutation
    )
    transpose.outputs[0].type = value.type
    graph.insert_before(node, transpose)
    return transpose.outputs[0]


def _scalar(number: float, dtype: ir.DataType, base: str, graph: ir.Graph, names: NameAllocator) -> ir.Value:
    return new_constant(graph, names, base, np.asarray(number, dtype=dtype.numpy()), dtype)


def _times(
    c: ir.Value, beta: float, dtype: ir.DataType, node: ir.Node, graph: ir.Graph, names: NameAllocator
) -> ir.Value:
    """``beta * C``: a new constant where C is one, else a Mul in front of the node."""
    array = constant_array(c)
    if beta == 1.0:
        return c
    if array is not None:
        return new_constant(
            graph, names, f"{c.name}_scaled", (array.astype(np.float64) * beta).astype(array.dtype), dtype
        )
    factor = _scalar(beta, dtype, f"{node.name}_beta", graph, names)
    mul = new_node(names, "Mul", [c, factor], base=f"{node.name}_scale", origin=node)
    mul.outputs[0].type = c.type
    graph.insert_before(node, mul)
    return mul.outputs[0]


def _append(
    tail: ir.Node, op_type: str, operand: ir.Value, node: ir.Node, graph: ir.Graph, names: NameAllocator
) -> ir.Node:
    """Put a binary operator behind ``tail``; it takes over the name and the readers of the old result."""
    result = tail.outputs[0]
    follower = new_node(names, op_type, [None, operand], base=f"{node.name}_{op_type.lower()}", origin=node)
    inner = follower.outputs[0].name
    _swap_readers(result, follower.outputs[0])
    result.name = inner
    follower.replace_input_with(0, result)
    graph.insert_after(tail, follower)
    return follower


def _swap_readers(result: ir.Value, outer: ir.Value) -> None:
    """Everything that read ``result`` reads ``outer``, which gets its name, type, shape and documentation."""
    name = result.name
    result.replace_all_uses_with(outer, replace_graph_outputs=True)
    result.name = None
    outer.name, outer.type, outer.shape = name, result.type, result.shape
    outer.doc_string, result.doc_string = result.doc_string, None
    outer.metadata_props.update(result.metadata_props)
    result.metadata_props.clear()
    result.shape = result.shape.copy() if result.shape is not None else None
