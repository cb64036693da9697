"""Inputs whose calibration values look as if they had been scaled once too often, or not at all."""

from __future__ import annotations

import onnx_ir as ir

from qtool.calibrate.statistics import HISTOGRAM_BITS, Statistics, TensorStatistics
from qtool.plan.analysis import Graph

_PIXELS = 255.0
_SPREAD = 64.0  # integers from 0 up that reach this far are pixels rather than counts
_UNIT = 1.5  # images that were scaled to [0, 1] stay below
_SHRINKS = 1.0 / 32.0  # a constant factor below this is a scale for pixels
_DEEP = 4  # nodes from the input in which a scale is looked for


def input_notes(graph: ir.Graph, statistics: Statistics) -> list[str]:
    """A sentence for each input that was observed and whose values do not look like what the graph begins with.

    Args:
        graph: The prepared graph.
        statistics: Of its tensors; only histograms tell integers from other numbers.
    """
    found = []
    analysis = Graph(graph)
    seen = {name: statistics[name] for value in graph.inputs if (name := value.name) and name in statistics}
    for value in graph.inputs:
        one = seen.get(value.name or "")
        if one is None or not one.finite:
            continue
        factor = _factor(analysis, value)
        if factor is None:
            if is_pixels(one):
                others = [f"'{n}' reaches {_reach(o):.3g}" for n, o in seen.items() if o is not one and o.finite]
                beside = f" beside other inputs ({', '.join(others)})" if others else ""
                found.append(
                    f"Input '{value.name}' holds the integers {one.minimum:g} to {one.maximum:g}{beside}, and the "
                    "model does not begin by scaling it: samples may not be normalized as in training."
                )
        elif factor <= _SHRINKS and 0.0 < _reach(one) <= _UNIT:
            found.append(
                f"Input '{value.name}' stays within {_reach(one):.3g}, and the model begins by scaling it with "
                f"{factor:.3g}: samples may have been normalized already."
            )
    return found


def is_pixels(one: TensorStatistics) -> bool:
    """Whether all values are integers from 0 to 255, and reach far."""
    if one.histogram is None or one.exponent is None or one.exponent >= HISTOGRAM_BITS:
        return False
    if one.minimum < 0.0 or not _SPREAD <= one.maximum <= _PIXELS or one.count != one.finite:
        return False
    step = 1 << (HISTOGRAM_BITS - one.exponent)  # bins from one integer to the next
    if step < 2:
        return False
    positive = one.histogram[len(one.histogram) // 2 :]
    return int(positive[::step].sum()) == one.finite


def _reach(one: TensorStatistics) -> float:
    return max(-one.minimum, one.maximum)


def _factor(graph: Graph, value: ir.Value) -> float | None:
    """The constant that the graph multiplies an input with before it does anything else; None if there is none.

    An input that is read as indices, or by several nodes, is not judged: 1.
    """
    factor: float | None = None
    for _ in range(_DEEP):
        node = graph.sole_consumer(value)
        if node is None or node.op_type in ("Cast", "Gather", "CastLike"):
            return factor if factor is not None else 1.0
        if node.op_type in ("Mul", "Div") and (node.op_type == "Mul" or node.inputs[0] is value):
            constant = graph.scalar(node.inputs[1] if node.inputs[0] is value else node.inputs[0])
            if constant is None or constant == 0.0:
                return factor if factor is not None else 1.0
            factor = (1.0 if factor is None else factor) * abs(constant if node.op_type == "Mul" else 1.0 / constant)
        elif node.op_type not in ("Add", "Sub", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity"):
            return factor
        value = node.outputs[0]
    return factor
