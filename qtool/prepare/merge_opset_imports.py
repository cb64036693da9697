"""One import per operator set: "" and "ai.onnx" are the same domain."""

from __future__ import annotations

import onnx_ir as ir

from qtool.prepare.graph_edits import PreparePass


class MergeOpsetImportsPass(PreparePass):
    """Merge the two spellings of the default domain, for the model and its functions.

    Where the two versions differ the later entry counts, as in onnxruntime.
    """

    def describe(self) -> str:
        """One line for the merge."""
        return "merged the opset imports of '' and 'ai.onnx'"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Change the import tables only: onnx_ir already spells the domain of every node ''."""
        before = self.count
        for imports in (model.graph.opset_imports, *(f.opset_imports for f in model.functions.values())):
            if "ai.onnx" in imports:
                merged = {"" if domain == "ai.onnx" else domain: version for domain, version in imports.items()}
                imports.clear()
                imports.update(merged)
                self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)
