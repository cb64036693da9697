"""Facts about a prepared graph that every handler needs: constants, consumers, captures, element types, absorption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.errors import ModelError
from qtool.prepare.branches import is_capture

# |c| above this is a mask that is added before a Softmax, not a value: never part of a range (emission.md 4)
MASK_MAGNITUDE = 1e30


@dataclass(frozen=True)
class Clamp:
    """An activation that saturation can stand for: y = min(max(x, low), high)."""

    node: ir.Node
    low: float
    high: float


class Graph:
    """Read-only view of a prepared graph."""

    def __init__(self, graph: ir.Graph, *, opset: int | None = None) -> None:
        self.ir = graph
        self.is_branch = opset is not None and not graph.opset_imports
        # the graph of a body imports nothing
        self.opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 1)) if opset is None else opset
        self.nodes: list[ir.Node] = [node for node in graph if not is_capture(node)]
        self.by_name: dict[str, ir.Node] = {node.name or "": node for node in self.nodes}
        self.values: dict[str, ir.Value] = {o.name or "": o for node in graph for o in node.outputs}
        # A Resize that could not be written without ``axes``: onnxruntime (1.32) reorders data around integer Convs,
        # all the way to every Resize, but not its axes.
        self.odd_resize: ir.Node | None = next(
            (n for n in self.nodes if n.op_type == "Resize" and "axes" in n.attributes and self.is_default_domain(n)),
            None,
        )

    def is_default_domain(self, node: ir.Node) -> bool:
        """Whether the node is an ai.onnx operator."""
        return node.domain in ("", "ai.onnx")

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor of a constant value: an initializer that no graph input can override."""
        if value is None or not value.is_initializer() or value.is_graph_input():
            return None
        return value.const_value

    def array(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """The elements of a constant value."""
        tensor = self.constant(value)
        return None if tensor is None else tensor.numpy()

    def weight(self, value: ir.Value) -> npt.NDArray[Any]:
        """The elements of a constant float weight.

        Raises:
            ModelError: If it holds a NaN or an infinity; the message names the tensor and the first index.
        """
        array = self.array(value)
        assert array is not None, "Bug: not a constant"
        finite = np.isfinite(array)
        if not finite.all():
            first = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ModelError(
                f"Weight '{value.name}' holds {array[first]} at index {list(first)}; expected finite values.",
                hint="Repair the model, or leave the nodes that read this weight out with --exclude.",
            )
        return array

    def scalar(self, value: ir.Value | None) -> float | None:
        """The value of a constant with one element."""
        array = self.array(value)
        return None if array is None or array.size != 1 else float(array.reshape(-1)[0])

    def is_known_other_type(self, value: ir.Value | None) -> bool:
        """Whether a value is known to hold something else than float32."""
        return value is None or (value.dtype is not None and value.dtype != ir.DataType.FLOAT)

    def captured(self, value: ir.Value) -> bool:
        """Whether a subgraph (a body of If, Loop, Scan) reads the value."""
        return any(node.graph is not self.ir for node, _ in value.uses())

    def sole_consumer(self, value: ir.Value) -> ir.Node | None:
        """The one node that reads a value exactly once, if nothing else can see the value."""
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output() or uses[0].node.graph is not self.ir:
            return None
        return uses[0].node

    def clamp(self, node: ir.Node | None) -> Clamp | None:
        """A Relu or Clip with constant bounds."""
        if node is None or not self.is_default_domain(node):
            return None
        if node.op_type == "Relu":
            return Clamp(node, 0.0, float("inf"))
        if node.op_type != "Clip":
            return None
        low, high = float("-inf"), float("inf")
        if self.opset < 11:
            for name in ("min", "max"):
                attribute = node.attributes.get(name)
                if attribute is not None:
                    low, high = (attribute.as_float(), high) if name == "min" else (low, attribute.as_float())
            return Clamp(node, low, high)
        bounds = [node.inputs[i] if i < len(node.inputs) else None for i in (1, 2)]
        for position, bound in enumerate(bounds):
            if bound is None:
                continue
            number = self.scalar(bound)
            if number is None:
                return None
            low, high = (number, high) if position == 0 else (low, number)
        return Clamp(node, low, high)

    def breaks_on_codes(self, node: ir.Node) -> bool:
        """Whether onnxruntime (1.32) makes a broken operator of the node as soon as it stands between DQ and Q.

        Its integer AveragePool has no dilations, and the fusion does not look for them.
        """
        dilations = node.attributes.get("dilations") if self.is_default_domain(node) else None
        return dilations is not None and node.op_type == "AveragePool" and any(d != 1 for d in dilations.as_ints())

    def rank(self, value: ir.Value | None) -> int | None:
        """Rank of a value, if shape inference knows it."""
        return None if value is None or value.shape is None else len(value.shape)

    def static_dims(self, value: ir.Value | None) -> list[int | None] | None:
        """Dimensions of a value; None for those that are not known."""
        if value is None or value.shape is None:
            return None
        return [d if isinstance(d, int) and d >= 0 else None for d in value.shape.dims]


def dims_of(tensor: ir.TensorProtocol) -> list[int]:
    """Dimensions of a tensor (whose shape, unlike a value's, is never symbolic)."""
    return [d for d in tensor.shape if isinstance(d, int)]
