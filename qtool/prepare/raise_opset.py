"""Raise the ``ai.onnx`` opset through onnx's version converter, and the IR version to its floor.

The stamp is never just changed: the operators between the two versions mean other things (Squeeze axes, Softmax,
Clip, Upsample). What the converter cannot carry over is refused. Scope: the top graph and, by the converter, bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from qtool.errors import ModelError
from qtool.prepare.graph_edits import (
    NameAllocator,
    PreparePass,
    all_graphs,
    constant_array,
    input_at,
    is_onnx_op,
    origin_of,
    plural,
    set_origin,
    string_attribute,
)
from qtool.prepare.light_proto import light_proto

if TYPE_CHECKING:
    import onnx

# Operators that changed their meaning at an opset, and that the converter carries over as if they had not. Found by
# comparing numbers before and after (onnx 1.23); the changes that it does adapt are tests.
_CHANGED_MEANING = {
    "PRelu": (7, "its slope was per channel before opset 7"),
    "Scan": (9, "it had a batch axis before opset 9"),
    "Hardmax": (13, "it flattened its input before opset 13"),
    "GroupNormalization": (21, "its scale and bias were per group before opset 21"),
}
_HINT = "Export the model again with a newer opset."


class RaiseOpsetPass(PreparePass):
    """Convert a model below ``min_opset`` to ``min_opset``; a model at or above it keeps its opset.

    Args:
        min_opset: The lowest version of ``ai.onnx`` that the result may import.
        min_ir: The lowest IR version of the result.
    """

    def __init__(self, *, min_opset: int, min_ir: int) -> None:
        super().__init__()
        self.min_opset = min_opset
        self.min_ir = min_ir
        self._from = 0
        self._dropped = 0

    def describe(self) -> str:
        """One line for the conversion."""
        dropped = f", without {plural(self._dropped, 'local function')} that nobody calls" if self._dropped else ""
        return f"raised the opset from {self._from} to {self.min_opset}{dropped}"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert without weights, then put them back.

        Raises:
            ModelError: If the converter fails, or its result is not a valid model with the same interface.
        """
        modified = model.ir_version < self.min_ir
        model.ir_version = max(model.ir_version, self.min_ir)
        opset = model.graph.opset_imports.get("")
        if opset is None:
            if any(node.domain == "" for graph in all_graphs(model) for node in graph):
                raise ModelError("The model imports no version of the domain 'ai.onnx', but uses its operators.")
            model.graph.opset_imports[""] = self.min_opset
            return ir.passes.PassResult(model, modified=True)
        if opset >= self.min_opset:
            return ir.passes.PassResult(model, modified=modified)
        self._from = opset
        self._drop_functions(model)
        _require_known_operators(model, opset, self.min_opset)
        scales = _scales_of_resizes(model) if opset <= 10 < self.min_opset else {}
        converted = self._convert(model)
        _restore(model, converted)
        if scales:
            _set_resize_modes(converted, scales, opset, self.min_opset)
        model.graph = converted.graph
        self.count += 1
        return ir.passes.PassResult(model, modified=True)

    def _drop_functions(self, model: ir.Model) -> None:
        """Local functions must import the model's opset, and the converter does not convert them."""
        for node in (node for graph in all_graphs(model) for node in graph):
            if node.op_identifier() in model.functions:
                raise ModelError(
                    f"Local function '{node.op_type}' (node '{node.name}') cannot be converted from opset {self._from} "
                    f"to {self.min_opset}: its calls could not be inlined.",
                    hint=_HINT,
                )
        stale = [key for key, f in model.functions.items() if f.opset_imports.get("", self.min_opset) < self.min_opset]
        for key in stale:
            del model.functions[key]
        self._dropped += len(stale)

    def _convert(self, model: ir.Model) -> ir.Model:
        import onnx
        from onnx import version_converter

        proto, heavy = light_proto(model)
        try:
            result = version_converter.convert_version(proto, self.min_opset)
        except Exception as error:  # RuntimeError and IndexError from C++, ValueError from Python
            raise ModelError(_refusal(proto, error, self._from, self.min_opset), hint=_HINT) from error
        try:
            onnx.checker.check_model(result)
        except onnx.checker.ValidationError as error:
            line = str(error).splitlines()[0]
            raise ModelError(
                f"The model does not check after its conversion from opset {self._from} to {self.min_opset}: {line}",
                hint=_HINT,
            ) from error
        converted = ir.from_proto(result)
        self._compare_interface(proto, converted)
        by_name = {value.name or "": value for value in converted.graph.inputs}
        kept = [value for value in converted.graph.inputs if value.name not in {v.name for v in heavy}]
        converted.graph.inputs.clear()
        converted.graph.inputs.extend(kept)
        for value in heavy:
            ours = by_name[value.name or ""]
            ours.const_value = value.const_value
            converted.graph.register_initializer(ours)
        return converted

    def _compare_interface(self, before: onnx.ModelProto, after: ir.Model) -> None:
        pairs = (
            ([info.name for info in before.graph.input], [value.name for value in after.graph.inputs]),
            ([info.name for info in before.graph.output], [value.name for value in after.graph.outputs]),
        )
        for expected, found in pairs:
            if expected != found:
                raise ModelError(
                    f"The conversion from opset {self._from} to {self.min_opset} changed the names {expected} "
                    f"to {found}.",
                    hint=_HINT,
                )


