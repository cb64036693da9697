"""Random graphs from a list of small numbers, with names that clash, and a bound on the error of every value.

:class:`Maker` turns steps into a model. Beside each node it keeps how errors of what the node reads become errors of
what it writes, so that :func:`bounds` can follow the codes of a plan through the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from qtool.plan import Plan
from tests.models import normal, rng

Array = np.ndarray[Any, Any]
# (values that a node reads, their errors) -> errors of what it writes
Rule = Callable[["Node", Sequence[Array], Sequence[Array]], list[Array]]

# each is what some tool, qtool among them, would like to call something new
TENSOR_NAMES = (
    "x_scale", "x_zero_point", "x_quantized", "x_dequantized", "w_quantized", "x_QuantizeLinear", "x_float", "a/b:0",
    "/a/b", "日本語", "é", " ", "0", "t.1", "t 1", "x_scale_1", "x_quantized_1", "Conv", "val_0", "qdq_s8_to_u8_quant",
    "{}", "%", "-x",
)  # fmt: skip
# of node i, an {op}; onnxruntime refuses two equal ones, but not those that are missing
NODE_NAMES = ("", "{op}_{i}", "/model/層{i}/{op}", "x_QuantizeLinear_{i}", "node_Conv_{i}", "x_scale {i}")
MOST_ELEMENTS = 600  # of a value for one sample
BATCH = 2


@dataclass
class Node:
    """A node with what its errors do."""

    proto: onnx.NodeProto
    rule: Rule
    constants: list[str] = field(default_factory=list)


class Maker:
    """Grows a graph by steps of small numbers.

    Args:
        steps: (kind, two choices of a value, two choices of a detail) for each node.
        naming: Which names the nodes have.
        symbolic: Whether the batch is a symbol.
        shape: Of the input, without the batch.
    """

    def __init__(
        self, steps: Sequence[tuple[int, int, int, int, int]], *, naming: int, symbolic: bool, shape: tuple[int, ...]
    ) -> None:
        self.naming = naming
        self.symbolic = symbolic
        self.shapes: dict[str, tuple[int, ...]] = {"x": (BATCH, *shape)}
        self.integers: dict[str, tuple[int, ...]] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self._weights: dict[tuple[int, ...], str] = {}
        self._made: set[tuple[str, tuple[str, ...], str]] = set()
        kinds = list(_KINDS)
        for kind, *choices in steps:
            names = list(self.shapes)
            a = names[-1 - choices[0] % min(4, len(names))]  # one of the latest
            _KINDS[kinds[kind % len(kinds)]](self, a, *choices[1:])

    # ------------------------------------------------------------------------------------------------------------ parts

    def fresh(self) -> str:
        """A name that no value has, of those that others would like to have."""
        used = self.shapes.keys() | self.constants.keys() | self.integers.keys()
        return next(name for name in (*TENSOR_NAMES, *(f"t{i}" for i in range(99))) if name not in used)

    def constant(self, array: Any) -> str:
        name = self.fresh()
        self.constants[name] = np.asarray(array)
        return name

    def weight(self, *shape: int, share: bool) -> str:
        """A weight; one that is there already if it fits and sharing is wanted."""
        if share and shape in self._weights:
            return self._weights[shape]
        fan_in = max(1, int(np.prod(shape[1:])))
        name = self.constant(normal(*shape, seed=len(self.constants), scale=fan_in**-0.5))
        self._weights[shape] = name
        return name

    def add(
        self, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int, ...]], rule: Rule, **attributes: Any
    ) -> list[str]:
        """A node, unless what it writes is empty or large, or there already: runtimes make one of two equal nodes."""
        key = (op, tuple(inputs), repr(sorted(attributes.items())))
        if key in self._made or any(np.prod(s[1:]) > MOST_ELEMENTS or 0 in s for s in shapes):
            return []
        self._made.add(key)
        outputs = []
        for shape in shapes:
            outputs.append(self.fresh())
            self.shapes[outputs[-1]] = shape
        name = NODE_NAMES[self.naming % len(NODE_NAMES)].format(i=len(self.nodes), op=op)
        self.nodes.append(Node(helper.make_node(op, list(inputs), outputs, name=name, **attributes), rule))
        return outputs

    def same(self, a: str) -> list[str]:
        """Values of the same shape."""
        return [name for name, shape in self.shapes.items() if shape == self.shapes[a]]

    # -------------------------------------------------------------------------------------------------------- the whole

    def model(self, outputs: Sequence[int], opset: int) -> onnx.ModelProto:
        """The graph; the last value and those that ``outputs`` point at are its outputs."""
        made = list(self.shapes)[1:]
        chosen = list(dict.fromkeys([*(made[i % len(made)] for i in outputs), made[-1]]))

        def info(name: str, kind: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
            batch = "N" if self.symbolic and shape[0] == BATCH else shape[0]
            return helper.make_tensor_value_info(name, kind, [batch, *shape[1:]])

        graph = helper.make_graph(
            [node.proto for node in self.nodes],
            "hostile",
            [info("x", TensorProto.FLOAT, self.shapes["x"])],
            [
                *(info(name, TensorProto.FLOAT, self.shapes[name]) for name in chosen),
                *(info(name, TensorProto.INT64, shape) for name, shape in self.integers.items()),
            ],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


# ------------------------------------------------------------------------------------------------------ rules of errors


def run_node(proto: onnx.NodeProto, inputs: Sequence[Array]) -> list[Array]:
    """One node on arrays."""
    names = [f"i{k}" if name else "" for k, name in enumerate(proto.input)]
    node = helper.make_node(proto.op_type, names, [f"o{k}" for k in range(len(proto.output))])
    node.attribute.extend(proto.attribute)
    feeds = {n: np.ascontiguousarray(a) for n, a in zip(names, inputs, strict=True) if n}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def moves(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Data movers, pools, averages: what they do to values they do to errors; constants have none."""
    return run_node(node.proto, [errors[0], *values[1:]])


