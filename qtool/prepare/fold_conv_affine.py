"""Fold Add, Sub, Mul and Div by a per-channel constant into the convolution in front of them.

Exporters of some frameworks write a convolution's bias as an Add of a (1, C, 1, 1) constant, and an unfused
BatchNormalization as Mul and Add. Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.fold_scale_shift import FoldIntoWeightsPass
from qtool.prepare.graph_edits import constant_array, is_onnx_op, plural


class FoldConvAddPass(FoldIntoWeightsPass):
    """Conv or ConvTranspose, then Add or Sub of a constant: the constant goes into the bias."""

    operators = ("Conv", "ConvTranspose")

    def describe(self) -> str:
        """One line for the folded nodes."""
        return f"folded {plural(self.count, 'Add of a constant')} into convolution biases".replace(
            "constants", "constant"
        )

    def scale_and_shift(
        self, node: ir.Node, follower: ir.Node, channels: int, rank: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Scale 1 (or -1 for ``constant - conv``) and the constant."""
        if not is_onnx_op(follower, "Add", "Sub"):
            return None
        ours = follower.inputs.index(node.outputs[0])
        constant = per_channel(follower.inputs[1 - ours], channels, rank)
        if constant is None:
            return None
        if follower.op_type == "Add":
            return np.ones(channels), constant
        return (np.ones(channels), -constant) if ours == 0 else (-np.ones(channels), constant)


class FoldConvMulPass(FoldIntoWeightsPass):
    """Conv or ConvTranspose, then Mul or Div by a constant: the constant goes into weight and bias."""

    operators = ("Conv", "ConvTranspose")

    def describe(self) -> str:
        """One line for the folded nodes."""
        return f"folded {plural(self.count, 'Mul by a constant')} into convolution weights".replace(
            "constants", "constant"
        )

    def scale_and_shift(
        self, node: ir.Node, follower: ir.Node, channels: int, rank: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The constant, or its reciprocal, and shift 0."""
        if not is_onnx_op(follower, "Mul", "Div"):
            return None
        ours = follower.inputs.index(node.outputs[0])
        if follower.op_type == "Div" and ours == 1:
            return None
        constant = per_channel(follower.inputs[1 - ours], channels, rank)
        if constant is None or (follower.op_type == "Div" and not constant.all()):
            return None
        return (constant if follower.op_type == "Mul" else 1.0 / constant), np.zeros(channels)


def per_channel(value: ir.Value | None, channels: int, rank: int) -> np.ndarray | None:
    """A constant that broadcasts along axis 1 only, as float64 of shape (channels,); None for any other value.

    Args:
        value: The other operand.
        channels: The length of axis 1.
        rank: The rank of the tensor that it is broadcast to; a constant of higher rank would change the result's.
    """
    array = constant_array(value)
    if array is None or array.ndim > rank or array.dtype.kind not in "fV":
        return None
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    if array.size == 1:
        return np.full(channels, wide.reshape(-1)[0])
    shape = (1,) * (rank - array.ndim) + array.shape
    if shape != (1, channels, *[1] * (rank - 2)):
        return None
    return wide.reshape(-1)