def _require_known_operators(model: ir.Model, opset: int, target: int) -> None:
    """Refuse what the converter would carry over with another meaning, or refuse with a garbled message."""
    import onnx

    for graph in all_graphs(model):
        for node in graph:
            if node.domain != "" or node.op_identifier() in model.functions:
                continue
            try:
                onnx.defs.get_schema(node.op_type, opset, "")
            except onnx.defs.SchemaError:
                what = f"it is not in opset {opset} of ai.onnx"
            else:
                if node.op_type == "Upsample" and "height_scale" in node.attributes:
                    what = "onnx has no conversion for its experimental form"
                else:
                    changed, what = _CHANGED_MEANING.get(node.op_type, (0, ""))
                    if not opset < changed <= target:
                        continue
            raise ModelError(
                f"Operator {node.op_type} (node '{node.name}') cannot be converted from opset {opset} "
                f"to {target}: {what}.",
                hint=_HINT,
            )


def _refusal(proto: onnx.ModelProto, error: Exception, opset: int, target: int) -> str:
    """One line with the operator, if a single one can be blamed."""
    node = _culprit(proto, target)
    subject = "The model" if node is None else f"Operator {node.op_type} (node '{node.name}')"
    reason = " ".join(str(error).split()).rpartition("failed: ")[2][:200]
    return f"{subject} cannot be converted from opset {opset} to {target}: {reason}"


def _culprit(proto: onnx.ModelProto, target: int) -> onnx.NodeProto | None:
    """The first node that cannot be converted on its own."""
    import onnx
    from onnx import version_converter

    infos = {info.name: info for info in (*proto.graph.input, *proto.graph.value_info)}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        single = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
        single.graph.name = "single"
        single.graph.node.append(node)
        for name in dict.fromkeys(name for name in node.input if name):
            if name in constants:
                single.graph.initializer.append(constants[name])
            else:
                single.graph.input.append(infos.get(name) or onnx.helper.make_empty_tensor_value_info(name))
        single.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name)
        try:
            version_converter.convert_version(single, target)
        except Exception:  # whatever the converter raises; the caller reports its first error
            culprit: onnx.NodeProto = node
            return culprit
    return None


def _restore(model: ir.Model, converted: ir.Model) -> None:
    """Give the converted graph what the converter does not carry: names of nodes, metadata, documentation, types."""
    old, new = model.graph, converted.graph
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    for domain, version in old.opset_imports.items():
        new.opset_imports.setdefault(domain, version)
    by_name = {node.name or "": node for node in old}
    makers = {value.name or "": node for node in old for value in node.outputs if value.name}
    values = {value.name or "": value for node in old for value in node.outputs if value.name}
    values.update({value.name or "": value for value in (*old.inputs, *old.initializers.values())})
    taken = {node.name or "" for node in new if node.name in by_name}
    for node in new:
        if node.name not in by_name:
            # A replaced operator (Upsample -> Resize): the node that now makes the same value is the same node.
            maker = next((makers[v.name] for v in node.outputs if v.name and v.name in makers), None)
            if maker is not None and (maker.name or "") not in taken:
                node.name = maker.name
                taken.add(maker.name or "")
        source = by_name.get(node.name or "")
        if source is not None:
            node.metadata_props.update(source.metadata_props)
            node.doc_string = source.doc_string
    names = NameAllocator(converted)
    for node in reversed(new):
        if node.name in by_name:
            continue
        node.name = names.node(f"node_{node.op_type}")
        reader = next((use.node for value in node.outputs for use in value.uses() if use.node.graph is new), None)
        maker = next((makers[v.name] for v in node.outputs if v.name and v.name in makers), None)
        if maker is not None:
            set_origin(node, origin_of(maker))
        elif reader is not None:
            set_origin(node, origin_of(reader))
    for value in (*new.inputs, *new.initializers.values(), *(v for node in new for v in node.outputs)):
        source_value = values.get(value.name or "")
        if source_value is not None:
            value.doc_string = source_value.doc_string
            value.metadata_props.update(source_value.metadata_props)


def _scales_of_resizes(model: ir.Model) -> dict[str, np.ndarray | None]:
    """The scales of each Upsample and Resize of the top graph, by the name of its output; None if not constant."""
    result: dict[str, np.ndarray | None] = {}
    for node in model.graph:
        if is_onnx_op(node, "Upsample", "Resize"):
            attribute = node.attributes.get("scales")
            scales = np.asarray(attribute.as_floats()) if attribute is not None else constant_array(input_at(node, 1))
            if scales is None and node.op_type == "Upsample":
                scales = np.ones(1)  # the standard allows it no scale below 1
            result[node.outputs[0].name or ""] = scales
    return result


def _set_resize_modes(converted: ir.Model, scales: dict[str, np.ndarray | None], opset: int, target: int) -> None:
    """Write out what Upsample and Resize meant before opset 11: asymmetric coordinates, rounded down.

    The converter leaves the defaults of Resize-11 (half_pixel, round_prefer_floor), which is another function.
    Shrinking by nearest rounded up in the runtimes of the time; a mixture of both has no counterpart.
    """
    for node in converted.graph:
        if not is_onnx_op(node, "Resize") or node.outputs[0].name not in scales:
            continue
        factors = scales[node.outputs[0].name or ""]
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "asymmetric"
        )
        if string_attribute(node, "mode", "nearest") != "nearest":
            continue
        if factors is None or ((factors > 1).any() and (factors < 1).any()):
            what = "are not constant" if factors is None else "both enlarge and shrink"
            raise ModelError(
                f"Operator Resize (node '{node.name}') cannot be converted from opset {opset} to {target}: "
                f"its scales {what}.",
                hint=_HINT,
            )
        rounding = "ceil" if (factors < 1).any() else "floor"
        node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", rounding)