def joins(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Concat."""
    return run_node(node.proto, list(errors))


def worst(axes: tuple[int, ...]) -> Rule:
    """Each result may be any of the values along some axes: ReduceMax and its like."""

    def rule(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
        return [errors[0].max(axis=axes, keepdims=True)]

    return rule


def lipschitz(constant: float) -> Rule:
    """An elementwise function that is no steeper than that."""

    def rule(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
        return [errors[0] * np.float32(constant)]

    return rule


def softmax(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """No element moves by more than half of the largest change of its row."""
    return [np.broadcast_to(errors[0].max(axis=-1, keepdims=True) / 2, errors[0].shape).astype(np.float32)]


def bilinear(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Products of all kinds: |a| db + da |b| + da db, and the error of a bias."""
    (x, w), (dx, dw) = values[:2], errors[:2]
    bias = [np.zeros_like(v) for v in values[2:]]
    total = run_node(node.proto, [np.abs(x), dw, *bias])[0]
    return [total + run_node(node.proto, [dx, np.abs(w) + dw, *errors[2:]])[0]]


def added(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Sum and difference."""
    return [errors[0] + errors[1]]


def chosen(node: Node, values: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Where."""
    return run_node(node.proto, [values[0], errors[1], errors[2]])


# ---------------------------------------------------------------------------------------------------------------- kinds


def _conv(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) not in (3, 4):
        return
    dims = len(shape) - 2
    out, kernel = (2, 4, 6)[b % 3], (1, 3)[c % 2]
    inputs = [a, m.weight(out, shape[1], *[kernel] * dims, share=bool(b % 2))]
    if d % 2:
        inputs.append(m.constant(normal(out, seed=len(m.constants), scale=0.3)))
    pads = kernel // 2 if c % 4 < 2 else 0
    stride = 1 + d % 3 // 2
    sizes = [(n + 2 * pads - kernel) // stride + 1 for n in shape[2:]]
    if min(n + 2 * pads for n in shape[2:]) >= kernel:
        m.add("Conv", inputs, [(shape[0], out, *sizes)], bilinear, pads=[pads] * 2 * dims, strides=[stride] * dims)


def _grouped(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) == 4:
        group = shape[1] if b % 2 or shape[1] % 2 else 2
        out = shape[1] * (1 + c % 2)
        w = m.weight(out, shape[1] // group, 3, 3, share=bool(d % 2))
        m.add("Conv", [a, w], [(shape[0], out, *shape[2:])], bilinear, group=group, pads=[1] * 4)


def _conv_transpose(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) == 4:
        w = m.weight(shape[1], 3, 2, 2, share=bool(b % 2))
        m.add("ConvTranspose", [a, w], [(shape[0], 3, 2 * shape[2], 2 * shape[3])], bilinear, strides=[2, 2])


def _matmul(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    out = (3, 4, 8)[b % 3]
    made = m.add("MatMul", [a, m.weight(shape[-1], out, share=bool(c % 2))], [(*shape[:-1], out)], bilinear)
    if made and d % 3:
        m.add("Add", [made[0], m.constant(normal(out, seed=len(m.constants), scale=0.3))], [(*shape[:-1], out)], added)


def _gemm(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) != 2:
        return
    out = (3, 4, 8)[b % 3]
    flipped = c % 2
    w = m.weight(*((out, shape[1]) if flipped else (shape[1], out)), share=bool(d % 2))
    bias = [m.constant(normal(out, seed=len(m.constants), scale=0.3))] if d % 3 else []
    m.add("Gemm", [a, w, *bias], [(shape[0], out)], bilinear, transB=flipped)


def _product(m: Maker, a: str, b: int, c: int, d: int) -> None:
    """Of a value with its own transposed."""
    shape = m.shapes[a]
    if len(shape) < 3:
        return
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = m.add("Transpose", [a], [tuple(shape[i] for i in perm)], moves, perm=perm)
    if turned:
        m.add("MatMul", [a, turned[0]], [(*shape[:-1], shape[-2])], bilinear)


_UNARY: tuple[tuple[str, dict[str, Any], Rule], ...] = (
    ("Relu", {}, lipschitz(1)),
    ("Sigmoid", {}, lipschitz(0.25)),
    ("LeakyRelu", {"alpha": 0.1}, lipschitz(1)),
    ("Neg", {}, lipschitz(1)),
    ("Tanh", {}, lipschitz(1)),
    ("HardSwish", {}, lipschitz(1.5)),
    ("HardSigmoid", {}, lipschitz(0.2)),
    ("Softmax", {"axis": -1}, softmax),
)


def _unary(m: Maker, a: str, b: int, c: int, d: int) -> None:
    op, attributes, rule = _UNARY[b % len(_UNARY)]
    m.add(op, [a], [m.shapes[a]], rule, **attributes)


def _clip(m: Maker, a: str, b: int, c: int, d: int) -> None:
    bounds = [m.constant(np.float32((0, -1)[b % 2])), m.constant(np.float32((0.5, 1, 6)[c % 3]))]
    m.add("Clip", [a, *bounds], [m.shapes[a]], lipschitz(1))


def _join(m: Maker, a: str, b: int, c: int, d: int) -> None:
    others = m.same(a)
    other = others[b % len(others)]
    op = ("Add", "Mul", "Sub", "Add")[c % 4]
    m.add(op, [a, other], [m.shapes[a]], bilinear if op == "Mul" else added)


def _with_constant(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = (1, *m.shapes[a][1:]) if b % 2 else ()
    op = ("Add", "Mul", "Div")[c % 3]
    array = np.float32((2, 6)[d % 2]) if op == "Div" else normal(*shape, seed=d) if shape else np.float32(0.7)
    rule = {"Add": added, "Mul": bilinear}.get(op) or lipschitz(0.5)
    m.add(op, [a, m.constant(array)], [m.shapes[a]], rule)


def _where(m: Maker, a: str, b: int, c: int, d: int) -> None:
    others = m.same(a)
    mask = m.constant(rng(d).random((1, *m.shapes[a][1:])) > 0.4)
    other = m.constant(np.float32(0.5)) if b % 2 else others[c % len(others)]
    m.add("Where", [mask, a, other], [m.shapes[a]], chosen)


def _concat(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    fitting = [n for n, s in m.shapes.items() if len(s) == len(shape) and s[2:] == shape[2:] and s[0] == shape[0]]
    other = fitting[b % len(fitting)]
    m.add("Concat", [a, other], [(shape[0], shape[1] + m.shapes[other][1], *shape[2:])], joins, axis=1)


def _pool(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) == 4 and min(shape[2:]) >= 2:
        op = ("MaxPool", "AveragePool")[b % 2]
        sizes = [n // 2 for n in shape[2:]]
        m.add(op, [a], [(*shape[:2], *sizes)], moves, kernel_shape=[2, 2], strides=[2, 2])


def _global(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) > 2:
        m.add("GlobalAveragePool", [a], [(*shape[:2], *[1] * (len(shape) - 2))], moves)


def _reduce(m: Maker, a: str, b: int, c: int, d: int) -> None:
    axis = len(m.shapes[a]) - 1
    m.add(("ReduceMax", "ReduceMin")[b % 2], [a], [(*m.shapes[a][:-1], 1)], worst((axis,)), axes=[axis], keepdims=1)


def _transpose(m: Maker, a: str, b: int, c: int, d: int) -> None:
    rank = len(m.shapes[a])
    if rank > 2:
        perm = [0, *range(2, rank), 1]
        m.add("Transpose", [a], [tuple(m.shapes[a][i] for i in perm)], moves, perm=perm)


def _slice(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if shape[1] >= 2:
        bounds = [m.constant(np.array([v])) for v in (b % 2, shape[1], 1)]
        m.add("Slice", [a, *bounds], [(shape[0], shape[1] - b % 2, *shape[2:])], moves)


def _split(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if shape[1] >= 2:
        first = 1 + b % (shape[1] - 1)
        parts = (first, shape[1] - first)
        sizes = m.constant(np.array(parts))
        m.add("Split", [a, sizes], [(shape[0], p, *shape[2:]) for p in parts], moves, axis=1)


def _pad(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    pads = m.constant(np.array([0, *[b % 2] * (len(shape) - 1), 0, *[1] * (len(shape) - 1)]))
    m.add("Pad", [a, pads], [(shape[0], *(n + 1 + b % 2 for n in shape[1:]))], moves)


def _resize(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) == 4:
        scales = m.constant(np.array([1, 1, 2, 2], np.float32))
        m.add("Resize", [a, "", scales], [(*shape[:2], 2 * shape[2], 2 * shape[3])], moves, mode="nearest")


def _flatten(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if b % 2:
        m.add("Flatten", [a], [(shape[0], int(np.prod(shape[1:])))], moves)
    else:
        target = m.constant(np.array([0, shape[1], -1]))
        m.add("Reshape", [a, target], [(shape[0], shape[1], int(np.prod(shape[2:])))], moves)


def _gather(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if b % 2:
        indices = m.constant(np.array([shape[1] - 1, 0, c % shape[1]]))
        m.add("Gather", [a, indices], [(shape[0], 3, *shape[2:])], moves, axis=1)
    else:
        where = m.constant(rng(c).integers(0, shape[1], shape))
        if not m.symbolic:
            m.add("GatherElements", [a, where], [shape], moves, axis=1)


def _tile(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if b % 2:
        repeats = m.constant(np.array([1, 2, *[1] * (len(shape) - 2)]))
        m.add("Tile", [a, repeats], [(shape[0], 2 * shape[1], *shape[2:])], moves)
    elif shape[-1] == 1:
        target = m.constant(np.array([*[1] * (len(shape) - 1), 3]))
        m.add("Expand", [a, target], [(*shape[:-1], 3)], moves)


def _depth(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) == 4 and b % 2 and shape[1] % 4 == 0:
        m.add("DepthToSpace", [a], [(shape[0], shape[1] // 4, 2 * shape[2], 2 * shape[3])], moves, blocksize=2)
    elif len(shape) == 4 and shape[2] % 2 == shape[3] % 2 == 0:
        m.add("SpaceToDepth", [a], [(shape[0], 4 * shape[1], shape[2] // 2, shape[3] // 2)], moves, blocksize=2)


def _squeeze(m: Maker, a: str, b: int, c: int, d: int) -> None:
    shape = m.shapes[a]
    if len(shape) < 4:
        m.add("Unsqueeze", [a, m.constant(np.array([len(shape)]))], [(*shape, 1)], moves)
    elif shape[-1] == 1:
        m.add("Squeeze", [a, m.constant(np.array([3]))], [shape[:-1]], moves)


_KINDS: dict[str, Callable[[Maker, str, int, int, int], None]] = {
    "conv": _conv, "conv again": _conv, "matmul": _matmul, "matmul again": _matmul, "gemm": _gemm, "grouped": _grouped,
    "transposed": _conv_transpose, "product": _product, "unary": _unary, "clip": _clip, "join": _join,
    "constant": _with_constant, "where": _where, "concat": _concat, "pool": _pool, "global": _global, "reduce": _reduce,
    "transpose": _transpose, "slice": _slice, "split": _split, "pad": _pad, "resize": _resize, "flatten": _flatten,
    "gather": _gather, "tile": _tile, "depth": _depth, "squeeze": _squeeze,
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- bounds


def bounds(
    maker: Maker, values: Mapping[str, Array], plan: Plan, *, weights: int, activations: int, one_code: bool = False
) -> dict[str, Array]:
    """The largest error that rounding to codes can make in each value, by following it through the graph.

    A tensor with codes is off by half a step, or by as much as its range cuts; a constant by half a step of a range
    that a quantizer would give it, whether it got one or not.

    Args:
        maker: What made the graph.
        values: Every value of the float model.
        plan: What is quantized, with parameters.
        weights: Codes from 0 to the largest weight.
        activations: Codes of the whole range of an activation.
        one_code: Instead, how far two runs may be apart that differ by one code in each tensor that has codes.
    """
    scales = _weight_scales(plan)

    def of_constant(name: str) -> Array:
        array = maker.constants[name]
        if one_code or array.dtype.kind != "f":
            return np.zeros(array.shape, np.float32)
        known = scales.get(name, 0.0)
        largest = float(np.abs(array).max())
        # a bias takes the product of two scales, which is smaller than this
        step = max(known, largest / weights, (max(array.max(), 0) - min(array.min(), 0)) / activations)
        return np.full(array.shape, step / 2 * 1.01 + 1e-6, np.float32)

    errors: dict[str, Array] = {"x": np.zeros_like(values["x"])}
    errors["x"] = _rounded("x", values["x"], errors["x"], plan, one_code=one_code)
    for node in maker.nodes:
        arrays, wrong = [], []
        for name in node.proto.input:
            constant = maker.constants.get(name)
            nothing = np.zeros(0, np.float32)
            arrays.append(nothing if not name else values[name] if constant is None else constant)
            wrong.append(nothing if not name else errors[name] if constant is None else of_constant(name))
        for name, error in zip(node.proto.output, node.rule(node, arrays, wrong), strict=True):
            slack = 1e-5 * np.abs(values[name]).max() + 1e-6  # float32 sums in another order
            errors[name] = _rounded(name, values[name], np.asarray(error, np.float32) + slack, plan, one_code=one_code)
    return errors


def _rounded(name: str, value: Array, error: Array, plan: Plan, *, one_code: bool) -> Array:
    params = plan.tensors.get(name)
    if params is None:
        return error
    step = float(params.scale)
    if one_code:
        return np.asarray(error + step * 1.001, np.float32)
    low, high = params.range
    cut = np.maximum(np.maximum(low - value, value - high), 0.0)
    return np.asarray(error + step / 2 * 1.001 + cut, np.float32)


def _weight_scales(plan: Plan) -> dict[str, float]:
    found: dict[str, float] = {}
    for decision in plan.decisions:
        for weight in decision.weights:
            if weight.params is not None:
                found[weight.tensor] = max(found.get(weight.tensor, 0.0), float(weight.params.scale.max()))
    return found
