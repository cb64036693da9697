"""Float operators that take most of the time in ``onnx.reference``, in NumPy without loops over elements.

They give what ``onnx.reference`` gives up to the order of a float sum, which ONNX leaves open. Half precision is
summed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.errors import KernelError
from qtool.reference import conv_geometry
from qtool.runtime.spec.quantized import Array, Call


def conv(call: Call) -> tuple[Array, ...]:
    """Conv of floats: a matrix product with the windows as columns; depthwise, a sum over the taps of the kernel."""
    x, w, bias = call.arrays(3)
    group = call.attributes["group"]
    g = conv_geometry(x.shape, w.shape, **call.attributes)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    kernel = w.shape[2:]
    padded = _padded(x.astype(wide, copy=False), g.pads_begin, g.pads_end, 0.0)
    weight = w.astype(wide, copy=False)
    count = math.prod(g.output)
    if w.shape[1] == 1 and group > 1:
        multiplier = w.shape[0] // group
        y = np.zeros((x.shape[0], group, multiplier, *g.output), wide)
        ones = (1,) * len(kernel)
        for taps in np.ndindex(*kernel):
            factor = weight[(slice(None), 0, *taps)].reshape(group, multiplier, *ones)
            y += _window(padded, taps, g.strides, g.dilations, g.output)[:, :, None] * factor
    else:
        columns = np.empty((x.shape[0], x.shape[1], math.prod(kernel), count), wide)
        for index, taps in enumerate(np.ndindex(*kernel)):
            window = _window(padded, taps, g.strides, g.dilations, g.output)
            columns[:, :, index] = window.reshape(*x.shape[:2], count)
        depth = w.shape[1] * math.prod(kernel)
        rows = weight.reshape(1, group, w.shape[0] // group, depth)
        y = np.matmul(rows, columns.reshape(x.shape[0], group, depth, count))
    y = y.reshape(x.shape[0], w.shape[0], *g.output)
    if bias is not None:
        y += bias.astype(wide).reshape(-1, *(1,) * len(kernel))
    return (y.astype(x.dtype, copy=False),)


def conv_transpose(call: Call) -> tuple[Array, ...]:
    """ConvTranspose of floats: one matrix product per tap of the kernel, added where the tap writes."""
    x, w, bias = call.arrays(3)
    group = call.attributes["group"]
    g = _transposed(x.shape, w.shape, call.attributes)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    spatial, kernel = x.shape[2:], w.shape[2:]
    features = w.shape[1]
    columns = x.astype(wide, copy=False).reshape(x.shape[0], group, x.shape[1] // group, math.prod(spatial))
    weight = w.astype(wide, copy=False).reshape(group, x.shape[1] // group, features, *kernel)
    y = np.zeros((x.shape[0], w.shape[1] * group, *g.full), wide)
    for taps in np.ndindex(*kernel):
        rows = np.ascontiguousarray(weight[(..., *taps)].swapaxes(1, 2))
        target = _window(y, taps, g.strides, g.dilations, spatial)
        target += np.matmul(rows, columns).reshape(target.shape)
    y = y[(slice(None), slice(None), *map(slice, g.begin, map(sum, zip(g.begin, g.output, strict=True))))]
    if bias is not None:
        y += bias.astype(wide).reshape(-1, *(1,) * len(kernel))
    return (y.astype(x.dtype, copy=False),)


@dataclass(frozen=True)
class _Transposed:
    """The spatial numbers of a ConvTranspose; the output starts at ``begin`` of what all taps write, ``full``."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    output: tuple[int, ...]
    full: tuple[int, ...]


