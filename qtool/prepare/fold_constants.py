"""Replace nodes whose inputs are all constants by their result.

This is also what brings weights to light behind Identity, Cast, Transpose or Reshape. Scope: the top graph,
and bodies on request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.evaluate_constants import EVALUATED_OPS, MAX_GROWTH_BYTES, evaluate_node, expanded_bytes
from qtool.prepare.graph_edits import PreparePass, constant_array, is_constant, is_onnx_op, plural


class FoldConstantsPass(PreparePass):
    """Evaluate constant nodes in graph order; the results are initializers under the values' own names.

    A result that is more than 1 MB larger than its inputs is computed only where it is the weight of a MatMul, Gemm
    or Conv: a mask of ConstantOfShape or Expand costs less as two nodes than as a file. DequantizeLinear is never
    evaluated, nor is a node that makes a graph output.
    """

    def describe(self) -> str:
        """One line for the evaluated nodes."""
        return f"evaluated {plural(self.count, 'node')} with constant inputs"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once: it is in topological order, and before the bodies that read its values."""
        before = self.count
        for graph in self.scope(model):
            self._fold(graph, model.graph.opset_imports.get("", 0))
        return ir.passes.PassResult(model, modified=self.count > before)

    def _fold(self, graph: ir.Graph, opset: int) -> None:
        for node in graph:
            if not is_onnx_op(node, *EVALUATED_OPS) or not _is_candidate(node):
                continue
            inputs = [constant_array(value) for value in node.inputs]
            given = sum(a.nbytes for a in inputs if a is not None)
            grows = expanded_bytes(node, inputs) > given + MAX_GROWTH_BYTES
            if grows and not _feeds_weight(node.outputs[0]):
                continue
            results = evaluate_node(node, inputs, opset)
            if results is None:
                continue
            for output, result in zip(node.outputs, results, strict=True):
                if not output.name:
                    continue
                # A Transpose is a strided view; readers of weights want rows.
                tensor = ir.tensor(np.ascontiguousarray(result).reshape(result.shape), name=output.name)
                value = ir.Value(
                    name=output.name,
                    shape=ir.Shape(result.shape),
                    type=ir.TensorType(tensor.dtype),
                    doc_string=output.doc_string,
                    const_value=tensor,
                    metadata_props=dict(output.metadata_props),
                )
                output.replace_all_uses_with(value)
                graph.register_initializer(value)
            graph.remove(node, safe=True)
            self.count += 1


def _is_candidate(node: ir.Node) -> bool:
    if not node.inputs or any(value is not None and not is_constant(value) for value in node.inputs):
        return False
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    return not any(value.is_graph_output() for value in node.outputs)


def _feeds_weight(value: ir.Value) -> bool:
    """Whether the value ends as a weight, directly or through Transpose and Reshape."""
    for node, index in value.uses():
        if is_onnx_op(node, "MatMul", "Gemm", "Conv", "ConvTranspose") and index == 1:
            return True
        if is_onnx_op(node, "LSTM") and index in (1, 2):
            return True
        if (
            is_onnx_op(node, "Transpose", "Reshape", "Cast", "Identity")
            and index == 0
            and _feeds_weight(node.outputs[0])
        ):
            return True
    return False
