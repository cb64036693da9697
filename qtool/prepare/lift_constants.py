"""Turn Constant nodes into initializers, and typed protobuf fields into arrays.

A weight that lives in a Constant node's ``float_data`` is decoded element by element at every read; it is decoded
once here. Scope: the top graph, and bodies on request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.serde import TensorProtoTensor

from qtool.prepare.graph_edits import PreparePass, is_onnx_op, plural, tensor_of
from qtool.prepare.light_proto import SMALL_BYTES


class LiftConstantsPass(PreparePass):
    """Replace each Constant node by an initializer of the same value name.

    A Constant that is a graph output stays: an output must be produced by a node to be one in every runtime. Sparse
    constants stay too.
    """

    def describe(self) -> str:
        """One line for the lifted constants."""
        return f"lifted {plural(self.count, 'Constant node')} to initializers"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once."""
        before = self.count
        decoded = [self._lift(graph) for graph in self.scope(model)]
        return ir.passes.PassResult(model, modified=self.count > before or any(decoded))

    def _lift(self, graph: ir.Graph) -> int:
        """Lift the Constants of one graph; the number of tensors that were decoded."""
        decoded = 0
        for node in graph:
            if not is_onnx_op(node, "Constant") or node.outputs[0].is_graph_output():
                continue
            tensor = _tensor_of(node)
            if tensor is None:
                continue
            output = node.outputs[0]
            value = ir.Value(
                name=output.name,
                shape=ir.Shape(tensor.shape.numpy()),
                type=ir.TensorType(tensor.dtype),
                doc_string=output.doc_string,
                const_value=tensor,
                metadata_props=dict(output.metadata_props),
            )
            output.replace_all_uses_with(value)
            graph.remove(node, safe=True)
            graph.register_initializer(value)
            self.count += 1
        for value in graph.initializers.values():
            tensor = value.const_value
            typed = isinstance(tensor, TensorProtoTensor) and not tensor.raw.HasField("raw_data")
            # onnx's C++ functions look for small external tensors (shapes, axes) in the working directory.
            outside = isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= SMALL_BYTES
            if tensor is not None and (typed or outside):
                value.const_value = own_tensor(tensor, value.name)
                decoded += 1
        return decoded


def own_tensor(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """The same tensor as an object of ours: saving a model writes the value's name into its tensor.

    Without this the name of a lifted constant would be written into the caller's model.
    """
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=ir.Shape(tensor.shape.numpy()), name=name)
    array = tensor.numpy()
    if isinstance(tensor, ir.ExternalTensor):
        array = array if tensor.nbytes > SMALL_BYTES else array.copy()  # a copy does not keep the file mapped
    return ir.Tensor(array, dtype=tensor.dtype, name=name, doc_string=tensor.doc_string)


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The value of a Constant node, or None if it has no dense one."""
    if len(node.attributes) != 1:
        return None
    name = node.outputs[0].name
    attribute = next(iter(node.attributes.values()))
    if attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            return own_tensor(tensor_of(attribute), name)
        case "value_float":
            return ir.Tensor(np.asarray(attribute.as_float(), dtype=np.float32), name=name)
        case "value_floats":
            return ir.Tensor(np.asarray(attribute.as_floats(), dtype=np.float32), name=name)
        case "value_int":
            return ir.Tensor(np.asarray(attribute.as_int(), dtype=np.int64), name=name)
        case "value_ints":
            return ir.Tensor(np.asarray(attribute.as_ints(), dtype=np.int64), name=name)
    return None  # strings take part in no computation that qtool reads; sparse_value has no dense array
