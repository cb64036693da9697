"""Fold a Pad with zeros into the pads of the convolution behind it: exact, and one pass over memory less.

Pools are not touched: MaxPool pads with -inf, and AveragePool may leave pads out of the mean. Scope: the top graph,
and bodies on request.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import (
    PreparePass,
    add_origin,
    constant_array,
    constant_shape,
    input_at,
    is_onnx_op,
    plural,
    string_attribute,
)


class FoldPadPass(PreparePass):
    """Pad (mode constant, value 0, spatial axes, not negative), then Conv with explicit pads.

    Each Conv that reads the padded tensor takes the pads; the Pad goes when nothing else reads it.
    """

    def describe(self) -> str:
        """One line for the folded pads."""
        return f"folded {plural(self.count, 'Pad')} into convolution pads"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once; pads behind pads are taken one after the other."""
        before = self.count
        for graph in self.scope(model):
            for node in graph:
                while is_onnx_op(node, "Conv") and self._fold(node, graph):
                    self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)

    @staticmethod
    def _fold(conv: ir.Node, graph: ir.Graph) -> bool:
        padded, weight = conv.inputs[0], constant_shape(input_at(conv, 1))
        pad = padded.producer() if padded is not None else None
        if padded is None or pad is None or not is_onnx_op(pad, "Pad") or pad.graph is not graph or weight is None:
            return False
        if string_attribute(conv, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return False
        rank = len(weight)
        pads = _zero_pads(pad, rank)
        if pads is None:
            return False
        explicit = string_attribute(conv, "auto_pad", "NOTSET") == "NOTSET" and "pads" in conv.attributes
        own = conv.attributes["pads"].as_ints() if explicit else (0,) * (2 * rank - 4)
        begin, end = pads[2:rank], pads[rank + 2 :]
        conv.attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(own, begin + end, strict=True)])
        conv.attributes.pop("auto_pad", None)
        conv.replace_input_with(0, pad.inputs[0])
        add_origin(conv, pad)
        if not padded.uses() and not padded.is_graph_output():
            graph.remove(pad, safe=True)
        return True


def _zero_pads(pad: ir.Node, rank: int) -> list[int] | None:
    """Pads as 2 * rank numbers if the node pads spatial axes with zeros, else None."""
    if string_attribute(pad, "mode", "constant") != "constant" or "pads" in pad.attributes:
        return None  # before opset 11 pads and value were attributes
    amounts, axes_value, fill = constant_array(input_at(pad, 1)), input_at(pad, 3), input_at(pad, 2)
    if amounts is None:
        return None
    if fill is not None:
        constant = constant_array(fill)
        if constant is None or np.any(constant.astype(np.float64) != 0):
            return None
    axes = list(range(rank))
    if axes_value is not None:
        given = constant_array(axes_value)
        if given is None:
            return None
        axes = [int(axis) % rank for axis in given]
    if len(set(axes)) != len(axes) or amounts.shape != (2 * len(axes),) or (amounts < 0).any():
        return None
    pads = [0] * (2 * rank)
    for number, axis in enumerate(axes):
        pads[axis], pads[axis + rank] = int(amounts[number]), int(amounts[number + len(axes)])
    return None if any(pads[i] for i in (0, 1, rank, rank + 1)) else pads
