"""Read tensors of attributes that lie in external files: only initializers can be written to a data file again."""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, all_graphs, tensor_of


class LoadAttributeTensorsPass(PreparePass):
    """Take external tensors of attributes (constants in the bodies of If and Loop) into memory.

    Scopes: the top graph and its bodies.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace attributes one by one."""
        modified = False
        for node in (node for graph in all_graphs(model) for node in graph):
            for name, attribute in list(node.attributes.data.items()):
                if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
                    continue
                tensor = tensor_of(attribute)
                if isinstance(tensor, ir.ExternalTensor):
                    (loaded,) = ir.external_data.convert_tensors_from_external([tensor])
                    node.attributes[name] = ir.AttrTensor(name, loaded)
                    modified = True
        return ir.passes.PassResult(model, modified=modified)
