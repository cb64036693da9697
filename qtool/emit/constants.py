"""Scales, zero points, quantized weights and biases as initializers, each stored once.

Constants are keyed by what they hold, never by a name: two operators that read one weight along different axes, or one
bias under two scales, each get their own copy; equal ones are shared. Weight bytes are produced while the model is
saved, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool import kernels
from qtool.granularity import PerAxis, PerBlock
from qtool.plan.analysis import dims_of
from qtool.prepare.graph_edits import NameAllocator
from qtool.qparams import QParams


@dataclass(frozen=True)
class QuantizedConstant:
    """A quantized initializer with its parameters.

    Attributes:
        codes: The integer (or minifloat) tensor.
        scale: Its scale.
        zero_point: Its zero point; None for int32.
        axis: Axis of a per-axis scale.
    """

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    axis: int | None


class Codes:
    """Codes of weights that are computed once for several models of one source."""

    def __init__(self) -> None:
        self._made: dict[Hashable, npt.NDArray[Any]] = {}

    def once(self, key: Hashable, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What ``make`` gives for a key, made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class Constants:
    """Initializers that qtool adds to one graph.

    Args:
        graph: The graph.
        names: Names that are free in the model.
        codes: Keeps the codes of weights for other models of the same source; None computes them on each saving.
    """

    def __init__(self, graph: ir.Graph, names: NameAllocator, codes: Codes | None = None) -> None:
        self._graph = graph
        self._names = names
        self._codes = codes
        self._made: dict[Hashable, ir.Value] = {}
        # the source of an id in a key must live as long as the key
        self._kept: list[Any] = []

    def parameters(self, base: str, params: QParams) -> tuple[ir.Value, ir.Value]:
        """(scale, zero point) initializers of ``params``, named after ``base`` if they are new."""
        scale = self.add(("scale", params), f"{base}_scale", lambda: params.scale, ir.DataType.FLOAT)
        zero = self.add(
            ("zero_point", params),
            f"{base}_zero_point",
            lambda: params.zero_point,
            ir.DataType(params.dtype.onnx),
        )
        return scale, zero

    def weight(self, source: ir.Value, params: QParams) -> QuantizedConstant:
        """``source`` quantized under ``params``."""
        value = self.codes(source, params)
        scale, zero = self.parameters(source.name or "", params)
        return QuantizedConstant(value, scale, zero, _layout(params)[0])

    def codes(self, source: ir.Value, params: QParams) -> ir.Value:
        """The codes of ``source`` under ``params``."""
        tensor = source.const_value
        assert tensor is not None, "Bug: not a constant"
        axis, block = _layout(params)

        def make() -> npt.NDArray[Any]:
            return kernels.quantize(
                tensor.numpy(),  # of any strides; making it contiguous would give a scalar a dimension
                params.scale,
                params.zero_point,
                axis=1 if axis is None else axis,
                block_size=block,
            )

        key, codes = ("weight", id(tensor), params), self._codes
        value = self.add(
            key,
            f"{source.name}_quantized",
            make if codes is None else lambda: codes.once(key, make),
            ir.DataType(params.dtype.onnx),
            shape=tuple(dims_of(tensor)),
        )
        self._kept.append(tensor)
        return value

    def bias(
        self, source: ir.Value, input_params: QParams, weight_params: QParams, *, rank: int = 1
    ) -> QuantizedConstant:
        """``source`` as int32 of shape (N,), or (1, .., N), with scale exactly f32(sx)*f32(sw[c]): rint(b / scale)."""
        tensor = source.const_value
        assert tensor is not None, "Bug: not a constant"
        scale = np.asarray(np.float32(input_params.scale) * weight_params.scale.astype(np.float32))
        shape = (*[1] * (rank - 1), int(tensor.size))
        key = ("bias", id(tensor), scale.tobytes(), scale.shape, shape)

        def codes() -> npt.NDArray[np.int32]:
            exact = np.rint(tensor.numpy().reshape(shape).astype(np.float64) / scale.astype(np.float64))
            return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

        value = self.add(key, f"{source.name}_quantized", codes, ir.DataType.INT32, shape=shape)
        scale_value = self.add((*key, "scale"), f"{source.name}_scale", lambda: scale, ir.DataType.FLOAT)
        self._kept.append(tensor)
        return QuantizedConstant(value, scale_value, None, rank - 1 if scale.ndim else None)

    def derived(
        self,
        source: ir.Value,
        base: str,
        make: Callable[[], npt.NDArray[Any]],
        dtype: ir.DataType,
        shape: tuple[int, ...],
        *parts: Hashable,
    ) -> ir.Value:
        """What ``make`` computes from ``source`` on saving; equal names and ``parts`` are the same one."""
        tensor = source.const_value
        assert tensor is not None, "Bug: not a constant"
        self._kept.append(tensor)
        return self.add(("derived", id(tensor), base, shape, *parts), base, make, dtype, shape=shape)

    def array(self, base: str, array: npt.NDArray[Any]) -> ir.Value:
        """A small constant, shared with all that have its type, shape and elements."""
        key = ("array", array.dtype.str, array.shape, array.tobytes())
        return self.add(key, base, lambda: array, ir.DataType.from_numpy(array.dtype))

    def add(
        self,
        key: Hashable,
        base: str,
        make: Callable[[], npt.NDArray[Any]],
        dtype: ir.DataType,
        *,
        shape: tuple[int, ...] | None = None,
    ) -> ir.Value:
        """An initializer, made once for each key.

        Args:
            key: What the initializer holds.
            base: What its name starts with.
            make: Makes its elements: now, or while the model is saved if the shape is given.
            dtype: Its element type.
            shape: Its shape.
        """
        if key in self._made:
            return self._made[key]
        name = self._names.value(base)
        if shape is None:
            tensor: ir.TensorProtocol = ir.Tensor(make(), dtype=dtype, name=name)
            shape = tuple(dims_of(tensor))
        else:
            tensor = ir.LazyTensor(
                lambda: ir.Tensor(make(), dtype=dtype, name=name), dtype=dtype, shape=ir.Shape(shape), name=name
            )
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor)
        self._graph.register_initializer(value)
        self._made[key] = value
        return value


def _layout(params: QParams) -> tuple[int | None, int]:
    if isinstance(params.granularity, PerAxis):
        return params.granularity.axis, 0
    if isinstance(params.granularity, PerBlock):
        return params.granularity.axis, params.granularity.size
    return None, 0
