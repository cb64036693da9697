"""What a processor without VNNI would add to one operator: pairs of products that leave int16."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtool import kernels
from qtool.evaluate.attribution.graph import Array, Graph
from qtool.evaluate.attribution.units import Unit

DOMINANT = 10.0
"""How many times an operator's own noise saturation has to make before it counts as its cause, ..."""
DESTRUCTIVE = 10 ** (-1.8)
"""... and how much beside its signal: the usual amount (20 dB and better on the zoo) is only counted, as the processor
that the model meets may have VNNI, and then there is none."""


def saturation(unit: Unit, quantized: Graph, x: Array) -> tuple[int, Array | None]:
    """Pairs that saturate on float input x, and what they change in the result of the product, before a bias or clamp.

    Args:
        unit: A unit.
        quantized: The quantized model.
        x: Its activation in the float model.

    Returns:
        (0, None) where nothing saturates, or nothing can.
    """
    weight = unit.weight
    if weight is None or weight.dtype != "int8" or weight.block or weight.index != 1 or len(unit.operands) != 1:
        return 0, None
    (operand,) = unit.operands
    if unit.op_type not in ("MatMul", "Gemm", "Conv") or (operand.params is None and not operand.dynamic):
        return 0, None
    if operand.params is None:
        codes, scale, zero = kernels.dynamic_quantize_linear(np.ascontiguousarray(x, np.float32), num_threads=1)
    else:
        scale, zero = operand.params.scale, operand.params.zero
        if zero.dtype != np.uint8:
            return 0, None
        codes = kernels.quantize(x, scale.astype(x.dtype), zero, num_threads=1)
    stored = quantized.array(weight.codes)
    attributes = _attributes(unit)
    if unit.op_type == "Gemm" and attributes.get("transB"):
        stored = stored.T
    kind = "ConvInteger" if unit.op_type == "Conv" else "MatMulInteger"
    options = attributes if kind == "ConvInteger" else {}
    if kind == "ConvInteger" and stored.shape[1] == 1 and options["group"] == stored.shape[0] > 1:
        return 0, None  # a depthwise Conv is computed in 32 bits
    count, there = _saturating(kind, codes, np.ascontiguousarray(stored), zero, options)
    if not count:
        return 0, None
    if kind == "ConvInteger":
        exact = kernels.conv_integer(codes, stored, zero, None, num_threads=1, **options)
        column = (-1,) + (1,) * (codes.ndim - 2)
    else:
        exact = kernels.matmul_integer(codes, np.ascontiguousarray(stored), zero, None, num_threads=1)
        column = (-1,)
    step = weight.scale.reshape(column) if weight.scale.size > 1 else weight.scale.reshape(())
    return count, (there - exact).astype(np.float32) * (np.float32(scale) * step.astype(np.float32))


def _saturating(kind: str, codes: Array, stored: Array, zero: Array, options: dict[str, Any]) -> tuple[int, Array]:
    from qtool.runtime.spec.quantized import Call
    from qtool.runtime.spec.saturating import Saturating

    machine = Saturating()
    (result,) = machine.operators()[kind](Call((codes, stored, zero, None), options, 1, name="unit"))
    return machine.record["unit"].saturated, result


def _attributes(unit: Unit) -> dict[str, Any]:
    from onnx import helper

    node = next(node for node in unit.nodes if node.op_type == unit.op_type)
    found: dict[str, Any] = {"group": 1} if unit.op_type == "Conv" else {}
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        found[one.name] = value.decode() if isinstance(value, bytes) else value
    return found
