"""How the integer operators are run: one entry per op_type, for ``qtool.kernels`` and ``qtool.reference`` alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy as np


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if "auto_pad" in attributes:
        attributes["auto_pad"] = attributes["auto_pad"].decode()
    return attributes


def _arguments(node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    """The node's inputs in place: an empty name is an absent input and has no array."""
    arrays = iter(inputs)
    return [next(arrays) if name else None for name in node.input]


def _plain(function: str) -> Callable[[ModuleType, onnx.NodeProto, list[np.ndarray]], list[np.ndarray]]:
    def run(module: ModuleType, node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
        result = getattr(module, function)(*_arguments(node, inputs), **_attributes(node))
        return list(result) if isinstance(result, tuple) else [result]

    return run


RUNNERS: dict[str, Callable[[ModuleType, onnx.NodeProto, list[np.ndarray]], list[np.ndarray]]] = {
    "MatMulInteger": _plain("matmul_integer"),
    "QLinearMatMul": _plain("qlinear_matmul"),
    "ConvInteger": _plain("conv_integer"),
    "QLinearConv": _plain("qlinear_conv"),
    "DynamicQuantizeLinear": _plain("dynamic_quantize_linear"),
}
