"""The operators of ai.onnx that the spec engine computes itself, and how they become classes of ``onnx.reference``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from qtool import kernels
from qtool.errors import KernelError
from qtool.runtime.spec import floats, quantized
from qtool.runtime.spec.control import Loop
from qtool.runtime.spec.quantized import Array, Call
from qtool.runtime.spec.saturating import Saturating

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

Packed = kernels.PackedB | kernels.PackedConv


def _packed_matrix(b: Array, attributes: dict[str, Any], threads: int | None) -> Packed:
    del attributes
    return kernels.PackedB(b, num_threads=threads)


def _packed_conv(w: Array, attributes: dict[str, Any], threads: int | None) -> Packed:
    return kernels.pack_conv_weights(w, attributes["group"], num_threads=threads)


Packing = tuple[int, Callable[[Array, dict[str, Any], int | None], Packed]]

PACKED: dict[str, Packing] = {
    "MatMulInteger": (1, _packed_matrix),
    "QLinearMatMul": (3, _packed_matrix),
    "ConvInteger": (1, _packed_conv),
    "QLinearConv": (3, _packed_conv),
}
"""Which input, if it is a constant, is packed once for all runs."""


def classes(num_threads: int | None, saturating: Saturating | None = None) -> list[type[OpRun]]:
    """One class per row of the table, and those that need the context of a graph, as ``new_ops`` takes them.

    Args:
        num_threads: Threads of the kernels; None: by the amount of work.
        saturating: Compute products as a processor without VNNI does, and count into its record.
    """
    own = {} if saturating is None else saturating.operators()
    rows = [
        _class(op_type, own.get(op_type, function), num_threads, None if op_type in own else PACKED.get(op_type))
        for op_type, function in OPERATORS.items()
    ]
    return [*rows, Loop, *([] if saturating is None else saturating.classes(num_threads))]


def _class(
    op_type: str, function: Callable[[Call], tuple[Array, ...]], num_threads: int | None, packing: Packing | None
) -> type[OpRun]:
    class Operator(OpRun):
        """A row of the table; ``onnx.reference`` finds it by the name of the class."""

        op_domain = ""

        def __init__(self, node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            super().__init__(node, run_params)
            self._opset = run_params["opsets"][""]
            self._schema_here = onnx.defs.get_schema(op_type, self._opset, "")
            self._checked: tuple[Any, ...] | None = None
            self._attributes: dict[str, Any] | None = None
            self._constant: Array | None = None
            self._packed: Packed | None = None

        @property
        def weight(self) -> int:
            """Position of the input that :meth:`set_weight` wants if it is a constant; -1 for none."""
            return -1 if packing is None else packing[0]

        def set_weight(self, constant: Array) -> None:
            """Have this input packed by the first run, for it and those that follow."""
            if constant.dtype in (np.int8, np.uint8):
                self._constant = constant

        def _with_packed(self, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> tuple[Any, ...]:
            assert packing is not None, "Bug: a weight to pack, and no way to"
            position, pack = packing
            if self._packed is None or not self._packed.is_current:
                self._packed = pack(inputs[position], attributes, num_threads)
            return (*inputs[:position], self._packed, *inputs[position + 1 :])

        def run(self, *inputs: Array | None, **options: Any) -> tuple[Array, ...]:
            """Like ``OpRun.run``, which takes as long as a small kernel, where all attributes are those of the node."""
            if self.has_linked_attribute:
                outputs: tuple[Array, ...] = super().run(*inputs, **options)  # type: ignore[no-untyped-call]
                return outputs
            if self._attributes is None:
                self._attributes = {name: getattr(self, name) for name in self.attributes_names_}
            return self._run(*inputs, **self._attributes)

        def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
            types = tuple(None if array is None else array.dtype for array in inputs)
            if types != self._checked:
                _check_types(self._schema_here, inputs, self._opset)
                self._checked = types
            if self._constant is not None:
                inputs = self._with_packed(inputs, attributes)
            node = self.onnx_node
            return function(Call(inputs, attributes, num_threads, len(node.output), node.name or node.output[0]))

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
