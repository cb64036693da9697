"""Remove Identity, Cast and CastLike to the type that is there, and Dropout in inference mode.

A body that captures such an output reads the input instead. Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, constant_array, input_at, is_onnx_op, plural, take_over


class EliminateIdentityPass(PreparePass):
    """Connect the readers of an identity to its input.

    An identity that makes a graph input, an initializer or another graph output into a graph output stays: the names of
    inputs and outputs are the model's interface.
    """

    def describe(self) -> str:
        """One line for the removed nodes."""
        return f"removed {plural(self.count, 'identity node')}"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once."""
        before = self.count
        for graph in self.scope(model):
            self._eliminate(graph)
        return ir.passes.PassResult(model, modified=self.count > before)

    def _eliminate(self, graph: ir.Graph) -> None:
        for node in graph:
            source = input_at(node, 0)
            if source is None or not _is_identity(node):
                continue
            output = node.outputs[0]
            if output.is_graph_output():
                producer = source.producer()
                if producer is None or producer.graph is not graph or source.is_graph_output():
                    continue
                take_over(source, output)
            else:
                output.replace_all_uses_with(source)
            graph.remove(node, safe=True)
            self.count += 1


def _is_identity(node: ir.Node) -> bool:
    if is_onnx_op(node, "Identity"):
        return True
    if is_onnx_op(node, "Cast", "CastLike"):
        # function bodies make weights the type of their activations: what is one already is a constant weight
        return _type_before(node) is not None and _type_before(node) == _type_after(node)
    if not is_onnx_op(node, "Dropout") or any(v.is_graph_output() or v.uses() for v in node.outputs[1:]):
        return False
    training = input_at(node, 2)
    if training is None:  # before opset 7 the mode was an attribute, with inference as 1
        return "is_test" not in node.attributes
    mode = constant_array(training)
    return mode is not None and not bool(mode.any())


def _type_before(node: ir.Node) -> ir.DataType | None:
    source = input_at(node, 0)
    return None if source is None else source.dtype


def _type_after(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "CastLike":
        target = input_at(node, 1)
        return None if target is None else target.dtype
    to = node.attributes.get("to")
    return None if to is None or to.is_ref() else ir.DataType(to.as_int())
