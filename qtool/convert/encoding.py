"""What codes mean: the scale, the zero point and the axis that a node gives them, as values of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.dtypes import BY_ONNX, QDType
from qtool.prepare.graph_edits import constant_array, input_at, int_attribute

_SUFFIXES = (
    "_quantized",
    "_dequantized",
    "_QuantizeLinear_Output",
    "_DequantizeLinear_Output",
    "_QuantizeLinear",
    "_DequantizeLinear",
)


@dataclass(frozen=True)
class Encoding:
    """Parameters that a node reads or writes codes under.

    Attributes:
        scale: A value of the graph, constant or computed by the running model.
        zero_point: Another; None for zero.
        axis: Quantized axis, where the scale has more than one element.
        block: Elements per scale along the axis; 0 if not blocked.
    """

    scale: ir.Value
    zero_point: ir.Value | None = None
    axis: int = 1
    block: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether both are known now."""
        return self.scales is not None and (self.zero_point is None or constant_array(self.zero_point) is not None)

    @property
    def scales(self) -> npt.NDArray[Any] | None:
        """The scale's elements, if it is constant."""
        return constant_array(self.scale)

    @property
    def per_tensor(self) -> bool:
        """Whether one scale holds for all elements, as far as is known."""
        shape = self.scale.shape
        return self.block == 0 and shape is not None and all(d == 1 for d in shape)

    def zero_points(self) -> npt.NDArray[Any]:
        """The zero point's elements; one zero where there is none. The encoding must be constant."""
        array = constant_array(self.zero_point)
        return np.zeros((), np.int32) if array is None else array

    def equals(self, other: Encoding) -> bool:
        """Whether codes mean the same under both, to the last bit."""
        if self.block != other.block:
            return False
        if self.scale is not other.scale:
            mine, theirs = self.scales, other.scales
            if mine is None or theirs is None or mine.dtype != theirs.dtype:
                return False
            if mine.size != theirs.size or mine.tobytes() != theirs.tobytes():
                return False
        if self.zero_point is not other.zero_point:
            if not (self.is_constant and other.is_constant):
                return False
            a, b = self.zero_points().astype(np.float64).reshape(-1), other.zero_points().astype(np.float64).reshape(-1)
            if not (a == b).all():  # one zero stands for all
                return False
        return self.per_tensor or self.axis == other.axis


def encoding_of(node: ir.Node) -> Encoding:
    """The encoding of a QuantizeLinear or DequantizeLinear."""
    scale = node.inputs[1]
    assert scale is not None, "Bug: a quantizer without a scale"
    return Encoding(
        scale, input_at(node, 2), axis=int_attribute(node, "axis", 1), block=int_attribute(node, "block_size", 0)
    )


def code_type(value: ir.Value | None) -> QDType | None:
    """The element type of codes, if it is known to be one."""
    if value is None or value.dtype is None:
        return None
    return BY_ONNX.get(int(value.dtype))


def plain_name(name: str) -> str:
    """The name of the tensor that codes or dequantized values belong to: what quantizers append is taken off."""
    while True:
        shorter = next((name[: -len(s)] for s in _SUFFIXES if name.endswith(s) and len(name) > len(s)), None)
        if shorter is None:
            return name
        name = shorter
