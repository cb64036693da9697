"""The operators of ai.onnx that the spec engine computes itself, and how they become classes of ``onnx.reference``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx.reference.op_run import OpRun

from qtool.errors import KernelError
from qtool.runtime.spec import floats, quantized
from qtool.runtime.spec.control import Loop
from qtool.runtime.spec.quantized import Array, Call

OPERATORS: dict[str, Callable[[Call], tuple[Array, ...]]] = {
    "QuantizeLinear": quantized.quantize_linear,
    "DequantizeLinear": quantized.dequantize_linear,
    "DynamicQuantizeLinear": quantized.dynamic_quantize_linear,
    "MatMulInteger": quantized.matmul_integer,
    "QLinearMatMul": quantized.qlinear_matmul,
    "ConvInteger": quantized.conv_integer,
    "QLinearConv": quantized.qlinear_conv,
    "Conv": floats.conv,
    "ConvTranspose": floats.conv_transpose,
    "BatchNormalization": floats.batch_normalization,
    "MaxPool": floats.max_pool,
    "GlobalMaxPool": floats.global_max_pool,
    "AveragePool": floats.average_pool,
}


def classes(num_threads: int | None) -> list[type[OpRun]]:
    """One class per row of the table, and those that need the context of a graph, as ``new_ops`` takes them.

    Args:
        num_threads: Threads of the kernels; None: by the amount of work.
    """
    rows = [_class(op_type, function, num_threads) for op_type, function in OPERATORS.items()]
    return [*rows, Loop]


def _class(op_type: str, function: Callable[[Call], tuple[Array, ...]], num_threads: int | None) -> type[OpRun]:
    class Operator(OpRun):
        """A row of the table; ``onnx.reference`` finds it by the name of the class."""

        op_domain = ""

        def __init__(self, node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            super().__init__(node, run_params)
            self._opset = run_params["opsets"][""]
            self._schema_here = onnx.defs.get_schema(op_type, self._opset, "")
            self._checked: tuple[Any, ...] | None = None

        def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
            types = tuple(None if array is None else array.dtype for array in inputs)
            if types != self._checked:
                _check_types(self._schema_here, inputs, self._opset)
                self._checked = types
            return function(Call(inputs, attributes, num_threads, len(self.onnx_node.output)))

    Operator.__name__ = Operator.__qualname__ = op_type
    return Operator


def _check_types(schema: onnx.defs.OpSchema, inputs: tuple[Array | None, ...], opset: int) -> None:
    """Refuse element types that the operator does not have at an opset.

    Raises:
        KernelError: Naming input, type and opset.
    """
    for formal, array in zip(schema.inputs, inputs, strict=False):
        if array is None:
            continue
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        name = f"tensor({onnx.TensorProto.DataType.Name(number).lower()})"
        if name not in formal.types:
            raise KernelError(
                f"Input '{formal.name}' is {array.dtype}; at opset {opset} the operator takes "
                f"{', '.join(sorted(t.removeprefix('tensor(').removesuffix(')') for t in formal.types))}."
            )
