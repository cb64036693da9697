"""Embedding tables: Gather of an 8-bit table, and its rows back to float behind it.

A DequantizeLinear in front of the Gather would turn the whole table into floats at every run.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qtool.plan.analysis import MASK_MAGNITUDE, Graph, dims_of
from qtool.plan.plan import Decision, Form, Skip, WeightPlan

# elements below which a table (of positions, of rotations) is not what makes a file large
MIN_ELEMENTS = 1 << 18


def table_decision(node: ir.Node, graph: Graph) -> Decision | Skip:
    """Decide about a Gather: one scale per row of a large table, since words differ in magnitude by far.

    Args:
        node: The Gather.
        graph: Facts about its graph.

    Returns:
        A decision without parameters, or why the table stays float.
    """
    name = node.name or ""
    value = node.inputs[0]
    table = graph.constant(value)
    if value is None or table is None or table.dtype != ir.DataType.FLOAT:
        return Skip(name, node.op_type, "it gathers activations or integers", True)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if len(table.shape) != 2 or axis not in (0, -2) or math.prod(dims_of(table)) < MIN_ELEMENTS:
        return Skip(name, node.op_type, "it does not read rows of a large table", True)
    if any(user.op_type != "Gather" for user, _ in value.uses()):
        return Skip(name, node.op_type, "other operators read its table in float")
    array = graph.array(value)
    assert array is not None, "Bug: not a constant"
    if not np.isfinite(array).all() or np.abs(array).max() > MASK_MAGNITUDE:
        why = "its table is a mask (infinite or beyond 1e30), which no range can hold"
        return Skip(name, node.op_type, why)
    weight = WeightPlan(value.name or "", 0, axis=0)
    return Decision(name, node.op_type, Form.WEIGHT_ONLY, weights=(weight,), note="a table of 8 bits")
