"""What the folds into weights share: y = op(x, W) + b followed by a per-channel ``scale * y + shift``.

    scale * (op(x, W) + b) + shift = op(x, W * scale) + (scale * b + shift)

The new weight and bias are new initializers: the old ones may have other readers. Arithmetic is float64, rounded once.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import onnx_ir as ir

from qtool.prepare.graph_edits import (
    NameAllocator,
    PreparePass,
    absorb_follower,
    constant_array,
    constant_shape,
    float_attribute,
    input_at,
    int_attribute,
    is_float_type,
    is_onnx_op,
    new_constant,
    sole_consumer,
)


class FoldIntoWeightsPass(PreparePass):
    """Fold a follower into the operator before it, if the value between them has no other reader.

    A subclass says which operators, and computes scale and shift. The operator keeps its name and takes the name of
    the follower's output. Nothing is folded where the result would not be finite.
    """

    operators: tuple[str, ...] = ()

    @abstractmethod
    def scale_and_shift(
        self, node: ir.Node, follower: ir.Node, channels: int, rank: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The follower as float64 ``(scale, shift)``, each of shape (channels,); None if it is something else.

        Args:
            node: The operator with the weight.
            follower: The only reader of its output.
            channels: The number of output channels.
            rank: The rank of the operator's output; the channel axis is 1.
        """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Walk each graph once; a chain behind one operator is folded link by link."""
        names, before = NameAllocator(model), self.count
        for graph in self.scope(model):
            for node in graph:
                if not is_onnx_op(node, *self.operators):
                    continue
                while self._fold(node, graph, names):
                    self.count += 1
        return ir.passes.PassResult(model, modified=self.count > before)

    def _fold(self, node: ir.Node, graph: ir.Graph, names: NameAllocator) -> bool:
        follower = sole_consumer(node.outputs[0])
        weight_value, rank = input_at(node, 1), _output_rank(node)
        shape = constant_shape(weight_value)
        if follower is None or shape is None or rank is None or len(shape) < 2:
            return False
        channels = output_channels(node, shape)
        folded = self.scale_and_shift(node, follower, channels, rank)
        weight = None if folded is None else constant_array(weight_value)  # read only now: it may be large, on disk
        if folded is None or weight is None or weight_value is None or weight_value.const_value is None:
            return False
        dtype = weight_value.const_value.dtype
        if not is_float_type(dtype):
            return False
        scale, shift = folded
        bias = _bias(node, channels)
        if bias is None:
            return False
        unit = bool((scale == 1).all())
        with np.errstate(over="ignore", invalid="ignore"):
            new_weight = weight if unit else _scale_channels(node, weight, scale).astype(weight.dtype)
            new_bias = (bias * scale + shift).astype(weight.dtype)
        if not (unit or _is_finite(new_weight)) or not _is_finite(new_bias):
            return False
        if not unit:
            node.replace_input_with(1, new_constant(graph, names, f"{weight_value.name}_folded", new_weight, dtype))
        if new_bias.any() or input_at(node, 2) is not None:
            self._set_bias(node, graph, names, new_bias, dtype)
        absorb_follower(node, follower)
        return True

    @staticmethod
    def _set_bias(node: ir.Node, graph: ir.Graph, names: NameAllocator, bias: np.ndarray, dtype: ir.DataType) -> None:
        old = input_at(node, 2)
        base = f"{old.name}_folded" if old is not None and old.name else f"{node.name}_bias"
        value = new_constant(graph, names, base, bias, dtype)
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, value)
        if node.op_type == "MatMul":
            node.op_type = "Gemm"  # a 2-D product with a bias; see _output_rank


def output_channels(node: ir.Node, weight_shape: tuple[int, ...]) -> int:
    """The length of axis 1 of the output."""
    match node.op_type:
        case "Conv":
            return weight_shape[0]
        case "ConvTranspose":
            return weight_shape[1] * int_attribute(node, "group", 1)
        case "Gemm" if int_attribute(node, "transB", 0):
            return weight_shape[0]
    return weight_shape[1]


def _output_rank(node: ir.Node) -> int | None:
    """The rank of the output where axis 1 is the channel axis of the weight; None where it is not, or unknown."""
    if node.op_type == "MatMul":
        # Axis 1 is the column of the weight only for a 2-D product.
        activation, weight = node.inputs[0], constant_shape(node.inputs[1])
        flat = activation is not None and activation.shape is not None and activation.shape.rank() == 2
        return 2 if flat and weight is not None and len(weight) == 2 else None
    if node.op_type == "Gemm":
        plain = float_attribute(node, "alpha", 1.0) == 1.0 and float_attribute(node, "beta", 1.0) == 1.0
        return 2 if plain else None
    weight = constant_shape(input_at(node, 1))
    return None if weight is None else len(weight)


def _bias(node: ir.Node, channels: int) -> np.ndarray | None:
    """The bias as float64 of shape (channels,), zeros if there is none; None if it is not constant per channel."""
    value = input_at(node, 2)
    if value is None:
        return np.zeros(channels)
    bias = constant_array(value)
    if bias is None:
        return None
    if bias.size == 1 or bias.shape in ((channels,), (1, channels)):
        return np.broadcast_to(np.asarray(bias, dtype=np.float64).reshape(-1), (channels,))
    return None


def _scale_channels(node: ir.Node, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``weight * scale`` along the output channel, float64."""
    factors: np.ndarray
    match node.op_type:
        case "Conv":
            factors = scale.reshape(-1, *[1] * (weight.ndim - 1))
        case "ConvTranspose":
            groups = int_attribute(node, "group", 1)
            per_input = np.repeat(scale.reshape(groups, weight.shape[1]), weight.shape[0] // groups, axis=0)
            factors = per_input.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
        case "Gemm" if int_attribute(node, "transB", 0):
            factors = scale[:, None]
        case _:
            factors = scale
    scaled: np.ndarray = weight.astype(np.float64) * factors
    return scaled


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array.astype(np.float64) if array.dtype.kind == "V" else array).all())
