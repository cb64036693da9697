"""Take weights off the list of graph inputs.

Before IR 4 every initializer had to be a graph input too, which made each weight overridable by the caller and so not
a constant. Scope: the top graph.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass, plural

_MIN_IR = 4  # initializers need not be graph inputs from here on


class HideInitializerInputsPass(PreparePass):
    """Remove graph inputs that have an initializer, and raise the IR version to 4 where that makes it legal."""

    def describe(self) -> str:
        """One line for the removed inputs."""
        return f"took {plural(self.count, 'initializer')} off the graph inputs"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Keep the order of the remaining inputs."""
        graph = model.graph
        kept = [value for value in graph.inputs if not value.is_initializer()]
        removed = len(graph.inputs) - len(kept)
        if not removed:
            return ir.passes.PassResult(model, modified=False)
        graph.inputs.clear()
        graph.inputs.extend(kept)
        for value in graph.initializers.values():
            if value.const_value is not None:  # an input may be declared with less than its tensor knows
                value.type = ir.TensorType(value.const_value.dtype)
                value.shape = ir.Shape(value.const_value.shape.numpy())
        model.ir_version = max(model.ir_version, _MIN_IR)
        self.count += removed
        return ir.passes.PassResult(model, modified=True)
