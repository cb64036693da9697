"""LSTM as com.microsoft's DynamicQuantizeLSTM: 8-bit W and R, activations quantized at every step."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qtool.granularity import PerAxis
from qtool.plan.dynamic.base import DynamicContext, DynamicHandler, float_type
from qtool.plan.ops.base import indexed, skip
from qtool.plan.plan import Decision, Form, Skip, WeightPlan
from qtool.qparams import symmetric_qparams


class LstmHandler(DynamicHandler):
    """One scale per gate row and direction, or one per direction.

    Direction, peepholes, sequence lengths, initial states, clip, input_forget and other activations are the same inputs
    and attributes of both operators; ``layout`` is not.
    """

    op_types: ClassVar[tuple[str, ...]] = ("LSTM",)

    def plan(self, node: ir.Node, ctx: DynamicContext) -> Decision | Skip:
        """See :meth:`DynamicHandler.plan`."""
        if "layout" in node.attributes and node.attributes["layout"].as_int() != 0:
            return skip(node, "the runtime's LSTM with 8-bit weights has no batch-first layout")
        if "hidden_size" not in node.attributes:
            return skip(node, "it does not say its hidden_size")
        weights = []
        for index, name in ((1, "W"), (2, "R")):
            value = node.inputs[index]
            constant = ctx.graph.constant(value)
            if constant is None:
                return skip(node, f"its {name} is not constant")
            if constant.dtype != ir.DataType.FLOAT or float_type(ctx, node.inputs[0]) not in (ir.DataType.FLOAT, None):
                return skip(node, "its operands are not float32")
            if len(constant.shape) != 3 or 0 in constant.shape:
                return skip(
                    node, f"its {name} has no elements" if len(constant.shape) == 3 else f"its {name} is not 3-D"
                )
            assert value is not None
            rows = lstm_rows(ctx.graph.weight(value), per_channel=ctx.config.per_channel)
            params = symmetric_qparams(rows.min(axis=1), rows.max(axis=1), ctx.weight_dtype, granularity=PerAxis(0))
            weights.append(WeightPlan(value.name or "", index, axis=0, params=params))
        return Decision(
            node.name or "",
            node.op_type,
            Form.DYNAMIC,
            indexed([(0, node.inputs[0])]),
            weights=tuple(weights),
            note="com.microsoft.DynamicQuantizeLSTM, an operator of onnxruntime",
        )


def lstm_rows(
    weight: np.ndarray[tuple[int, ...], np.dtype[np.float32]], *, per_channel: bool
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """W (D, 4H, I) or R (D, 4H, H) with the elements of one scale in one row: (D * 4H, I), or (D, 4H * I)."""
    directions, gates, _ = weight.shape
    return weight.reshape(directions * gates if per_channel else directions, -1)