def _transposed(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any]) -> _Transposed:
    rank = len(x_shape) - 2
    group = attributes["group"]
    if rank < 1 or len(w_shape) != rank + 2 or group < 1 or x_shape[1] != w_shape[0] or w_shape[0] % group:
        raise KernelError(
            f"ConvTranspose has x of shape {x_shape}, w of shape {w_shape} and group={group}; "
            "expected (N, C, D1, ..., Dn), (C, M/group, k1, ..., kn) and C divisible by group."
        )
    kernel = attributes.get("kernel_shape")
    if kernel and tuple(kernel) != w_shape[2:]:
        raise KernelError(f"ConvTranspose has kernel_shape={list(kernel)} and w of shape {w_shape}.")

    def numbers(name: str, default: int, count: int = rank) -> tuple[int, ...]:
        value = tuple(attributes.get(name) or (default,) * count)
        if len(value) != count or min(value) < default:
            raise KernelError(f"ConvTranspose has {name}={list(value)}; expected {count} values >= {default}.")
        return value

    strides, dilations, adds = numbers("strides", 1), numbers("dilations", 1), numbers("output_padding", 0)
    pads = numbers("pads", 0, 2 * rank)
    auto_pad = attributes.get("auto_pad") or "NOTSET"
    wanted = attributes.get("output_shape")
    if wanted:
        wanted = numbers("output_shape", 1)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(size * stride for size, stride in zip(x_shape[2:], strides, strict=True))
    full = tuple(
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, stride, k, dilation in zip(x_shape[2:], strides, w_shape[2:], dilations, strict=True)
    )
    if wanted:  # pads follow from the output; where it reaches beyond what the taps write, it is bias alone
        total = tuple(max(f + add - size, 0) for f, add, size in zip(full, adds, wanted, strict=True))
        begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
        output = wanted
    else:
        if auto_pad == "VALID":
            pads = (0,) * (2 * rank)
        begin = pads[:rank]
        output = tuple(f + add - b - e for f, add, b, e in zip(full, adds, begin, pads[rank:], strict=True))
        if min(output) < 1:
            raise KernelError(f"ConvTranspose has pads={list(pads)}, which leave an output of shape {list(output)}.")
    reach = tuple(max(f, b + size) for f, b, size in zip(full, begin, output, strict=True))
    return _Transposed(strides, dilations, begin, output, reach)


def batch_normalization(call: Call) -> tuple[Array, ...]:
    """BatchNormalization for inference; ``onnx.reference`` takes statistics of the batch below opset 14."""
    if call.outputs > 1 or call.attributes.get("training_mode"):
        raise KernelError("BatchNormalization is in training mode; expected inference.")
    x = call.arrays(5)[0]
    wide = np.float64 if x.dtype == np.float64 else np.float32
    shape = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (array.astype(wide).reshape(shape) for array in call.arrays(5)[1:])
    y = scale * (x.astype(wide) - mean) / np.sqrt(variance + wide(call.attributes["epsilon"])) + bias
    return (y.astype(x.dtype, copy=False),)


def max_pool(call: Call) -> tuple[Array, ...]:
    """MaxPool of floats or 8-bit integers, with the indices of the maxima if the node wants them."""
    (x,) = call.arrays(1)
    p = _pooling(x.shape, call.attributes)
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    padded = _padded(x, p.begin, p.end, lowest)
    y = np.full((*x.shape[:2], *p.output), lowest, x.dtype)
    if call.outputs == 1:
        for taps in np.ndindex(*p.kernel):
            np.maximum(y, _window(padded, taps, p.strides, p.dilations, p.output), out=y)
        return (y,)
    spatial = x.shape[2:]
    order = range(len(spatial)) if call.attributes["storage_order"] == 0 else reversed(range(len(spatial)))
    steps, step = [0] * len(spatial), 1
    for axis in reversed(list(order)):
        steps[axis], step = step, step * spatial[axis]
    first = (np.arange(math.prod(x.shape[:2])) * step).reshape(*x.shape[:2], *(1,) * len(spatial))
    indices = np.full(y.shape, -1, np.int64)
    for taps in np.ndindex(*p.kernel):
        window = _window(padded, taps, p.strides, p.dilations, p.output)
        positions = np.ix_(
            *(
                (np.arange(out) * stride + tap * dilation - begin) * width
                for out, stride, tap, dilation, begin, width in zip(
                    p.output, p.strides, taps, p.dilations, p.begin, steps, strict=True
                )
            )
        )
        inside = _window(_padded(np.ones((1, 1, *spatial), bool), p.begin, p.end, False), taps, *p.steps)
        better = inside & ((window > y) | (indices < 0))
        y = np.where(better, window, y)
        indices = np.where(better, first + sum(positions), indices)
    return y, indices


