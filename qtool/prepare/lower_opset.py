"""Lower the ``ai.onnx`` opset of a model that is newer than the runtime's QuantizeLinear, where nothing changes.

The stamp may be lowered only if every operator's definition is the same at both versions, but for element types that
were added: then the graph means the same at the lower one. Scope: the whole model, bodies included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from qtool.errors import ModelError
from qtool.prepare.graph_edits import PreparePass, all_graphs, int_attribute, string_attribute
from qtool.prepare.light_proto import light_proto

if TYPE_CHECKING:
    import onnx


class LowerOpsetPass(PreparePass):
    """Lower a model above ``max_opset`` to ``max_opset``; a model at or below it keeps its opset.

    Args:
        max_opset: The highest version of ``ai.onnx`` that the result may import.
    """

    def __init__(self, *, max_opset: int) -> None:
        super().__init__()
        self.max_opset = max_opset
        self._from = 0

    def describe(self) -> str:
        """One line for the change."""
        return f"lowered the opset from {self._from} to {self.max_opset}: no operator of the model differs"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Compare definitions, then check the types.

        Raises:
            ModelError: If an operator differs, or a type is not allowed at the lower version. The model is unchanged.
        """
        opset = model.graph.opset_imports.get("", self.max_opset)
        if opset <= self.max_opset:
            return ir.passes.PassResult(model, modified=False)
        self._from = opset
        called = {node.op_identifier() for graph in all_graphs(model) for node in graph}
        newer = [key for key, f in model.functions.items() if f.opset_imports.get("", 0) > self.max_opset]
        for key in newer:
            if key in called:
                raise self._refusal(f"local function '{key[1]}' is called, and could not be inlined")
        for graph in all_graphs(model):
            for node in graph:
                why = _difference(node, opset, self.max_opset) if node.domain == "" else None
                if why is not None:
                    raise self._refusal(f"{node.op_type} (node '{node.name}') {why}")
        functions = {key: model.functions.pop(key) for key in newer}
        model.graph.opset_imports[""] = self.max_opset
        try:
            self._check(model)
        except ModelError:
            model.graph.opset_imports[""] = opset
            model.functions.update(functions)
            raise
        for graph in all_graphs(model):
            for node in graph:
                if node.domain == "" and node.op_type == "SpaceToDepth":
                    node.attributes.pop("mode", None)  # its default; the lower version has no such attribute
        self.count += 1
        return ir.passes.PassResult(model, modified=True)

    def _check(self, model: ir.Model) -> None:
        import onnx

        proto, _ = light_proto(model)
        for node in proto.graph.node:
            if node.op_type == "SpaceToDepth":
                kept = [a for a in node.attribute if a.name != "mode"]
                del node.attribute[:]
                node.attribute.extend(kept)
        try:
            onnx.checker.check_model(proto, full_check=True)
        except Exception as error:  # ValidationError, InferenceError, and what else C++ raises
            raise self._refusal(" ".join(str(error).split())[:200]) from error

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"The model's opset {self._from} is newer than onnxruntime's QuantizeLinear (up to {self.max_opset}) and "
            f"cannot be lowered: {why}.",
            hint=f"Export the model with opset {self.max_opset} or lower.",
        )


def _difference(node: ir.Node, opset: int, target: int) -> str | None:
    """Why a node does not mean the same at both versions, or None."""
    import onnx

    try:
        new = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return f"is not in opset {opset}"
    if new.since_version <= target:
        return None
    try:
        old = onnx.defs.get_schema(node.op_type, target, "")
    except onnx.defs.SchemaError:
        return f"is not in opset {target}"
    same = _definition(new) == _definition(old) or _means_the_same(node, new.since_version)
    return None if same else f"was changed in opset {new.since_version}"


def _means_the_same(node: ir.Node, since: int) -> bool:
    """Definitions that were worded anew, for nodes that are not affected. Types are the checker's business."""
    if (node.op_type, since) == ("SpaceToDepth", 28):  # got a mode
        return string_attribute(node, "mode", "DCR") == "DCR"
    if (node.op_type, since) == ("BitShift", 28):  # got signed types
        return True
    if (node.op_type, since) == ("Mod", 28):  # got fmod=0 for floats
        x = node.inputs[0]
        integer = x is not None and x.dtype is not None and x.dtype.is_integer()
        return integer or int_attribute(node, "fmod", 0) == 1
    return False


def _definition(schema: onnx.defs.OpSchema) -> tuple[Any, ...]:
    """All that the standard says about an operator, but for the element types that it takes."""

    def parameters(side: Any) -> list[tuple[str, str, str]]:
        return [(p.name, str(p.option), p.description) for p in side]

    attributes = {
        name: (str(a.type), str(a.default_value), a.required, a.description) for name, a in schema.attributes.items()
    }
    return attributes, parameters(schema.inputs), parameters(schema.outputs), schema.doc
