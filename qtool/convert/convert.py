"""A quantized model in another form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from qtool.convert.codes import Codes
from qtool.convert.operators import MICROSOFT
from qtool.convert.to_float import FloatForm
from qtool.convert.to_qdq import QdqForm, unmoved
from qtool.convert.to_qlinear import QLinearForm
from qtool.dtypes import PER_AXIS_FLOOR
from qtool.errors import ConfigError, ModelError
from qtool.prepare.graph_edits import all_graphs
from qtool.prepare.hide_initializer_inputs import HideInitializerInputsPass
from qtool.prepare.infer_shapes import InferShapesPass
from qtool.prepare.lift_constants import LiftConstantsPass
from qtool.prepare.name_nodes import NameNodesPass
from qtool.prepare.raise_opset import RaiseOpsetPass
from qtool.prepare.remove_dead_nodes import RemoveDeadNodesPass

FORMS = ("qlinear", "qdq", "float")
# operators that hold codes in a form of their own, which is nobody's standard
_OPAQUE = frozenset(
    (
        "MatMulNBits", "GatherBlockQuantized", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
        "QAttention", "QEmbedLayerNormalization", "QLinearReduceMean", "QLinearWhere", "QMoE", "NhwcMaxPool",
        "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax", "MatMulFpQ4", "MatMulBnb4",
    )
)  # fmt: skip
_QUANTIZED = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "QLinearConv", "MatMulInteger",
     "ConvInteger")
)  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        model: It.
        converted: Operator -> nodes that were rewritten, most frequent first.
        left: (node, operator, reason) of quantized nodes that keep their form.
        dequantized: Weights that became floats.
        unrounded: Pairs of QuantizeLinear and DequantizeLinear that were taken away.
        interface: Quantizers that stay because the model's inputs or outputs are codes.
        notes: What a user should know.
    """

    model: ir.Model
    converted: dict[str, int] = field(default_factory=dict)
    left: tuple[tuple[str, str, str], ...] = ()
    dequantized: int = 0
    unrounded: int = 0
    interface: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "converted": self.converted,
            "left": [{"node": n, "op_type": op, "reason": reason} for n, op, reason in self.left],
            "dequantized_weights": self.dequantized,
            "unrounded_activations": self.unrounded,
            "interface": self.interface,
        }


def convert_model(model: ir.Model, to: str) -> Conversion:
    """Convert the top graph and the bodies of If, Loop and Scan; every parameter stays what it is, to the last bit.

    Args:
        model: A quantized model; not changed.
        to: ``qlinear``, ``qdq`` or ``float``.

    Raises:
        ConfigError: For another form.
        ModelError: For a model that is not quantized, or holds what has no counterpart in the form.
    """
    if to not in FORMS:
        raise ConfigError(f"Form '{to}' is unknown; expected one of {', '.join(FORMS)}.")
    copy = model.clone()
    for step in (
        NameNodesPass(bodies=True),
        HideInitializerInputsPass(),
        LiftConstantsPass(bodies=True),
        InferShapesPass(),
    ):
        step(copy)
    _infer_codes(copy)
    _require_convertible(copy, to)
    qdq = QdqForm(copy)
    if to != "qlinear":
        qdq.run()
        if qdq.left:
            raise ModelError(f"The model cannot be converted to {to}: {unmoved(qdq.left)}.")
    conversion = _finish(copy, to, qdq)
    dead = RemoveDeadNodesPass(bodies=True)
    dead(conversion.model)
    common_passes.TopologicalSortPass()(conversion.model)
    return conversion


def _finish(model: ir.Model, to: str, qdq: QdqForm) -> Conversion:
    notes: tuple[str, ...] = ()
    if to == "float":
        RemoveDeadNodesPass(bodies=True)(model)
        common_passes.TopologicalSortPass()(model)
        form = FloatForm(model)
        form.run()
        if form.left:
            raise ModelError(f"The model cannot be converted to float: {unmoved(form.left)}.")
        if form.interface:
            notes = (f"{form.interface} quantizers stay: inputs or outputs of the model are codes",)
        return Conversion(model, _ranked(qdq.converted), (), form.weights, form.rounded, form.interface, notes)
    if to == "qdq":
        opset = model.graph.opset_imports.get("", 0)
        if qdq.per_axis and opset < PER_AXIS_FLOOR[0]:
            common_passes.TopologicalSortPass()(model)
            RaiseOpsetPass(min_opset=PER_AXIS_FLOOR[0], min_ir=PER_AXIS_FLOOR[1])(model)
            notes = (f"raised the opset from {opset} to {PER_AXIS_FLOOR[0]}: DequantizeLinear has no axis below",)
        return Conversion(model, _ranked(qdq.converted), tuple(qdq.left), notes=notes)
    form_on_codes = QLinearForm(model)
    form_on_codes.run()
    return Conversion(model, _ranked(form_on_codes.converted), tuple(form_on_codes.left))


def _ranked(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _require_convertible(model: ir.Model, to: str) -> None:
    """Refuse a float model, and operators that hide their codes."""
    from qtool.convert.operators import code_operator

    found = False
    for node in model.graph.all_nodes():
        operator = code_operator(node)
        found = found or operator is not None or (node.domain == "" and node.op_type in _QUANTIZED)
        if operator is None and node.domain == MICROSOFT and node.op_type in _OPAQUE:
            raise ModelError(
                f"Node '{node.name}' is a {node.op_type} of com.microsoft, which has no counterpart in {to} form.",
                hint="Convert a model of standard ONNX operators; quantize the float model again for another form.",
            )
    if not found:
        raise ModelError(
            "The model is not quantized: it holds no QuantizeLinear, DequantizeLinear, QLinear or Integer operator.",
            hint="Quantize it with 'qtool quantize'.",
        )


def _infer_codes(model: ir.Model) -> None:
    """Types of codes that shape inference does not tell: in bodies, and behind operators of com.microsoft."""
    codes = Codes(model)
    for graph in all_graphs(model):
        for node in graph:
            for value in node.outputs:
                encoding = codes.of(value)
                if value.dtype is not None or encoding is None:
                    continue
                zero = encoding.zero_point
                dtype = zero.dtype if zero is not None else ir.DataType.UINT8
                value.type = ir.TensorType(dtype) if dtype is not None else None
