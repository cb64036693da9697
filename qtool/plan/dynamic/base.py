"""The contract of a handler of dynamic mode.

A handler looks at one node, of the top graph or of a body, and answers with a :class:`Decision` whose weights have
parameters, or a :class:`Skip` that says why not. A new handler is a file in this package and a row in ``build.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.dtypes import QDType, qdtype
from qtool.plan.analysis import Graph
from qtool.plan.plan import Decision, Skip
from qtool.plan.selection import Selection

# what DynamicQuantizeLinear makes; the standard has no other type there
ACTIVATIONS = "uint8"


class DynamicContext:
    """What a handler may ask.

    Attributes:
        graph: Facts about the graph of the node: the top graph or a body.
        config: What the user asked for.
        selection: Include and exclude patterns.
        weight_dtype: Element type of weights that the user asked for.
    """

    def __init__(self, graph: Graph, config: QuantConfig, selection: Selection) -> None:
        self.graph = graph
        self.config = config
        self.selection = selection
        self.weight_dtype: QDType = qdtype(config.weights)


class DynamicHandler(ABC):
    """Decides about the nodes of one family of operators."""

    op_types: ClassVar[tuple[str, ...]]

    @abstractmethod
    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """Decide about one node. Must not change the graph.

        Raises:
            ModelError: If a weight that would be quantized holds NaN or Inf.
        """


def float_type(ctx: DynamicContext, *values: ir.Value | None) -> ir.DataType | None:
    """The element type of some operands, as far as it is known; those of a body may be known by their constant only."""
    for value in values:
        constant = ctx.graph.constant(value)
        dtype = constant.dtype if constant is not None else value.dtype if value is not None else None
        if dtype is not None:
            return dtype
    return None
