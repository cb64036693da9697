"""The quantized operators of a model, found in its graph alone, each beside the tensors of the float model.

A unit is a node that computes on quantized values, with the nodes that were absorbed into it: a QLinearConv or
QLinearMatMul; a float operator between DequantizeLinear and QuantizeLinear; MatMulInteger or ConvInteger with what
makes a float of their result; an operator with stored weights. Nodes that only move codes are none.

Tensors are matched by name. qtool and onnxruntime.quantization name what they make after the tensor that it stands for:
``x_quantized``, ``x_dequantized``, ``x_QuantizeLinear_Output``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qtool import kernels
from qtool.dtypes import QDTYPES
from qtool.evaluate.attribution.graph import Array, Graph, attribute, is_op

if TYPE_CHECKING:
    import onnx

MADE = re.compile(
    r"^(.+?)_(?:quantized|dequantized|float|QuantizeLinear_Output|DequantizeLinear_Output|QuantizeLinear_Input)(?:_\d+)?$"
)
MOVERS = frozenset(
    (
        "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "ReduceMax", "ReduceMin",
        "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    )
)  # fmt: skip
_OPAQUE = frozenset(("DynamicQuantizeLSTM", "QAttention", "GatherBlockQuantized", "QGemm"))
_SHAPED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_ABSORBED = frozenset(("Add", "Clip", "Div", "Mul", "Relu", "Sub"))
_LONGEST = 8  # nodes behind an integer product that make a float of it


@dataclass(frozen=True, eq=False)
class Codes:
    """Scale and zero point of an activation, one of each.

    Attributes:
        scale: float32 scalar.
        zero: Scalar of the codes' type.
    """

    scale: Array
    zero: Array

    @property
    def bounds(self) -> tuple[int, int]:
        """Lowest and highest code."""
        dtype = next(d for d in QDTYPES.values() if d.numpy == self.zero.dtype)
        return int(dtype.qmin), int(dtype.qmax)

    @property
    def low(self) -> float:
        """The lowest value that a code stands for."""
        return float((self.bounds[0] - int(self.zero)) * np.float64(self.scale))

    @property
    def high(self) -> float:
        """The highest."""
        return float((self.bounds[1] - int(self.zero)) * np.float64(self.scale))

    @property
    def key(self) -> tuple[float, int, str]:
        """Equal for equal parameters."""
        return float(self.scale), int(self.zero), str(self.zero.dtype)


@dataclass(frozen=True)
class Operand:
    """An activation that a unit reads.

    Attributes:
        tensor: Its name in the float model.
        source: The value in the quantized model that holds it: codes where ``params`` are given, floats otherwise.
        slot: What the unit's nodes call it.
        params: How the unit reads it; None: as a float.
        dynamic: The running model chooses scale and zero point.
    """

    tensor: str
    source: str
    slot: str
    params: Codes | None = None
    dynamic: bool = False


@dataclass(frozen=True)
class StoredWeight:
    """A constant operand that is stored in codes.

    Attributes:
        codes: Name of the constant.
        dtype: Its element type.
        scale: As the operator applies it.
        zero: The same; None for 0.
        axis: Axis of a scale per channel; None for one per tensor.
        block: Elements per scale; 0 if not blocked.
        index: Which input of the operator it is.
    """

    codes: str
    dtype: str
    scale: Array
    zero: Array | None
    axis: int | None
    block: int
    index: int

    def __str__(self) -> str:
        if self.block:
            return f"{self.dtype} in blocks of {self.block} (axis {self.axis})"
        return f"{self.dtype} per tensor" if self.axis is None else f"{self.dtype} per channel (axis {self.axis})"


@dataclass(frozen=True, eq=False)
class Unit:
    """A quantized operator.

    Attributes:
        node: Name of its node.
        op_type: Its operator, as in a float model.
        operands: Activations.
        output: Name of its result in the float model.
        source: The value in the quantized model that holds it.
        params: How ``source`` is read; None: as floats.
        owns_output: Whether the rounding of the output is this unit's: no other unit reads the codes.
        nodes: Float operators that compute the result from the operands' slots, weights being constants.
        constants: Name -> elements of the constants that ``nodes`` read.
        result: What ``nodes`` call the result.
        weight: The stored weight, if there is one.
        saturates: Whether saturation of the codes does what a Relu or Clip of the float model does.
    """

    node: str
    op_type: str
    operands: tuple[Operand, ...]
    output: str
    source: str
    nodes: tuple[onnx.NodeProto, ...]
    constants: dict[str, Array]
    result: str
    params: Codes | None = None
    owns_output: bool = False
    weight: StoredWeight | None = None
    saturates: bool = False


@dataclass
class Units:
    """What was found.

    Attributes:
        units: In the order of the quantized graph.
        left_out: (node, reason) of quantized operators that are not among them.
    """

    units: list[Unit] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


class _LeftOutError(Exception):
    """Why a quantized operator is not a unit."""


def find_units(quantized: Graph, reference: Graph) -> Units:
    """All units of a quantized model.

    Args:
        quantized: The quantized model.
        reference: The float model that it was made of.
    """
    return _Finder(quantized, reference).run()


class _Finder:
    def __init__(self, quantized: Graph, reference: Graph) -> None:
        self._graph = quantized
        self._known = set(reference.tensors)
        self._absorbed: set[int] = set()  # ids of nodes that belong to a unit

    def run(self) -> Units:
        found = Units()
        for node in self._graph.nodes:
            if id(node) in self._absorbed:
                continue
            try:
                unit = self._unit(node)
            except _LeftOutError as reason:
                found.left_out.append((node.name or node.output[0], str(reason)))
                continue
            if unit is not None:
                found.units.append(unit)
        read = {codes for unit in found.units for operand in unit.operands for codes in self._moved(operand.source)}
        found.units = [_owning(unit, self._is_owner(unit, read)) for unit in found.units]
        return found

    def _unit(self, node: onnx.NodeProto) -> Unit | None:
        if is_op(node, "QLinearConv"):
            return self._qlinear(node, "Conv", ((0, 1, 2), (3, 4, 5)), (6, 7))
        if is_op(node, "QLinearMatMul"):
            return self._qlinear(node, "MatMul", ((0, 1, 2), (3, 4, 5)), (6, 7))
        if is_op(node, "MatMulInteger", "ConvInteger"):
            return self._dynamic(node)
        if is_op(node, "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
            return None
        if node.op_type == "MatMulNBits":
            return self._packed(node)
        if node.op_type in _OPAQUE or (node.domain == "com.microsoft" and node.op_type.startswith("QLinear")):
            raise _LeftOutError(f"{node.op_type} has no float operator that its parts could be measured with")
        return self._between(node)

    # ------------------------------------------------------------------------------------------------------------ forms

    def _qlinear(
        self, node: onnx.NodeProto, op_type: str, inputs: tuple[tuple[int, int, int], ...], output: tuple[int, int]
    ) -> Unit:
        """An operator that reads and writes codes, as the float operator of the same name."""
        import onnx

        names: list[str] = []
        operands: list[Operand] = []
        constants: dict[str, Array] = {}
        weight = None
        for position, (codes, scale, zero) in enumerate(inputs):
            name = node.input[codes]
            if self._graph.is_constant(name):
                weight = self._stored(name, node.input[scale], node.input[zero], op_type, position)
                names.append(name)
                constants[name] = _dequantized(self._graph.array(name), weight)
            else:
                params = self._parameters(node.input[scale], node.input[zero])
                slot = f"{name}:{position}"
                operands.append(Operand(self._tensor(name), name, slot, params))
                names.append(slot)
        if len(node.input) > 8 and node.input[8]:
            first, second = (self._graph.array(node.input[i]).astype(np.float32) for i in (1, 4))
            bias = node.input[8]
            constants[bias] = (self._graph.array(bias) * (first * second).astype(np.float64)).astype(np.float32)
            names.append(bias)
        result = node.output[0]
        made = onnx.NodeProto(op_type=op_type, name=node.name, input=names, output=[f"{result}:real"])
        made.attribute.extend(node.attribute)
        return Unit(
            node.name,
            op_type,
            tuple(operands),
            self._tensor(result),
            result,
            (made,),
            constants,
            f"{result}:real",
            params=self._parameters(node.input[output[0]], node.input[output[1]]),
            weight=weight,
            saturates=True,
        )

    def _dynamic(self, node: onnx.NodeProto) -> Unit:
        """Integer arithmetic on what a DynamicQuantizeLinear made."""
        import onnx

        op_type = node.op_type.removesuffix("Integer")
        graph = self._graph
        names, operands, stored = [], [], None
        for position in (0, 1):
            name = node.input[position]
            maker = graph.producer(name)
            if graph.is_constant(name):
                stored = position
                names.append(name)
            elif is_op(maker, "DynamicQuantizeLinear") and maker is not None:
                slot = f"{name}:{position}"
                operands.append(Operand(self._tensor(maker.input[0]), maker.input[0], slot, dynamic=True))
                names.append(slot)
            else:
                raise _LeftOutError(f"its input '{name}' does not come from a DynamicQuantizeLinear")
        if stored is None:
            raise _LeftOutError("it has no stored weight")
        scales, last, rest = self._back_to_float(node)
        scale, codes = graph.array(scales).astype(np.float32), graph.array(node.input[stored])
        zero = graph.array(node.input[2 + stored]) if len(node.input) > 2 + stored and node.input[2 + stored] else None
        axis = None if scale.size == 1 else 0 if op_type == "Conv" else codes.ndim - 1
        weight = StoredWeight(node.input[stored], codes.dtype.name, scale.reshape(-1), zero, axis, 0, stored)
        shape = [1] * codes.ndim
        if axis is not None:
            shape[axis] = -1
        offset = np.int32(0) if zero is None else zero.astype(np.int32).reshape(-1)[0]
        constants = {node.input[stored]: (codes.astype(np.int32) - offset).astype(np.float32) * scale.reshape(shape)}
        made = onnx.NodeProto(op_type=op_type, name=node.name, input=names, output=[rest[0] if rest else last])
        made.attribute.extend(node.attribute)
        nodes = [made]
        start = rest[0] if rest else last
        while start != last:
            (after,) = self._graph.readers(start)
            nodes.append(after)
            constants |= self._constants(after)
            start = after.output[0]
        return Unit(
            node.name, op_type, tuple(operands), self._tensor(last), last, tuple(nodes), constants, last, weight=weight
        )

    def _back_to_float(self, node: onnx.NodeProto) -> tuple[str, str, list[str]]:
        """The stored scale, the value that the float model knows, and the scaled product if that comes before it."""
        value, scales, scaled = node.output[0], None, []
        for _ in range(_LONGEST):
            after = self._graph.sole_reader(value)
            if after is None or not is_op(after, "Cast", "Mul", "Add"):
                break
            if after.op_type == "Mul" and scales is None:
                other = next((name for name in after.input if name != value), value)
                maker = self._graph.producer(other)
                factors = [other] if maker is None else [n for n in maker.input if self._graph.is_constant(n)]
                if len(factors) != 1:
                    break
                scales = factors[0]
                scaled = [after.output[0]]
            value = after.output[0]
            self._absorbed.add(id(after))
            if scales is not None and value in self._known:
                return scales, value, scaled if scaled[0] != value else []
        raise _LeftOutError("what makes a float of its result was not recognized")

    def _packed(self, node: onnx.NodeProto) -> Unit:
        """MatMulNBits, run as it is: its weights are in a layout of its own."""
        x = node.input[0]
        bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
        weight = StoredWeight(node.input[1], f"uint{bits}", np.ones(1, np.float32), None, 0, block, 1)
        return Unit(
            node.name,
            "MatMul",
            (Operand(self._tensor(x), x, x),),
            self._tensor(node.output[0]),
            node.output[0],
            (node,),
            self._constants(node),
            node.output[0],
            weight=weight,
        )

    def _between(self, node: onnx.NodeProto) -> Unit | None:
        """A float operator that reads dequantized values."""
        graph = self._graph
        read = [
            (index, name) for index, name in enumerate(node.input) if is_op(graph.producer(name), "DequantizeLinear")
        ]
        weights = [pair for pair in read if graph.is_dequantized_constant(pair[1])]
        weights = [pair for pair in weights if self._codes_dtype(pair[1]) != "int32"]
        activations = [pair for pair in read if not graph.is_dequantized_constant(pair[1])]
        if not weights and (not activations or (is_op(node, *MOVERS))):
            return None
        chain, value = self._absorb(node)
        quantizers = self._quantizers(value)
        if not weights and not quantizers and not is_op(node, *_SHAPED):
            return None  # a float operator behind the last quantized one
        self._absorbed.update(id(one) for one in chain)
        operands: list[Operand] = []
        constants: dict[str, Array] = {}
        stored: StoredWeight | None = None
        params: Codes | None
        inside = {name for one in chain for name in one.output}
        for one in chain:
            for index, name in enumerate(one.input):
                if not name or name in inside or any(operand.slot == name for operand in operands):
                    continue
                maker = graph.producer(name)
                if graph.is_constant(name):
                    constants[name] = graph.array(name)
                elif graph.is_dequantized_constant(name) and maker is not None:
                    constants[name] = graph.dequantized(maker)
                    if one is node and stored is None and self._codes_dtype(name) != "int32":
                        stored = self._stored_by(maker, index)
                elif is_op(maker, "DequantizeLinear") and maker is not None:
                    params = self._parameters(maker.input[1], maker.input[2] if len(maker.input) > 2 else "")
                    operands.append(Operand(self._tensor(maker.input[0], name), maker.input[0], name, params))
                else:
                    operands.append(Operand(self._tensor(name), name, name))
        source, params, nodes = value, None, list(chain)
        if quantizers:
            source = quantizers[0].output[0]
            params, ratio = self._read_back(quantizers[0])
            if ratio != 1.0:
                nodes, value = _divided(nodes, value, ratio, constants)
        return Unit(
            node.name,
            node.op_type,
            tuple(operands),
            self._tensor(source, chain[-1].output[0]),
            source,
            tuple(nodes),
            constants,
            value,
            params=params,
            weight=stored,
            # onnxruntime.quantization leaves a Relu out where the QuantizeLinear cuts the same values
            saturates=bool(quantizers) and not any(is_op(one, "Relu", "Clip") for one in chain),
        )

    # ------------------------------------------------------------------------------------------------------------ parts

    def _absorb(self, node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], str]:
        """The node with what belongs to it, and the value that it ends in."""
        chain, value = [node], node.output[0]
        taken, end = list(chain), value
        while True:
            if self._quantizers(end):
                return taken, end
            after = self._graph.sole_reader(end)
            if after is None:
                break
            others = [name for name in after.input if name and name != end]
            if not is_op(after, *_ABSORBED) or not all(
                self._graph.is_constant(n) or self._graph.is_dequantized_constant(n) for n in others
            ):
                break
            taken.append(after)
            end = after.output[0]
            if any(self._graph.is_dequantized_constant(n) for n in others):
                chain, value = list(taken), end
        return chain, value

    def _quantizers(self, value: str) -> list[onnx.NodeProto]:
        """The QuantizeLinear nodes behind a value that nothing else reads."""
        readers = self._graph.readers(value)
        quantized = value not in self._graph.outputs and all(is_op(reader, "QuantizeLinear") for reader in readers)
        return readers if quantized else []

    def _read_back(self, quantizer: onnx.NodeProto) -> tuple[Codes, float]:
        """How codes are read, and how much larger the scale is under which they were made."""
        made = self._parameters(quantizer.input[1], quantizer.input[2] if len(quantizer.input) > 2 else "")
        for reader in self._graph.readers(quantizer.output[0]):
            if is_op(reader, "DequantizeLinear"):
                scale = self._graph.array(reader.input[1])
                if scale.size == 1 and float(scale) > 0.0:
                    return Codes(scale.reshape(()), made.zero), float(made.scale) / float(scale)
        return made, 1.0

    def _parameters(self, scale: str, zero: str) -> Codes:
        graph = self._graph
        if not graph.is_constant(scale) or (zero and not graph.is_constant(zero)):
            raise _LeftOutError("its scales are computed by the running model")
        step = graph.array(scale)
        point = graph.array(zero) if zero else np.zeros((), np.uint8)
        if step.size != 1 or point.size != 1:
            raise _LeftOutError("an activation has a scale per channel")
        return Codes(step.reshape(()).astype(np.float32), point.reshape(()))

    def _stored(self, codes: str, scale: str, zero: str, op_type: str, position: int) -> StoredWeight:
        graph = self._graph
        step, array = graph.array(scale), graph.array(codes)
        point = graph.array(zero) if zero else None
        axis = None
        if step.size > 1:
            axis = 0 if op_type == "Conv" else array.ndim - 1 if position else max(0, array.ndim - 2)
        step = step.reshape(-1) if axis is not None else step.reshape(())
        if point is not None:
            point = np.broadcast_to(point.reshape(-1), (step.size,)).reshape(step.shape).copy()
        return StoredWeight(codes, array.dtype.name, step, point, axis, 0, position)

    def _stored_by(self, node: onnx.NodeProto, index: int) -> StoredWeight:
        """The weight behind a DequantizeLinear."""
        graph = self._graph
        scale = graph.array(node.input[1])
        zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        axis = attribute(node, "axis", 1) if scale.size > 1 else None
        dtype = self._codes_dtype(node.output[0])
        return StoredWeight(node.input[0], dtype, scale, zero, axis, attribute(node, "block_size", 0), index)

    def _codes_dtype(self, name: str) -> str:
        """Element type behind a DequantizeLinear, without reading the elements."""
        import onnx

        node = self._graph.producer(name)
        assert node is not None, "Bug: not a DequantizeLinear"
        tensor = self._graph.initializers.get(node.input[0])
        if tensor is None:
            return str(self._graph.array(node.input[0]).dtype.name)
        return str(onnx.TensorProto.DataType.Name(tensor.data_type)).lower()

    def _constants(self, node: onnx.NodeProto) -> dict[str, Array]:
        return {name: self._graph.array(name) for name in node.input if name and self._graph.is_constant(name)}

    def _tensor(self, name: str, *more: str) -> str:
        """The tensor of the float model that a value of the quantized one stands for.

        Raises:
            _LeftOutError: If there is none.
        """
        for candidate in self._names(name, *more):
            if candidate in self._known:
                return candidate
        raise _LeftOutError(f"'{name}' stands for no tensor of the float model")

    def _names(self, *values: str) -> Iterator[str]:
        for value in values:
            made = MADE.match(value)
            if made and value not in self._known:
                yield made[1]
            yield value
            maker = self._graph.producer(value)
            if is_op(maker, "QuantizeLinear") and maker is not None:
                inner = MADE.match(maker.input[0])
                yield maker.input[0]
                if inner:
                    yield inner[1]
            for reader in self._graph.readers(value):
                if is_op(reader, "DequantizeLinear"):
                    yield reader.output[0]

    def _moved(self, codes: str) -> Iterator[str]:
        """Codes, and those that they are moved from."""
        seen = [codes]
        while seen:
            value = seen.pop()
            yield value
            maker = self._graph.producer(value)
            if maker is not None and is_op(maker, *MOVERS, "Concat", "QuantizeLinear", "DequantizeLinear"):
                seen += [name for name in maker.input if not self._graph.is_constant(name)]

    def _is_owner(self, unit: Unit, read: set[str]) -> bool:
        return unit.params is not None and unit.source not in read


def _owning(unit: Unit, owns: bool) -> Unit:
    from dataclasses import replace

    return replace(unit, owns_output=True) if owns else unit


def _divided(
    nodes: list[onnx.NodeProto], value: str, ratio: float, constants: dict[str, Array]
) -> tuple[list[onnx.NodeProto], str]:
    """Nodes with a division behind them."""
    import onnx

    name, result = f"{value}:ratio", f"{value}:divided"
    constants[name] = np.asarray(ratio, np.float32)
    return [*nodes, onnx.NodeProto(op_type="Div", input=[value, name], output=[result])], result


def _dequantized(codes: Array, weight: StoredWeight) -> Array:
    return kernels.dequantize(codes, weight.scale, weight.zero, axis=1 if weight.axis is None else weight.axis)
