"""Which values hold codes, and what those mean: the nodes that write and read them say so, movers carry it on."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qtool.convert.encoding import Encoding, code_type, encoding_of
from qtool.convert.operators import code_operator
from qtool.prepare.graph_edits import all_graphs, input_at, is_onnx_op

# operators that move codes without computing, and which of their inputs those are (None: all)
MOVERS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        ("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "Expand",
         "GatherElements", "GatherND", "Tile", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax", "ReduceMin",
         "Pad", "Identity"),
        (0,),
    ),
    "Concat": None,
}  # fmt: skip
# Operators that tell the order of codes, which is that of what they stand for.
ORDERS = ("ArgMax", "ArgMin")


def moved_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a mover that hold what it moves."""
    which = MOVERS[node.op_type]
    values = node.inputs if which is None else [input_at(node, index) for index in which]
    return [value for value in values if value is not None]


def moved_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs of a mover that hold what it moved: not the indices of a MaxPool."""
    return [o for o in (node.outputs[:1] if node.op_type == "MaxPool" else node.outputs) if o.name]


def is_mover(node: ir.Node) -> bool:
    """Whether a node moves what it reads."""
    return is_onnx_op(node, *MOVERS)


class Codes:
    """The encodings of a model's values, bodies included.

    What the writer of codes says counts; where nobody writes them (constants, inputs of the model) it is what the
    first reader says.

    Args:
        model: Read, not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._written: dict[ir.Value, Encoding] = {}
        self._read: dict[ir.Value, Encoding] = {}
        nodes = [node for graph in all_graphs(model) for node in graph]
        for node in nodes:
            for value, encoding in writes(node):
                self._written.setdefault(value, encoding)
            for value, encoding in reads(node):
                self._read.setdefault(value, encoding)
            if is_mover(node):
                self._carry(node)
        for node in reversed(nodes):
            if is_mover(node):
                self._carry_back(node)
        for node in nodes:  # what a constant's other readers say: a table that is gathered and then moved
            if is_mover(node):
                self._carry(node)

    def of(self, value: ir.Value | None) -> Encoding | None:
        """What a value's codes mean; None if it holds none, or nothing says so."""
        if value is None:
            return None
        return self._written.get(value) or self._read.get(value)

    def set(self, value: ir.Value, encoding: Encoding) -> None:
        """Remember what a new value's codes mean."""
        self._written[value] = encoding

    def _carry(self, node: ir.Node) -> None:
        sources = [self.of(value) for value in moved_inputs(node)]
        first = sources[0] if sources else None
        if first is None or not first.per_tensor or not all(s is not None and s.equals(first) for s in sources):
            return
        for value in moved_outputs(node):
            self._written.setdefault(value, first)

    def _carry_back(self, node: ir.Node) -> None:
        known = [e for e in (self.of(value) for value in moved_outputs(node)) if e is not None]
        if not known or not known[0].per_tensor:
            return
        for value in moved_inputs(node):
            if code_type(value) is not None:
                self._read.setdefault(value, known[0])


def writes(node: ir.Node) -> Iterator[tuple[ir.Value, Encoding]]:
    """(codes, encoding) of what a quantized operator writes."""
    operator = code_operator(node)
    if is_onnx_op(node, "QuantizeLinear"):
        yield node.outputs[0], encoding_of(node)
    elif is_onnx_op(node, "DynamicQuantizeLinear"):
        yield node.outputs[0], Encoding(node.outputs[1], node.outputs[2])
    elif operator is not None and operator.output is not None:
        yield node.outputs[0], operator.output


def reads(node: ir.Node) -> Iterator[tuple[ir.Value, Encoding]]:
    """(codes, encoding) of what a quantized operator reads."""
    operator = code_operator(node)
    if is_onnx_op(node, "DequantizeLinear"):
        if node.inputs[0] is not None:
            yield node.inputs[0], encoding_of(node)
    elif operator is not None:
        for operand in operator.operands:
            if operand.value is not None and operand.encoding is not None:
                yield operand.value, operand.encoding
