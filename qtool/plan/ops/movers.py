"""Operators that move codes without computing: the same scale and zero point hold on both sides."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qtool.plan.ops.base import Handler, Phase, PlanContext, indexed, skip
from qtool.plan.plan import Decision, Form, Skip
from qtool.plan.tables import table_decision

# First opset at which onnxruntime (1.32) runs an operator on codes, where that is above 10. Below it there is no
# kernel, and QDQ form is no way out: the runtime takes the Q and DQ around a mover away before it looks for one.
FIRST_OPSET_ON_CODES = {"DepthToSpace": 11, "ReduceMax": 12, "ReduceMin": 12}


class MoverHandler(Handler):
    """Reshape and its kin, MaxPool, nearest Resize, constant Pad."""

    op_types: ClassVar[tuple[str, ...]] = (
        "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "Expand",
        "Tile", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax", "ReduceMin", "Pad", "Identity",
        "GatherElements", "GatherND", "ReverseSequence", "Compress",
    )  # fmt: skip
    phase: ClassVar[Phase] = Phase.FOLLOW

    def plan(self, node: ir.Node, ctx: PlanContext) -> Decision | Skip:
        """See :meth:`Handler.plan`."""
        if node.op_type == "Gather" and ctx.graph.constant(node.inputs[0]) is not None:
            return table_decision(node, ctx.graph)
        why_not = self._why_not(node, ctx)
        if why_not is not None:
            return skip(node, why_not, expected=True)
        outputs = _moved(node)
        if not any(ctx.is_wanted(o) for o in outputs):
            return skip(node, "no quantized operator reads its output", expected=True)
        data = node.inputs[0]
        read = [o for o in outputs if o.uses() or o.is_graph_output()]
        if not ctx.is_native(data) and not all(ctx.all_readers_quantized(o) for o in read):
            return skip(node, "float operators read its output too", expected=True)
        return Decision(
            node.name or "",
            node.op_type,
            Form.MOVER,
            indexed([(0, data)]),
            outputs=tuple(o.name or "" for o in outputs),
        )

    def passes_native(self, node: ir.Node, ctx: PlanContext) -> bool:
        """See :meth:`Handler.passes_native`."""
        return ctx.is_native(node.inputs[0]) and self._why_not(node, ctx) is None

    def _why_not(self, node: ir.Node, ctx: PlanContext) -> str | None:
        """Why the node cannot work on codes, or None."""
        if not node.inputs or not ctx.activation(node.inputs[0]):
            return "it moves integers or constants"
        if ctx.graph.opset < FIRST_OPSET_ON_CODES.get(node.op_type, 0):
            return "the runtime does not run it on codes at this opset"
        if node.op_type == "MaxPool" and any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
            return "its indices are used"
        if node.op_type == "Resize":
            mode = node.attributes.get("mode")
            if mode is not None and mode.as_string() != "nearest":
                return "only nearest-neighbour Resize moves codes"
            transform = node.attributes.get("coordinate_transformation_mode")
            if transform is not None and transform.as_string() == "tf_crop_and_resize":
                return "what lies outside its input becomes a number, not a code"
        if node.op_type == "Pad":
            return _pad_reason(node, ctx)
        return None


def _moved(node: ir.Node) -> list[ir.Value]:
    """The outputs that hold codes: all that there are, but not the indices of a MaxPool."""
    outputs = node.outputs[:1] if node.op_type == "MaxPool" else node.outputs
    return [o for o in outputs if o.name]


def _pad_reason(node: ir.Node, ctx: PlanContext) -> str | None:
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "constant":
        return None
    if ctx.graph.opset < 11:
        return "this opset's Pad takes float32 only"
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None and ctx.graph.scalar(value) != 0.0:
        return "it pads with something else than a constant 0"
    return None
