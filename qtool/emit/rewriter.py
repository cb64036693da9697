"""Turn a plan into nodes: what both formats share.

Each quantized tensor has up to three forms in the new graph: the float value of the old graph, its codes, and its
dequantized value. ``codes`` and ``real`` make the latter two on demand; :meth:`Rewriter.finish` sends float readers of
a tensor that now only exists quantized to its dequantized form, under its old name.

The branches of If are graphs like the top one: each has a rewriter, and all of them share names and constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from qtool.emit.constants import Codes, Constants, QuantizedConstant
from qtool.emit.sink import sink_dequantizers
from qtool.errors import ModelError
from qtool.plan import Decision, Form, Plan
from qtool.prepare.branches import if_branches, remove_captures
from qtool.prepare.graph_edits import ORIGIN_KEY, NameAllocator
from qtool.prepare.remove_dead_nodes import RemoveDeadNodesPass
from qtool.qparams import QParams


class Rewriter(ABC):
    """Base of the emitters. A subclass says which decisions become integer operators.

    Args:
        model: A model that may be changed: a clone of the prepared one.
        plan: A plan with parameters.
        dedicated_pairs: Give each reader its own QuantizeLinear and DequantizeLinear.
        inside: The rewriter of the top graph, and the branch of it that this one is for.
        codes: Codes of weights that other models of the same source share.
    """

    format: ClassVar[str]

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        *,
        dedicated_pairs: bool = False,
        inside: tuple[Rewriter, ir.Graph] | None = None,
        codes: Codes | None = None,
    ) -> None:
        self.model = model
        self.graph = model.graph if inside is None else inside[1]
        self.plan = plan
        self.dedicated_pairs = dedicated_pairs
        self.names: NameAllocator = NameAllocator(model) if inside is None else inside[0].names
        self._shared_codes: Codes | None = codes if inside is None else inside[0]._shared_codes
        self._constants: dict[int, Constants] = {} if inside is None else inside[0]._constants
        self.constants = self._constants_in(self.graph)
        self.opset = model.graph.opset_imports[""]
        self._nodes = {node.name or "": node for node in self.graph}
        self._values: dict[str, ir.Value] = {v.name or "": v for v in self.graph.inputs}
        for node in self.graph:
            self._values.update((o.name or "", o) for o in node.outputs)
        self._codes: dict[str, ir.Value] = {}
        self._real: dict[str, ir.Value] = {}
        self._weights: dict[str, ir.Value] = {}
        self._quantizers: set[int] = set()  # QuantizeLinear nodes that were added: they read float values on purpose
        self._written: set[str] = set()  # tensors whose codes an integer operator writes: they have no float form
        self._dead: dict[ir.Node, None] = {}  # replaced nodes, in order; they leave the graph at the end

    # ------------------------------------------------------------------------------------------------ to be specialized

    @abstractmethod
    def is_integer_operator(self, decision: Decision) -> bool:
        """Whether the decision becomes an operator that reads and writes codes."""

    @abstractmethod
    def integer_operator(self, decision: Decision) -> None:
        """Write a decision as that operator."""

    # -------------------------------------------------------------------------------------------------------- the whole

    def run(self) -> ir.Model:
        """Rewrite every decision, in branches too, then clean up. Returns the model that was given."""
        branches = list(if_branches(self.graph))
        self._rewrite()
        for branch in branches:
            type(self)(self.model, self.plan, dedicated_pairs=self.dedicated_pairs, inside=(self, branch))._rewrite()
        remove_captures(self.model)
        common_passes.RemoveUnusedNodesPass()(self.model)
        RemoveDeadNodesPass(bodies=True)(self.model)  # constants of bodies, too
        common_passes.TopologicalSortPass()(self.model)
        for node in self.model.graph.all_nodes():
            node.metadata_props.pop(ORIGIN_KEY, None)
        return self.model

    def _rewrite(self) -> None:
        """Rewrite the decisions about the nodes of one graph."""
        decisions = [decision for decision in self.plan.decisions if decision.node in self._nodes]
        for decision in decisions:
            if decision.form is Form.WEIGHT_ONLY and decision.op_type == "Gather":
                self._table(decision)
            elif self.is_integer_operator(decision):
                self.integer_operator(decision)
            else:
                self._qdq(decision)
        for decision in decisions:
            for name in decision.outputs:
                self._hand_over(name)
        if self._dead:
            self.graph.remove(list(self._dead), safe=True)
        if self.opset >= 21 and any(p is not None and p.dtype.name == "int8" for p in self.plan.tensors.values()):
            sink_dequantizers(self.graph, self.names)

    def _hand_over(self, name: str) -> None:
        """Send what still reads the float form of a quantized output to its dequantized form."""
        value = self._values[name]
        readers = [
            (node, index) for node, index in value.uses() if id(node) not in self._quantizers and node not in self._dead
        ]
        is_output = value.is_graph_output()
        if not readers and not is_output:
            return
        real = self.real(name)
        for node, index in readers:
            node.replace_input_with(index, real)
        if is_output:
            outputs = self.graph.outputs
            for position, output in enumerate(outputs):
                if output is value:
                    outputs[position] = real
            real.doc_string = value.doc_string
            real.metadata_props.update(value.metadata_props)
        if is_output or value.producer() in self._dead:
            value.name = self.names.value(f"{name}_float")
            real.name = name

    # ------------------------------------------------------------------------------------------------ forms of a tensor

    def params(self, name: str) -> QParams:
        """Parameters of a quantized activation."""
        params = self.plan.tensors[name]
        if params is None:
            raise ModelError(f"The plan has no parameters for '{name}'; a plan without statistics cannot be emitted.")
        return params

    def codes(self, name: str) -> ir.Value:
        """The codes of a tensor, made by a QuantizeLinear behind its float value if no operator wrote them."""
        if name not in self._codes:
            self._codes[name] = self._quantize(name)
        return self._codes[name]

    def real(self, name: str) -> ir.Value:
        """The dequantized value of a tensor: one for all readers, or one for each where pairs are dedicated."""
        if self.dedicated_pairs:
            return self._dequantize(name, self.codes(name) if name in self._written else self._quantize(name))
        if name not in self._real:
            self._real[name] = self._dequantize(name, self.codes(name))
        return self._real[name]

    def _quantize(self, name: str, params: QParams | None = None, *, base: str | None = None) -> ir.Value:
        """A QuantizeLinear behind a float value, named after ``base`` if the codes are those of another tensor."""
        value, params, base = self._values[name], params or self.params(name), base or name
        scale, zero = self.constants.parameters(name, params)
        codes = self.new_value(f"{base}_quantized", ir.DataType(params.dtype.onnx), value.shape)
        node = self.new_node("QuantizeLinear", [value, scale, zero], f"{base}_QuantizeLinear", [codes])
        self._quantizers.add(id(node))
        self._insert(node, value.producer())
        return codes

    def _dequantize(self, name: str, codes: ir.Value) -> ir.Value:
        scale, zero = self.constants.parameters(name, self.params(name))
        real = self.new_value(f"{name}_dequantized", ir.DataType.FLOAT, self._values[name].shape)
        node = self.new_node("DequantizeLinear", [codes, scale, zero], f"{name}_DequantizeLinear", [real])
        self._insert(node, codes.producer())
        return real

    def dequantized_constant(self, constant: QuantizedConstant) -> ir.Value:
        """A DequantizeLinear of a constant, one for each constant."""
        key = constant.codes.name or ""
        if key not in self._weights:
            base = (key.removesuffix("_quantized")) or key
            real = self.new_value(f"{base}_dequantized", ir.DataType.FLOAT, constant.codes.shape)
            inputs: list[ir.Value | None] = [constant.codes, constant.scale]
            if constant.zero_point is not None:
                inputs.append(constant.zero_point)
            attributes = {} if constant.axis is None else {"axis": constant.axis}
            node = self.new_node("DequantizeLinear", inputs, f"{base}_DequantizeLinear", [real], attributes)
            self._insert(node, None)
            self._weights[key] = real
        return self._weights[key]

    # ------------------------------------------------------------------------------------------------- forms of a node

    def _qdq(self, decision: Decision) -> None:
        """DequantizeLinear -> the float operator -> QuantizeLinear."""
        node = self._nodes[decision.node]
        for weight in decision.weights:
            node.replace_input_with(weight.index, self.dequantized_constant(self.weight(node, weight.index, decision)))
        for index, name in decision.inputs:
            node.replace_input_with(index, self.real(name))
        if decision.bias is not None:
            holder = self._nodes[decision.bias.node]
            holder.replace_input_with(decision.bias.index, self.dequantized_constant(self.bias(decision)))
        if decision.clamp_apart is not None:
            self._write_apart(self._nodes[decision.clamp_apart])
        if decision.rescale != 1.0:
            self._rescaled_output(decision, node.outputs[0])
        for name in decision.outputs:
            self.codes(name)

    def _write_apart(self, clamp: ir.Node) -> None:
        """Max and Min in the place of a Relu or Clip."""
        low, high = (clamp.inputs[i] if i < len(clamp.inputs) else None for i in (1, 2))
        if clamp.op_type == "Relu":
            low = self.constants.array("zero", np.zeros((), np.float32))
        elif self.opset < 11:
            low, high = (
                self.constants.array(name, np.asarray(clamp.attributes[name].as_float(), np.float32))
                if name in clamp.attributes
                else None
                for name in ("min", "max")
            )
        value, output = clamp.inputs[0], clamp.outputs[0]
        bounds = [(op, bound) for op, bound in (("Max", low), ("Min", high)) if bound is not None]
        if not bounds:
            return
        added: list[ir.Node] = []
        for op, bound in bounds:
            result = self.new_value(f"{output.name}_{op}", ir.DataType.FLOAT, output.shape)
            added.append(self.new_node(op, [value, bound], f"{clamp.name}_{op}", [result]))
            value = result
        self.graph.insert_after(clamp, added)
        self._take_over(output, added[-1].outputs[0])
        self._dead[clamp] = None

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        """Let a value take the place and the name of another one, whose node leaves the graph."""
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        self._values[name or ""] = new
        old.name = self.names.value(f"{name}_float")
        new.name = name

    def _table(self, decision: Decision) -> None:
        """Gather codes; they become floats by one scale, or by scales that are gathered like them.

        Opset 21 has a DequantizeLinear with one scale per row of whatever rank; below it, that is a Cast and a Mul.
        """
        node, params = self._nodes[decision.node], decision.weights[0].params
        source, indices, output = node.inputs[0], node.inputs[1], node.outputs[0]
        assert source is not None, "Bug: a Gather without a table"
        assert params is not None, "Bug: a planned table without parameters"
        codes = self.constants.codes(source, params)
        rows = self.new_value(f"{output.name}_quantized", ir.DataType(params.dtype.onnx), output.shape)
        real = self.new_value(f"{output.name}_dequantized", ir.DataType.FLOAT, output.shape)
        gather = ir.node("Gather", [codes, indices], None, outputs=[rows], name=node.name, doc_string=node.doc_string)
        for attribute in node.attributes.values():
            gather.attributes.add(attribute)
        if not params.scale.ndim:
            inputs: list[ir.Value | None] = [rows, *self.constants.parameters(source.name or "", params)]
            added = [gather, self.new_node("DequantizeLinear", inputs, f"{node.name}_DequantizeLinear", [real])]
        else:
            added = [gather, *self._scaled_rows(node, params, rows, real)]
        self.graph.insert_after(node, added)
        self._take_over(output, real)
        self._dead[node] = None

    def _scaled_rows(self, node: ir.Node, params: QParams, rows: ir.Value, real: ir.Value) -> list[ir.Node]:
        source = node.inputs[0]
        assert source is not None, "Bug: a Gather without a table"
        column = self.constants.array(f"{source.name}_scale", params.scale.reshape(-1, 1))
        shape = None if rows.shape is None else ir.Shape([*rows.shape.dims[:-1], 1])
        scales = self.new_value(f"{rows.name}_scales", ir.DataType.FLOAT, shape)
        gather = self.new_node("Gather", [column, node.inputs[1]], f"{node.name}_scales", [scales])
        for attribute in node.attributes.values():
            gather.attributes.add(attribute)
        if self.opset >= 21:
            width = source.shape[-1] if source.shape is not None else 0
            assert isinstance(width, int), "Bug: a constant of unknown shape"
            attributes = {"axis": -1, "block_size": width}
            name = f"{node.name}_DequantizeLinear"
            return [gather, self.new_node("DequantizeLinear", [rows, scales], name, [real], attributes)]
        floats = self.new_value(f"{rows.name}_float", ir.DataType.FLOAT, rows.shape)
        cast = self.new_node("Cast", [rows], f"{node.name}_Cast", [floats], {"to": int(ir.DataType.FLOAT)})
        return [gather, cast, self.new_node("Mul", [floats, scales], f"{node.name}_Mul", [real])]

    def _rescaled_output(self, decision: Decision, value: ir.Value) -> None:
        """Quantize what a division by c would have read, under c times the scale of what it would have written."""
        (name,) = decision.outputs
        params = self.params(name)
        scale = np.asarray(params.scale * np.float32(decision.rescale), np.float32)
        wider = QParams(params.dtype, scale, params.zero_point, params.granularity)
        self._codes[name] = self._quantize(value.name or "", wider, base=name)
        self._written.add(name)
        self._dead.update(dict.fromkeys(self._nodes[absorbed] for absorbed in decision.absorbed))

    def weight(self, node: ir.Node, index: int, decision: Decision) -> QuantizedConstant:
        """A constant operand, quantized as planned."""
        planned = next(w for w in decision.weights if w.index == index)
        source = node.inputs[index]
        assert source is not None, "Bug: a planned weight is missing"
        assert planned.params is not None, "Bug: a planned weight without parameters"
        return self._constants_of(source).weight(source, planned.params)

    def bias(self, decision: Decision) -> QuantizedConstant:
        """The int32 bias of a decision."""
        assert decision.bias is not None, "Bug: no bias"
        holder = self._nodes[decision.bias.node]
        source = holder.inputs[decision.bias.index]
        weight = decision.weights[0].params
        assert source is not None, "Bug: a planned bias is missing"
        assert weight is not None, "Bug: a planned weight without parameters"
        params = self.params(decision.inputs[0][1])
        rank = 2 if holder.op_type == "Add" and self._needs_a_matrix(holder, params) else 1
        return self._constants_of(source).bias(source, params, weight, rank=rank)

    def _needs_a_matrix(self, add: ir.Node, params: QParams) -> bool:
        """Whether onnxruntime (1.32) would make a Gemm of a MatMul and its Add that it then refuses to load.

        From opset 21 on it inserts a QuantizeLinear with a uint8 zero point between int8 Reshapes. It leaves a product
        with a bias of shape (1, N) alone.
        """
        shape = add.outputs[0].shape
        return self.opset >= 21 and params.dtype.name == "int8" and shape is not None and len(shape) >= 3

    # ------------------------------------------------------------------------------------------------------ small parts

    def _constants_of(self, source: ir.Value) -> Constants:
        """New constants go where the old one was, so that what several branches capture is stored once."""
        graph = source.graph
        assert isinstance(graph, ir.Graph), "Bug: a constant without a graph"
        return self._constants_in(graph)

    def _constants_in(self, graph: ir.Graph) -> Constants:
        if id(graph) not in self._constants:
            self._constants[id(graph)] = Constants(graph, self.names, self._shared_codes)
        return self._constants[id(graph)]

    def new_value(self, base: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        """A value with a fresh name."""
        return ir.Value(name=self.names.value(base), type=ir.TensorType(dtype), shape=shape)

    def new_node(
        self,
        op_type: str,
        inputs: list[ir.Value | None],
        base: str,
        outputs: list[ir.Value],
        attributes: dict[str, int] | None = None,
    ) -> ir.Node:
        """A node with a fresh name, not yet in the graph."""
        return ir.node(op_type, inputs, attributes or {}, outputs=outputs, name=self.names.node(base))

    def _insert(self, node: ir.Node, after: ir.Node | None) -> None:
        """Put a node behind another one, or first; the sort at the end has the last word."""
        if after is None:
            first = next(iter(self.graph), None)
            if first is None:
                self.graph.append(node)
            else:
                self.graph.insert_before(first, node)
        else:
            self.graph.insert_after(after, node)

    def replace_node(
        self, decision: Decision, op_type: str, inputs: list[ir.Value | None], *, attributes: bool = True
    ) -> None:
        """Let an integer operator take the place of a node and of what it absorbed.

        The new node has the old one's name and (unless ``attributes`` is false) attributes, and writes the codes of the
        decision's outputs.
        """
        old = self._nodes[decision.node]
        outputs = []
        for name in decision.outputs:
            dtype = ir.DataType(self.params(name).dtype.onnx)
            outputs.append(self.new_value(f"{name}_quantized", dtype, self._values[name].shape))
        node = ir.node(op_type, inputs, None, outputs=outputs, name=old.name, doc_string=old.doc_string)
        for attribute in old.attributes.values() if attributes else ():
            node.attributes.add(attribute)
        self.graph.insert_after(old, node)
        for name, value in zip(decision.outputs, outputs, strict=True):
            self._codes[name] = value
            self._written.add(name)
        self._dead.update(dict.fromkeys([old, *(self._nodes[name] for name in decision.absorbed)]))