def global_max_pool(call: Call) -> tuple[Array, ...]:
    """GlobalMaxPool; ``onnx.reference`` loses axes unless there are two spatial ones."""
    (x,) = call.arrays(1)
    return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def average_pool(call: Call) -> tuple[Array, ...]:
    """AveragePool; what ceil_mode adds beyond the pads is never counted."""
    (x,) = call.arrays(1)
    p = _pooling(x.shape, call.attributes)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    padded = _padded(x.astype(wide, copy=False), p.begin, p.end, 0.0)
    inside = np.ones((1, 1, *x.shape[2:]), wide)
    if call.attributes.get("count_include_pad"):
        inside = _padded(inside, p.begin, p.declared_end, 1.0)
        inside = _padded(inside, (0,) * len(p.end), [e - d for e, d in zip(p.end, p.declared_end, strict=True)], 0.0)
    else:
        inside = _padded(inside, p.begin, p.end, 0.0)
    total = np.zeros((*x.shape[:2], *p.output), wide)
    count = np.zeros((1, 1, *p.output), wide)
    for taps in np.ndindex(*p.kernel):
        total += _window(padded, taps, *p.steps)
        count += _window(inside, taps, *p.steps)
    return ((total / count).astype(x.dtype, copy=False),)


@dataclass(frozen=True)
class _Pooling:
    """The spatial numbers of a pool, one entry per spatial axis; ``end`` reaches to the end of the last window."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    declared_end: tuple[int, ...]
    end: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def steps(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The last arguments of :func:`_window`."""
        return self.strides, self.dilations, self.output


def _pooling(shape: tuple[int, ...], attributes: dict[str, Any]) -> _Pooling:
    kernel = tuple(attributes["kernel_shape"])
    rank = len(kernel)
    if len(shape) != rank + 2:
        raise KernelError(f"x has shape {shape}; expected 2 axes more than kernel_shape {list(kernel)} has.")
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = attributes.get("pads") or (0,) * (2 * rank)
    begin, end = list(pads[:rank]), list(pads[rank:])
    auto_pad = attributes.get("auto_pad") or "NOTSET"
    output, reached = [], []
    for axis, (size, k, stride, dilation) in enumerate(zip(shape[2:], kernel, strides, dilations, strict=True)):
        extent = (k - 1) * dilation + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-size // stride)
            need = max((count - 1) * stride + extent - size, 0)
            small, large = need // 2, need - need // 2
            begin[axis], end[axis] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        else:
            if auto_pad == "VALID":
                begin[axis] = end[axis] = 0
            room = size + begin[axis] + end[axis] - extent
            count = room // stride + 1
            if attributes.get("ceil_mode") and auto_pad == "NOTSET":
                count = -(-room // stride) + 1
                if (count - 1) * stride >= size + begin[axis]:  # the last window starts inside
                    count -= 1
            if count < 1:
                raise KernelError(f"The kernel {list(kernel)} is larger than x of shape {shape} with its pads.")
        output.append(count)
        reached.append(max(end[axis], (count - 1) * stride + extent - size - begin[axis]))
    return _Pooling(kernel, strides, dilations, tuple(begin), tuple(end), tuple(reached), tuple(output))


def _padded(x: Array, begin: Sequence[int], end: Sequence[int], value: float) -> Array:
    if not any((*begin, *end)):
        return x
    return np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)], constant_values=value)


def _window(
    padded: Array, taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int], output: Sequence[int]
) -> Array:
    """What one tap of the kernel sees at every output position, a view of shape (N, C, *output)."""
    slices = [
        slice(tap * dilation, tap * dilation + (size - 1) * stride + 1, stride)
        for tap, stride, dilation, size in zip(taps, strides, dilations, output, strict=True)
    ]
    return padded[(slice(None), slice(None), *slices)]
