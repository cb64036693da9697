"""The value between deciding and rewriting: which tensors are quantized, how, by which node, and why others are not.

A plan knows nothing about node patterns; an emitter turns it into nodes. It refers to the prepared model by node and
tensor names, can be printed, and serializes to JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from qtool.qparams import QParams
from qtool.signal import db


class Form(StrEnum):
    """What quantizing a node means."""

    OPERATOR = "operator"  # integer arithmetic on quantized inputs and weights: MatMul, Gemm, Conv
    ELEMENTWISE = "elementwise"  # quantized in and out, through an operator of the runtime: Add, Mul, pools, Sigmoid
    MOVER = "mover"  # moves codes without computing: Reshape, MaxPool, Slice
    WEIGHT_ONLY = "weight-only"  # quantized weights in the file, float arithmetic: ConvTranspose, tables
    DYNAMIC = "dynamic"  # integer arithmetic on activations that the running model quantizes: MatMul, Gemm, LSTM


@dataclass(frozen=True)
class WeightPlan:
    """A constant operand that is stored quantized.

    Attributes:
        tensor: Name of the initializer in the prepared model.
        index: Which input of the node it is.
        axis: The output channel, where the operator can have one scale for each.
        as_activation: Whether it takes the activations' type and an asymmetric range (a constant operand of an
            elementwise operator, or the left side of a product) instead of the weights' type and a symmetric one.
        params: Scale and zero point; None in a plan without statistics.
        energies: (sum of squares of the weight, of its error), where that was measured.
    """

    tensor: str
    index: int
    axis: int | None = None
    as_activation: bool = False
    params: QParams | None = None
    energies: tuple[float, float] | None = None

    @property
    def sqnr_db(self) -> float | None:
        """Decibels of the weight against its error, where that was measured."""
        return None if self.energies is None else db(*self.energies)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"tensor": self.tensor} | (self.params.to_dict() if self.params else {})


@dataclass(frozen=True)
class BiasPlan:
    """A bias that is stored as int32 with scale f32(sx)*f32(sw[c]) and zero point 0.

    Attributes:
        tensor: Name of the initializer in the prepared model.
        node: Node that reads it: the operator itself, or the Add behind a MatMul.
        index: Which input of that node it is.
    """

    tensor: str
    node: str
    index: int


@dataclass(frozen=True)
class Decision:
    """A node that is quantized.

    Attributes:
        node: Name in the prepared model.
        op_type: Its operator.
        form: What quantizing it means.
        inputs: (input index, tensor) of the activations that it reads quantized.
        outputs: Tensors that it writes quantized; empty where its output stays float. They are the outputs of the last
            absorbed node where there is one.
        weights: Constant operands that are stored quantized.
        bias: The int32 bias, if there is one.
        absorbed: Nodes behind it that are part of it, in order (a bias Add, a Relu or Clip).
        clip: The absorbed Relu or Clip, which the integer operator's saturation makes redundant.
        clamp_apart: A Relu or Clip that reads the float result, and that onnxruntime (1.32) would take for a part of
            the product: it waits for a QuantizeLinear behind it, and where there is none it fuses nothing. It is
            written as Max and Min, which are the same to the last bit.
        rescale: c of an absorbed division by c: the operator writes its codes under c times the output's scale.
        note: Something a reader of the plan should know (a repaired scale, an accumulator that may wrap).
        written_as: ``qlinear`` or ``qdq``, where overrides decide about the form of single nodes; else empty.
        override: (key, value) of what an override says about the node.
    """

    node: str
    op_type: str
    form: Form
    inputs: tuple[tuple[int, str], ...] = ()
    outputs: tuple[str, ...] = ()
    weights: tuple[WeightPlan, ...] = ()
    bias: BiasPlan | None = None
    absorbed: tuple[str, ...] = ()
    clip: str | None = None
    clamp_apart: str | None = None
    rescale: float = 1.0
    note: str | None = None
    written_as: str = ""
    override: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "decision": "quantize",
            "form": str(self.form),
            "inputs": [tensor for _, tensor in self.inputs],
            "outputs": list(self.outputs),
            "weights": [w.to_dict() for w in self.weights],
            "bias": self.bias.tensor if self.bias else None,
            "absorbed": list(self.absorbed),
            "note": self.note,
        } | ({"written_as": self.written_as, "override": dict(self.override)} if self.override else {})


@dataclass(frozen=True)
class Skip:
    """A node that stays float, with the reason.

    Attributes:
        node: Name in the prepared model.
        op_type: Its operator.
        reason: One clause, for people.
        expected: Whether it is float by design (shapes, normalization), so that nobody needs to act on it.
    """

    node: str
    op_type: str
    reason: str
    expected: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "decision": "float",
            "reason": self.reason,
            "expected": self.expected,
        }


@dataclass(frozen=True)
class Plan:
    """All decisions about one prepared model.

    Attributes:
        decisions: Quantized nodes in graph order.
        skips: Nodes that stay float, in graph order.
        tensors: Parameters of every activation that is quantized, by name; values are None in a plan without
            statistics.
        nodes: Number of nodes in the prepared graph, subgraphs included.
        absorbed_types: Operator type of every absorbed node, by name.
        notes: What a user should know (an accumulator that may wrap, a range that was repaired).
    """

    decisions: tuple[Decision, ...]
    skips: tuple[Skip, ...]
    tensors: Mapping[str, QParams | None]
    nodes: int
    absorbed_types: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> int:
        """Nodes that are quantized, absorbed ones included."""
        return sum(1 + len(d.absorbed) for d in self.decisions)

    def by_operator(self) -> dict[str, tuple[int, int]]:
        """Operator -> (quantized, all) over the nodes of the top graph, most frequent first."""
        done = Counter(d.op_type for d in self.decisions) + Counter(self.absorbed_types.values())
        total = done + Counter(s.op_type for s in self.skips)
        return {op: (done[op], n) for op, n in sorted(total.items(), key=lambda row: (-row[1], row[0]))}

    def weights_db(self) -> tuple[float, float, str] | None:
        """(dB of all measured weights together, least dB of one, its name); None if there are none."""
        measured = {w.tensor: w for d in self.decisions for w in d.weights if w.energies is not None}
        if not measured:
            return None
        energies = [w.energies or (0.0, 0.0) for w in measured.values()]
        worst = min(measured.values(), key=lambda w: db(*(w.energies or (0.0, 0.0))))
        return db(sum(e[0] for e in energies), sum(e[1] for e in energies)), worst.sqnr_db or 0.0, worst.tensor

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "nodes": self.nodes,
            "quantized": self.quantized,
            "by_operator": {op: {"quantized": q, "total": n} for op, (q, n) in self.by_operator().items()},
            "tensors": {name: params.to_dict() if params else None for name, params in self.tensors.items()},
            "decisions": [d.to_dict() for d in self.decisions],
            "skips": [s.to_dict() for s in self.skips],
            "notes": list(self.notes),
        }
