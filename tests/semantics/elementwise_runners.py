"""How QuantizeLinear and DequantizeLinear are run: one entry per op_type, for the kernels and the reference alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from qtool.dtypes import BY_ONNX

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy as np


def _arguments(node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    """The node's inputs in place: an empty name is an absent input and has no array."""
    arrays = iter(inputs)
    return [next(arrays) if name else None for name in node.input]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _quantize(module: ModuleType, node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    attributes = _attributes(node)
    if attributes.get("output_dtype"):
        attributes["output_dtype"] = BY_ONNX[attributes["output_dtype"]]
    if attributes.get("precision"):
        attributes["precision"] = onnx.helper.tensor_dtype_to_np_dtype(attributes["precision"])
    if "saturate" in attributes:
        attributes["saturate"] = bool(attributes["saturate"])
    function = getattr(module, "quantize", None) or module.quantize_linear
    return [function(*_arguments(node, inputs), **attributes)]


def _dequantize(module: ModuleType, node: onnx.NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    attributes = _attributes(node)
    if attributes.get("output_dtype"):
        attributes["output_dtype"] = onnx.helper.tensor_dtype_to_np_dtype(attributes["output_dtype"])
    function = getattr(module, "dequantize", None) or module.dequantize_linear
    return [function(*_arguments(node, inputs), **attributes)]


RUNNERS: dict[str, Callable[[ModuleType, onnx.NodeProto, list[np.ndarray]], list[np.ndarray]]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
