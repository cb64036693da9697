"""Fold BatchNormalization into the weights and bias of the operator in front of it.

    y = (conv(x, W) + b - mean) * f + beta  with  f = scale / sqrt(var + epsilon)
      = conv(x, W * f) + ((b - mean) * f + beta)

computed in float64 and rounded once to the weight's type. Scope: the top graph, and bodies on
request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.fold_scale_shift import FoldIntoWeightsPass
from qtool.prepare.graph_edits import constant_array, float_attribute, int_attribute, is_onnx_op, plural


class FoldBatchNormPass(FoldIntoWeightsPass):
    """Conv, ConvTranspose, Gemm or MatMul, then BatchNormalization in inference mode."""

    operators = ("Conv", "ConvTranspose", "Gemm", "MatMul")

    def describe(self) -> str:
        """One line for the folded nodes."""
        return f"folded {plural(self.count, 'BatchNormalization')} into the weights before"

    def scale_and_shift(
        self, node: ir.Node, follower: ir.Node, channels: int, rank: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """``f`` and ``beta - mean * f``, float64, shape (channels,)."""
        del node, rank
        if not is_onnx_op(follower, "BatchNormalization"):
            return None
        # A second output, or training_mode, means statistics of the batch; spatial=0 means one statistic per element.
        if any(v.name or v.uses() for v in follower.outputs[1:]) or int_attribute(follower, "training_mode", 0):
            return None
        if not int_attribute(follower, "spatial", 1):
            return None
        arrays = [constant_array(value) for value in follower.inputs[1:5]]
        if len(arrays) != 4 or any(a is None or a.shape != (channels,) for a in arrays):
            return None
        scale, beta, mean, variance = (np.asarray(a, dtype=np.float64) for a in arrays)
        spread = variance + float_attribute(follower, "epsilon", 1e-5)
        if not (spread > 0).all():
            return None
        factor = scale / np.sqrt(spread)
        return factor, beta - mean * factor
