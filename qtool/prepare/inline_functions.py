"""Replace calls of the model's local functions by their bodies, so that the top graph shows every operator."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from qtool.prepare.graph_edits import PreparePass, all_graphs, origin_of, plural, set_origin


class InlineFunctionsPass(PreparePass):
    """Inline all local function calls; each resulting node stands for the user's call node.

    Functions that nobody calls stay. If a call cannot be inlined (another opset than the model's, a recursive
    function, a body as argument), all calls stay as they are and the reason is reported: an unknown operator is left
    float.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refusal: str | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """What was inlined, or why nothing was."""
        return super().actions if self._refusal is None else (self._refusal,)

    def describe(self) -> str:
        """One line for the inlined calls."""
        return f"inlined {plural(self.count, 'call')} of local functions"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Check first, on the functions' own declarations: the inliner stops half-way when it meets an obstacle."""
        functions = model.functions
        calls = [node for graph in all_graphs(model) for node in graph if node.op_identifier() in functions]
        if not calls:
            return ir.passes.PassResult(model, modified=False)
        obstacle = self._obstacle(model)
        if obstacle is not None:
            self._refusal = f"left {plural(len(calls), 'call')} of local functions as they are: {obstacle}"
            return ir.passes.PassResult(model, modified=False)
        for node in calls:
            # Written out even when it is the node's own name: the inlined nodes inherit it.
            set_origin(node, origin_of(node), always=True)
        InlinePass()(model)
        for graph in all_graphs(model):
            for node in graph:
                set_origin(node, origin_of(node))
        self.count += len(calls)
        return ir.passes.PassResult(model, modified=True)

    @staticmethod
    def _obstacle(model: ir.Model) -> str | None:
        try:
            InlinePass().requires(model)
        except ir.passes.PreconditionError as error:
            return str(error).splitlines()[0]
        for function in model.functions.values():
            for domain, version in function.opset_imports.items():
                have = model.opset_imports.get(domain, version)
                if have != version:
                    return f"function '{function.name}' needs opset {version} of '{domain}', the model has {have}"
            if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in function.attributes.values()):
                return f"function '{function.name}' takes a graph as an argument"
        return None
