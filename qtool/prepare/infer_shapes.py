"""Replace the model's remarks on types and shapes of inner values by inferred ones.

A ``value_info`` is a remark that nothing checks: exporters and rewriters leave entries of the wrong rank behind, and
a planner that believes them picks the wrong axis. Scope: the top graph, and on request the branches of If: what the
body of a Loop hands on may change its shape from turn to turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from qtool.prepare.branches import if_branches
from qtool.prepare.graph_edits import PreparePass
from qtool.prepare.light_proto import light_proto

if TYPE_CHECKING:
    import onnx


class InferShapesPass(PreparePass):
    """Drop types and shapes of inner values, then infer them anew.

    Graph inputs and outputs keep what the model declares: that is its interface. An output for which it declares no
    shape gets the inferred one, because ONNX asks for a shape there, and so does one whose sizes are others than those
    declared: runtimes only warn of that, but quantized nodes would not fit. The outputs of operators that have
    no inference (custom domains) keep the model's remark, which is all that is known. Failure is not fatal: the
    values then keep their element type and have no shape.
    """

    def __init__(self, *, bodies: bool = False) -> None:
        super().__init__(bodies=bodies)
        self._failure: str | None = None
        self._corrected: list[str] = []

    @property
    def actions(self) -> tuple[str, ...]:
        """Only a failure and corrected outputs are worth a line."""
        return (*(() if self._failure is None else (self._failure,)), *self._corrected)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infer on a copy without weights; always counts as modified."""
        graphs = [model.graph, *(if_branches(model.graph) if self._bodies else ())]
        remarks: dict[str, ir.TypeProtocol | None] = {}
        for node in (node for graph in graphs for node in graph):
            if node.domain != "":
                continue
            for value in node.outputs:
                if value.is_graph_output() or not value.name:
                    continue
                remarks[value.name] = value.type
                value.type, value.shape = None, None
        inferred = self._infer(model)
        for node in (node for graph in graphs for node in graph):
            for value in node.outputs:
                info = inferred.get(value.name or "")
                if value.is_graph_output():
                    if info is not None and value.dtype in (None, info[0].dtype):
                        self._declare(value, *info)
                    continue
                if not value.name:
                    continue
                if info is not None:
                    value.type, value.shape = info
                elif value.type is None:
                    value.type = remarks.get(value.name)
        return ir.passes.PassResult(model, modified=True)

    def _declare(self, output: ir.Value, kind: ir.TypeProtocol, inferred: ir.Shape | None) -> None:
        """Give a graph output the inferred shape, if it has none or one that cannot be."""
        declared = output.shape
        if declared is None:
            output.type, output.shape = kind, inferred
        elif inferred is not None and _contradict(declared, inferred):
            output.shape = inferred
            self._corrected.append(f"corrected the shape of output '{output.name}': {declared} -> {inferred}")

    def _infer(self, model: ir.Model) -> dict[str, tuple[ir.TypeProtocol, ir.Shape | None]]:
        from onnx import shape_inference

        proto, _ = light_proto(model)
        for output in proto.graph.output:
            if output.type.WhichOneof("value") == "tensor_type":
                output.type.tensor_type.ClearField("shape")
        try:
            proto = shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
        except Exception as error:  # the C++ code raises several unrelated types, and any of them only costs shapes
            self._failure = f"shape inference failed ({str(error).splitlines()[0][:120]}); inner shapes are unknown"
            return {}
        result: dict[str, tuple[ir.TypeProtocol, ir.Shape | None]] = {}
        graphs = _graphs_of(proto.graph) if self._bodies else [proto.graph]
        for info in (info for graph in graphs for info in (*graph.value_info, *graph.output)):
            if info.type.WhichOneof("value") == "tensor_type" and info.type.tensor_type.elem_type:
                result[info.name] = (_type_of(info), _shape_of(info))
        return result


def _contradict(one: ir.Shape, other: ir.Shape) -> bool:
    return len(one) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True)
    )


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, then the branches of its Ifs and of those inside them."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "If" else ():
            yield from _graphs_of(attribute.g)


def _type_of(info: onnx.ValueInfoProto) -> ir.TypeProtocol:
    return ir.TensorType(ir.DataType(info.type.tensor_type.elem_type))


def _shape_of(info: onnx.ValueInfoProto) -> ir.Shape | None:
    if not info.type.tensor_type.HasField("shape"):
        return None
    return ir.Shape(
        [
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
            for dim in info.type.tensor_type.shape.dim
        ]
    )
