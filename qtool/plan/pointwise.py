"""Scalar functions in a graph: what the nodes behind a value make of each element, whatever they are called.

GELU, SiLU, HardSwish and their kin are written as five or more nodes by one exporter and as one by another. All of them
are 0 for low values, or as good as 0, and a range need not reach there. Evaluating the nodes finds that out where
matching patterns would miss the next spelling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.plan.analysis import Graph

Floats = npt.NDArray[np.float64]

_MAX_NODES = 16
_SEEN_FROM = 1e-4  # of the function's value at _REFERENCE: beyond the resolution of 8 bits
_REFERENCE = 10.0
_FAR = np.array([-1e4, -1e3, -100.0])
_POINTS = np.concatenate([_FAR, np.arange(-64.0, 0.01, 0.125)])  # ascending, with 0


def unseen_below(graph: Graph, value: ir.Value) -> float:
    """The value at or below which all readers of a tensor see next to nothing, at most 0; -inf if there is none."""
    region: dict[str, Floats] = {value.name or "": np.append(_POINTS, _REFERENCE)}
    inside: set[int] = set()
    reached = [value]
    for _ in range(_MAX_NODES):
        node = next(
            (n for v in reached for n in _readers(graph, v) if id(n) not in inside and _known(graph, n, region)), None
        )
        if node is None:
            return -math.inf
        with np.errstate(all="ignore"):
            result = _evaluated(graph, node, region)
        if result is None:
            return -math.inf
        output = node.outputs[0]
        region[output.name or ""] = result
        inside.add(id(node))
        reached.append(output)
        if all(_is_read_inside(v, inside) for v in reached[:-1]):
            floor = _floor(result)
            if floor > -math.inf:
                return floor
    return -math.inf


def _floor(result: Floats) -> float:
    reference = abs(float(result[-1]))
    if not 0.0 < reference < math.inf:
        return -math.inf
    seen = np.flatnonzero(~(np.abs(result[:-1]) <= _SEEN_FROM * reference))
    unseen = len(_POINTS) if not len(seen) else int(seen[0])
    return float(_POINTS[unseen - 1]) if unseen > len(_FAR) else -math.inf


def _readers(graph: Graph, value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses() if use.node.graph is graph.ir]


def _is_read_inside(value: ir.Value, inside: set[int]) -> bool:
    return not value.is_graph_output() and all(id(use.node) in inside for use in value.uses())


def _known(graph: Graph, node: ir.Node, region: dict[str, Floats]) -> bool:
    """Whether a node's operands are all functions of the value, or single numbers."""
    if node.op_type not in _FUNCTIONS or not graph.is_default_domain(node) or len(node.outputs) != 1:
        return False
    return all(v is None or v.name in region or graph.scalar(v) is not None for v in node.inputs)


def _evaluated(graph: Graph, node: ir.Node, region: dict[str, Floats]) -> Floats | None:
    operands = [
        None if v is None else region[v.name or ""] if v.name in region else np.float64(graph.scalar(v))
        for v in node.inputs
    ]
    result = _FUNCTIONS[node.op_type](node, *operands)
    return None if result is None else np.broadcast_to(np.asarray(result, np.float64), len(_POINTS) + 1)


def _attribute(node: ir.Node, name: str, default: float) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(node: ir.Node, x: Any) -> Any:
    tanh = "approximate" in node.attributes and node.attributes["approximate"].as_string() == "tanh"
    inner = np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)) if tanh else _erf(x / math.sqrt(2.0))
    return 0.5 * x * (1.0 + inner)


def _clip(node: ir.Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low = _attribute(node, "min", -math.inf) if low is None else low
    high = _attribute(node, "max", math.inf) if high is None else high
    return np.minimum(np.maximum(x, low), high)


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return np.clip(alpha * x + beta, 0.0, 1.0)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "Sub": lambda _, a, b: a - b,
    "Mul": lambda _, a, b: a * b,
    "Div": lambda _, a, b: a / b,
    "Pow": lambda _, a, b: np.power(a, b),
    "Neg": lambda _, x: -x,
    "Exp": lambda _, x: np.exp(x),
    "Log": lambda _, x: np.log(x),
    "Erf": lambda _, x: _erf(x),
    "Tanh": lambda _, x: np.tanh(x),
    "Sigmoid": lambda _, x: _sigmoid(x),
    "Softplus": lambda _, x: np.logaddexp(x, 0.0),
    "Identity": lambda _, x: x,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Clip": _clip,
    "HardSigmoid": lambda n, x: _hard_sigmoid(x, _attribute(n, "alpha", 0.2), _attribute(n, "beta", 0.5)),
    "HardSwish": lambda _, x: x * _hard_sigmoid(x, 1.0 / 6.0, 0.5),
    "Gelu": _gelu,
    "Mish": lambda _, x: x * np.tanh(np.logaddexp(x, 0.0)),
    "Swish": lambda n, x: x * _sigmoid(_attribute(n, "alpha", 1.0) * x),
}
