"""Replace calls of the model's local functions by their bodies, where that is the only way to what is inside."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from qtool.prepare.graph_edits import PreparePass, all_graphs, origin_of, plural, set_origin


class InlineFunctionsPass(PreparePass):
    """Inline calls of local functions; each resulting node stands for the user's call node.

    Args:
        wanted: Operators of ``ai.onnx``; functions that hold none of them, at any depth, stay, and so do their calls.
            None inlines all.

    Functions that nobody calls stay. If a call cannot be inlined (another opset than the model's, a recursive
    function, a body as argument), all calls stay as they are and the reason is reported: an unknown operator is left
    float.
    """

    def __init__(self, wanted: Collection[str] | None = None) -> None:
        super().__init__()
        self._wanted = wanted
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
        chosen = [key for key in functions if self._wanted is None or _holds(key, model, self._wanted, set())]
        calls = [node for graph in all_graphs(model) for node in graph if node.op_identifier() in chosen]
        if not calls:
            return ir.passes.PassResult(model, modified=False)
        obstacle = self._obstacle(model, [model.functions[key] for key in chosen])
        if obstacle is not None:
            self._refusal = f"left {plural(len(calls), 'call')} of local functions as they are: {obstacle}"
            return ir.passes.PassResult(model, modified=False)
        for node in calls:
            # Written out even when it is the node's own name: the inlined nodes inherit it.
            set_origin(node, origin_of(node), always=True)
        InlinePass(criteria=lambda function: function.identifier() in chosen)(model)
        for graph in all_graphs(model):
            for node in graph:
                set_origin(node, origin_of(node))
        self.count += len(calls)
        return ir.passes.PassResult(model, modified=True)

    @staticmethod
    def _obstacle(model: ir.Model, chosen: Iterable[ir.Function]) -> str | None:
        try:
            InlinePass().requires(model)
        except ir.passes.PreconditionError as error:
            return str(error).splitlines()[0]
        for function in chosen:
            for domain, version in function.opset_imports.items():
                have = model.opset_imports.get(domain, version)
                if have != version:
                    return f"function '{function.name}' needs opset {version} of '{domain}', the model has {have}"
            if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in function.attributes.values()):
                return f"function '{function.name}' takes a graph as an argument"
        return None


def _holds(
    key: ir.OperatorIdentifier, model: ir.Model, wanted: Collection[str], seen: set[ir.OperatorIdentifier]
) -> bool:
    """Whether a function, or one that it calls, holds one of the operators, in bodies too."""
    if key in seen:
        return False  # a recursive function is refused later
    seen.add(key)
    for node in model.functions[key].all_nodes():
        if node.op_identifier() in model.functions:
            if _holds(node.op_identifier(), model, wanted, seen):
                return True
        elif node.domain == "" and node.op_type in wanted:
            return True
    return False
