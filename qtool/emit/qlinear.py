"""Operator form: QLinearMatMul, QLinearConv and data movers on codes; QDQ form for what ai.onnx has no operator for."""

from __future__ import annotations

from typing import ClassVar

import onnx
import onnx_ir as ir

from qtool.emit.rewriter import Rewriter
from qtool.plan import Decision, Form


class QLinearRewriter(Rewriter):
    """Only ai.onnx operators, so that the file runs on any conforming runtime."""

    format: ClassVar[str] = "qlinear"

    def is_integer_operator(self, decision: Decision) -> bool:
        """See :meth:`Rewriter.is_integer_operator`."""
        if decision.written_as == "qdq":
            return False
        if decision.form is Form.MOVER:
            return self._moves_codes(decision)
        if decision.form is not Form.OPERATOR or not decision.outputs:
            return False
        # with a bias it is written as QDQ: QLinearMatMul has no place for one, and an Add behind would round twice
        return decision.op_type == "Conv" or decision.bias is None

    def integer_operator(self, decision: Decision) -> None:
        """See :meth:`Rewriter.integer_operator`."""
        if decision.form is Form.MOVER:
            self._mover(decision)
        elif decision.op_type == "Conv":
            self._conv(decision)
        else:
            self._product(decision)

    def _conv(self, decision: Decision) -> None:
        node = self._nodes[decision.node]
        inputs = [
            *self._operands(decision, node),
            *self.constants.parameters(decision.outputs[0], self.params(decision.outputs[0])),
        ]
        if decision.bias is not None:
            inputs.append(self.bias(decision).codes)
        self.replace_node(decision, "QLinearConv", inputs)

    def _product(self, decision: Decision) -> None:
        """MatMul, or a Gemm without a bias, which in its normal form is the same product."""
        inputs = self._operands(decision, self._nodes[decision.node])
        inputs += self.constants.parameters(decision.outputs[0], self.params(decision.outputs[0]))
        # a Gemm may spell out the defaults of attributes that a product does not have
        self.replace_node(decision, "QLinearMatMul", inputs, attributes=False)

    def _operands(self, decision: Decision, node: ir.Node) -> list[ir.Value | None]:
        """Codes, scale and zero point of both factors, whichever of them is constant."""
        activations = dict(decision.inputs)
        operands: list[ir.Value | None] = []
        for index in (0, 1):
            if index in activations:
                name = activations[index]
                operands += [self.codes(name), *self.constants.parameters(name, self.params(name))]
            else:
                weight = self.weight(node, index, decision)
                operands += [weight.codes, weight.scale, weight.zero_point]
        return operands

    def _mover(self, decision: Decision) -> None:
        node = self._nodes[decision.node]
        names = dict(decision.inputs)
        inputs = [self.codes(names[i]) if i in names else value for i, value in enumerate(node.inputs)]
        if node.op_type == "Pad":
            # what was padded with 0 is padded with the code of 0; the other modes ignore the value, which is a float
            _, zero = self.constants.parameters(decision.inputs[0][1], self.params(decision.inputs[0][1]))
            value = zero if self._mode(node) == "constant" else None
            inputs = [*inputs[:2], value, *inputs[3:]]
        self.replace_node(decision, node.op_type, inputs)

    def _mode(self, node: ir.Node) -> str:
        mode = node.attributes.get("mode")
        return "constant" if mode is None else mode.as_string()

    def _moves_codes(self, decision: Decision) -> bool:
        """Whether the operator's schema lets its data be of the codes' type at this opset."""
        dtype = self.params(decision.inputs[0][1]).dtype
        try:
            schema = onnx.defs.get_schema(decision.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            return False
        return f"tensor({dtype.name})" in schema.inputs[0].types
