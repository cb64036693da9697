"""The contract of an op handler, and what a handler may ask.

A handler looks at one node and answers with a :class:`Decision` or a :class:`Skip` that says why not. It never changes
the graph. To add one, add a file to this package: every :class:`Handler` subclass in it is registered by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qtool.calibrate.statistics import Statistics
from qtool.config import QuantConfig
from qtool.dtypes import QDType, qdtype
from qtool.plan.analysis import MASK_MAGNITUDE, Clamp, Graph
from qtool.plan.plan import Decision, Skip, WeightPlan
from qtool.plan.selection import Selection
from qtool.targets.base import Target


class Phase(Enum):
    """When a node is decided.

    COMPUTE nodes are what quantization is for: they are decided first and want their inputs quantized. FOLLOW nodes are
    decided in reverse graph order, and only quantized if a quantized node wants their output.
    """

    COMPUTE = "compute"
    FOLLOW = "follow"


class PlanContext:
    """What is known while nodes are decided.

    Attributes:
        graph: Facts about the prepared graph.
        config: What the user asked for.
        target: What is known about the runtime that it is for.
        selection: Include and exclude patterns.
        statistics: Of the calibration run; None while the wanted tensors are still being found out.
        wanted: Tensors that a quantized node reads.
        read_by_products: Tensors that a COMPUTE node reads: they are quantized whatever FOLLOW nodes turn out to be.
        native: Tensors that a quantized node can write quantized without loss, because their producer's result only
            exists quantized (a Conv's output, and whatever is derived from one).
        decided: Decisions so far, by node identity.
        absorbed: The node that a node is part of, by node identity.
        kept_clamps: Relus and Clips that must not be absorbed, because an override fixes the zero point behind them.
        separate_joins: Concats that must not share one range, because it reaches beyond an absorbed Clip's bounds.
        quantize_scores: Whether the products of attention are quantized, too. They are where the graph has no others:
            beside products with weights they would cost most of the accuracy and gain least.
    """

    def __init__(
        self,
        graph: Graph,
        config: QuantConfig,
        selection: Selection,
        statistics: Statistics | None,
        separate_joins: frozenset[str] = frozenset(),
        *,
        quantize_scores: bool = False,
    ) -> None:
        self.graph = graph
        self.config = config
        self.selection = selection
        self.statistics = statistics
        self.separate_joins = separate_joins
        self.quantize_scores = quantize_scores
        self.activation_dtype: QDType = qdtype(config.activations)
        self.weight_dtype: QDType = qdtype(config.weights)
        self.target: Target = config.facts
        self.wanted: set[str] = set()
        self.read_by_products: set[str] = set()
        self.native: set[str] = set()
        self.decided: dict[int, Decision] = {}
        self.absorbed: dict[int, ir.Node] = {}
        self.kept_clamps: frozenset[str] = frozenset()

    def writes_codes(self, node: ir.Node) -> bool:
        """Whether the integer operator's result only exists quantized on this target."""
        from qtool.plan.ops import handlers

        if not handlers()[node.op_type].output_always_quantized:
            return False
        if self.target.convs_write_codes or not self.target.shared_convs_write_codes:
            return self.target.convs_write_codes
        bias = self.graph.array(node.inputs[2]) if len(node.inputs) > 2 else None
        return self.graph.sole_consumer(node.outputs[0]) is None and (bias is None or not bias.any())

    def is_wanted(self, value: ir.Value) -> bool:
        """Whether a quantized node reads the value."""
        return value.name in self.wanted

    def is_native(self, value: ir.Value | None) -> bool:
        """Whether the value exists quantized anyway."""
        return value is not None and value.name in self.native

    def all_readers_quantized(self, value: ir.Value) -> bool:
        """Whether everything that reads the value reads it quantized, so that its float form is needed nowhere."""
        uses = list(value.uses())
        if not uses or value.is_graph_output():
            return False
        for node, index in uses:
            if node.graph is not self.graph.ir:
                return False
            decision = self.decided.get(id(node))
            if decision is None or index not in [i for i, _ in decision.inputs]:
                return False
        return True

    def activation(self, value: ir.Value | None) -> bool:
        """Whether a value is a float32 activation: not constant, and of no other type as far as is known."""
        if value is None or self.graph.constant(value) is not None:
            return False
        return not (value.dtype is not None and value.dtype != ir.DataType.FLOAT)

    def absorbable(self, value: ir.Value) -> Clamp | None:
        """The Relu or Clip behind a value that an integer operator's saturation can stand for.

        It must be the only thing that sees the value, must begin at 0 (so that the zero point can be qmin), and the
        zero point must be free (asymmetric activations).
        """
        if self.config.symmetric_activations:
            return None
        clamp = self.graph.clamp(self.graph.sole_consumer(value))
        if clamp is None or clamp.low != 0.0 or clamp.high <= 0.0 or clamp.node.name in self.kept_clamps:
            return None
        return None if self.selection.reason_to_skip(clamp.node) is not None else clamp

    def constant_operand(self, node: ir.Node, index: int) -> WeightPlan | str:
        """A constant operand of an elementwise operator as something to store quantized, or the reason why not."""
        value = node.inputs[index]
        assert value is not None, "Bug: a missing operand is not a constant"
        array = self.graph.array(value)
        assert array is not None, "Bug: not a constant"
        if array.size == 0:
            return "its constant operand is empty"
        if not np.isfinite(array).all() or np.abs(array).max() > MASK_MAGNITUDE:
            return "its constant operand is a mask (infinite or beyond 1e30), which no range can hold"
        return WeightPlan(value.name or "", index, as_activation=True)


class Handler(ABC):
    """Decides about the nodes of one family of operators."""

    op_types: ClassVar[tuple[str, ...]]
    phase: ClassVar[Phase]
    # whether the integer operator's result only exists quantized: then its output is native, and always quantized
    output_always_quantized: ClassVar[bool] = False
    # whether a Relu or Clip behind the node may become part of it
    absorbs_clamps: ClassVar[bool] = False

    @abstractmethod
    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """Decide about one node. Must not change the graph or the context."""

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """Whether the node's outputs exist quantized if its inputs do (FOLLOW handlers)."""
        del node, ctx
        return False


def skip(node: ir.Node, reason: str, *, expected: bool = False) -> Skip:
    """A :class:`Skip` for a node."""
    return Skip(node.name or "", node.op_type, reason, expected)


def indexed(pairs: Sequence[tuple[int, ir.Value | None]]) -> tuple[tuple[int, str], ...]:
    """(index, tensor name) of the values that are there."""
    return tuple((i, v.name or "") for i, v in pairs if v is not None)
