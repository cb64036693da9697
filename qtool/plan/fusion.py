"""Which quantized nodes onnxruntime will run on codes, before there is a file: "n of m fuse", and why others do not.

The rules are those of emission.md 2, measured with onnxruntime 1.32 on x64; a test compares them with its optimised
graphs. Counted are the nodes that compute: products, Convs, and elementwise operators. Data movers compute nothing, and
a Relu that is part of a Conv is no node of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.dtypes import qdtype
from qtool.plan.analysis import Graph
from qtool.plan.bodies import planned_graphs
from qtool.plan.ops.matmul import becomes_a_gemm
from qtool.plan.plan import Decision, Form, Plan

PRODUCTS = ("QLinearMatMul", "MatMulIntegerToFloat", "QGemm")
# movers that onnxruntime (1.32) runs on codes if they read them, but does not take out of a DequantizeLinear and a
# QuantizeLinear: in QDQ form they move floats
MOVED_AS_FLOATS = frozenset(("Compress", "GatherND", "Pad", "ReverseSequence", "SpaceToDepth"))
_CONVERTED = "uint8 of a pair that onnxruntime rewrites"
_KEPT = "int8"


@dataclass(frozen=True)
class NodeFusion:
    """What a runtime makes of a quantized node.

    Attributes:
        node: Name in the prepared model.
        op_type: Its operator.
        runs_as: The operator that onnxruntime runs instead, on codes; None if it computes in float.
        reason: Why it computes in float; a clause.
    """

    node: str
    op_type: str
    runs_as: str | None
    reason: str | None = None


@dataclass(frozen=True)
class Fusion:
    """The prediction about a plan.

    Attributes:
        nodes: Every quantized node that computes, in graph order.
    """

    nodes: tuple[NodeFusion, ...]

    @property
    def fused(self) -> int:
        """Nodes that run on codes."""
        return sum(node.runs_as is not None for node in self.nodes)

    @property
    def total(self) -> int:
        """All quantized nodes that compute."""
        return len(self.nodes)

    @property
    def unfused(self) -> tuple[NodeFusion, ...]:
        """Those that will compute in float, between a DequantizeLinear and a QuantizeLinear."""
        return tuple(node for node in self.nodes if node.runs_as is None)

    def operators(self) -> Counter[str]:
        """Operators of onnxruntime, counted."""
        return Counter(node.runs_as for node in self.nodes if node.runs_as is not None)

    def message(self) -> str:
        """One clause: ``5 of 6 quantized nodes fuse``."""
        return f"{self.fused} of {self.total} quantized nodes that compute fuse in onnxruntime"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "fused": self.fused,
            "total": self.total,
            "operators": dict(sorted(self.operators().items())),
            "unfused": [{"node": n.node, "op_type": n.op_type, "reason": n.reason} for n in self.unfused],
        }


def predict_fusion(model: ir.Model, plan: Plan, config: QuantConfig) -> Fusion:
    """Predict what onnxruntime makes of a plan of static mode.

    Args:
        model: The prepared model that the plan was made for.
        plan: A plan, with or without parameters.
        config: Format and element types.
    """
    found: list[NodeFusion] = []
    for graph in planned_graphs(model):
        inside = replace(plan, decisions=tuple(d for d in plan.decisions if d.node in graph.by_name))
        found += _Predictor(graph, inside, config).run()
    return Fusion(tuple(found))


class _Predictor:
    def __init__(self, graph: Graph, plan: Plan, config: QuantConfig) -> None:
        self._graph = graph
        self._plan = plan
        self._config = config
        self._eight_bits = qdtype(config.activations).bits == 8
        self._readers: Counter[str] = Counter()
        for decision in plan.decisions:
            self._readers.update(tensor for _, tensor in decision.inputs)
        self._reads = {(d.node, i) for d in plan.decisions for i, _ in d.inputs}
        # what an integer operator reads or writes, so that it is in no pair of a QuantizeLinear and a DequantizeLinear
        self._codes_alone = {
            tensor
            for decision in plan.decisions
            if self._is_written_as_integer_operator(decision)
            for tensor in (*(t for _, t in decision.inputs), *decision.outputs)
        }

    def run(self) -> list[NodeFusion]:
        """Look at every decision that computes."""
        found = []
        for decision in self._plan.decisions:
            if decision.form in (Form.OPERATOR, Form.ELEMENTWISE) or decision.op_type == "ConvTranspose":
                answer = self._look_at(decision)
                if answer is not None:
                    found.append(answer)
        return found

    def _look_at(self, decision: Decision) -> NodeFusion | None:
        """What becomes of one decision; None if its node vanishes."""
        if decision.form is Form.WEIGHT_ONLY:
            return self._float(decision, "no runtime computes it on integers; its weights are dequantized at every run")
        if decision.op_type in ("Relu", "Clip") and self._saturates(decision):
            return None  # the QuantizeLinear behind it does the same
        if decision.op_type == "ArgMax":
            return self._integer(decision, "ArgMax")
        if self._is_written_as_integer_operator(decision):
            return self._integer(decision, "QLinearConv" if decision.op_type == "Conv" else "QLinearMatMul")
        if not self._eight_bits:
            return self._of_16_bits(decision)
        if decision.op_type == "Conv" and not decision.outputs:
            return self._float(decision, "onnxruntime has no integer Conv with a float result")
        if decision.op_type in ("Relu", "Clip"):
            return self._float(decision, "its zero point is not the lowest code, where saturation would clamp")
        mixed = self._mixed_types(decision)
        if mixed is not None:
            return self._float(decision, mixed)
        if decision.form is Form.ELEMENTWISE:
            return self._integer(decision, f"QLinear{decision.op_type}")
        if decision.weights and not decision.weights[0].as_activation and qdtype(self._config.weights).bits != 8:
            return self._float(decision, f"the runtime has no product of 8-bit codes with {self._config.weights}")
        operator = self._product(decision)
        if operator != "QGemm" and _KEPT in self._types(decision):
            return self._float(decision, "the runtime fuses no product of int8 codes on x64, except into a QGemm")
        return self._integer(decision, operator)

    def _is_written_as_integer_operator(self, decision: Decision) -> bool:
        if (decision.written_as or self._config.format) != "qlinear" or not decision.outputs:
            return False
        if decision.form is Form.MOVER:
            return True
        return decision.form is Form.OPERATOR and (decision.op_type == "Conv" or decision.bias is None)

    def _product(self, decision: Decision) -> str:
        if decision.op_type == "Conv":
            return "QLinearConv"
        if decision.op_type == "Gemm" or (decision.bias is not None and self._becomes_a_gemm(decision)):
            return "QGemm"
        return "QLinearMatMul" if decision.outputs and decision.bias is None else "MatMulIntegerToFloat"

    def _becomes_a_gemm(self, decision: Decision) -> bool:
        node = self._graph.by_name[decision.node]
        rank = self._graph.rank(node.inputs[0])
        if rank != 2 and self._config.activations == "int8" and self._graph.opset >= 21:
            return False  # the bias is written as a matrix there, because the Gemm would not load
        return becomes_a_gemm(node, self._graph)

    def _of_16_bits(self, decision: Decision) -> NodeFusion:
        kind = self._config.activations
        if decision.op_type not in ("MatMul", "Gemm") or not decision.weights or decision.weights[0].as_activation:
            return self._float(decision, f"the runtime has no integer form of it with {kind} activations")
        weight = self._graph.constant(self._graph.by_name[decision.node].inputs[decision.weights[0].index])
        if weight is None or len(weight.shape) != 2:
            return self._float(decision, "only a weight of two dimensions becomes a MatMulNBits")
        return self._integer(decision, "MatMulNBits")

    def _saturates(self, decision: Decision) -> bool:
        """Whether the codes of a Relu's or Clip's output end at 0, where the clamp does."""
        clamp = self._graph.clamp(self._graph.by_name[decision.node])
        (output,) = decision.outputs
        params = self._plan.tensors.get(output)
        if clamp is None or clamp.low > 0.0:
            return False
        if params is None:
            return clamp.low == 0.0 and not self._config.symmetric_activations
        low, high = params.range
        return low >= clamp.low and high <= clamp.high * (1.0 + 1e-6)

    # ----------------------------------------------------------------------------- int8 activations in QDQ form, on x64

    def _mixed_types(self, decision: Decision) -> str | None:
        """Why operands of an int8 model end up with two types, or None.

        On x64 onnxruntime rewrites an int8 QuantizeLinear with one DequantizeLinear behind it to uint8. Where a tensor
        has several readers each gets a DequantizeLinear of its own, and stays int8; so does a constant.
        """
        if self._config.activations != "int8":
            return None
        if len(self._types(decision)) > 1:
            return "int8 tensors with one reader become uint8 in onnxruntime, those with several do not: it mixes both"
        return None

    def _types(self, decision: Decision) -> set[str]:
        """The types that the activations of a node have in the end."""
        if self._config.activations != "int8":
            return {self._config.activations}
        tensors = [t for _, t in decision.inputs]
        rank = self._graph.rank(self._graph.by_name[decision.node].inputs[0])
        if decision.op_type != "MatMul" or decision.bias is None or rank == 2:
            tensors += decision.outputs  # else a Reshape or an Add lies before the QuantizeLinear
        types = {_KEPT if t in self._codes_alone or self._edges(t) != 1 else _CONVERTED for t in tensors}
        return types | {_KEPT for weight in decision.weights if weight.as_activation}

    def _edges(self, tensor: str) -> int:
        """Reads of a tensor's DequantizeLinear."""
        value = self._graph.values.get(tensor) or next((v for v in self._graph.ir.inputs if v.name == tensor), None)
        count = self._readers[tensor]
        if value is not None and any(tensor in d.outputs for d in self._plan.decisions):
            uses = [(node.name or "", index) for node, index in value.uses()]
            count += sum(use not in self._reads for use in uses) + int(value.is_graph_output())
        return count

    # ---------------------------------------------------------------------------------------------------------- answers

    def _integer(self, decision: Decision, operator: str) -> NodeFusion:
        return NodeFusion(decision.node, decision.op_type, operator)

    def _float(self, decision: Decision, reason: str) -> NodeFusion:
        return NodeFusion(decision.node, decision.op_type, None, reason)
