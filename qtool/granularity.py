"""Granularity of quantization parameters, in one language: the block shape (torchao's vocabulary).

A tensor is cut into blocks of ``block_shape``; each block has one scale and one zero point. Per tensor, per axis and
blocked are the same thing with different block shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qtool.errors import KernelError


def normalize_axis(axis: int, rank: int) -> int:
    """Axis in ``[0, rank)``.

    Raises:
        KernelError: If the axis lies outside ``[-rank, rank)``.
    """
    if not -rank <= axis < rank:
        raise KernelError(f"Axis {axis} is out of range for a tensor of rank {rank}; expected -{rank}..{rank - 1}.")
    return axis + rank if axis < 0 else axis


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor: x of shape (64, 128) has blocks of (64, 128)."""

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one block."""
        return tuple(shape)

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scale: a scalar."""
        del shape
        return ()


@dataclass(frozen=True)
class PerAxis:
    """One scale per index of an axis: x of shape (64, 128), axis 0, has blocks of (1, 128) and 64 scales."""

    axis: int

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one block."""
        axis = normalize_axis(self.axis, len(shape))
        return tuple(1 if i == axis else d for i, d in enumerate(shape))

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scale: 1-D, as long as the axis."""
        return (shape[normalize_axis(self.axis, len(shape))],)


@dataclass(frozen=True)
class PerBlock:
    """One scale per ``size`` elements along an axis: x of (64, 128), axis 1, size 32, has scales of (64, 4).

    The last block may be partial: size 48 gives (64, 3).
    """

    axis: int
    size: int

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one (full) block."""
        axis = normalize_axis(self.axis, len(shape))
        return tuple(self.size if i == axis else 1 for i in range(len(shape)))

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scale: that of x, with the blocked axis divided by the block size and rounded up."""
        axis = normalize_axis(self.axis, len(shape))
        return tuple(-(-d // self.size) if i == axis else d for i, d in enumerate(shape))


Granularity = PerTensor | PerAxis | PerBlock


def resolve(shape: tuple[int, ...], scale_shape: tuple[int, ...], axis: int, block_size: int) -> Granularity:
    """The granularity that QuantizeLinear and DequantizeLinear read off the shape of the scale.

    A scale of one element and rank 0 or 1 is per tensor; any other 1-D scale is per axis; with a ``block_size`` the
    scale has the rank of the tensor and Si = ceil(Di / B) blocks along the axis, the last of which may be partial.

    Args:
        shape: Shape of the tensor.
        scale_shape: Shape of its scale.
        axis: Quantized axis; negative counts from the back. Unused per tensor.
        block_size: Elements per scale along the axis; 0 if not blocked.

    Raises:
        KernelError: If the shapes, the axis and the block size do not go together.
    """
    if block_size == 0:
        if len(scale_shape) <= 1 and math.prod(scale_shape) == 1:
            return PerTensor()
        if len(scale_shape) == 1:
            per_axis = PerAxis(normalize_axis(axis, len(shape)))
            if scale_shape == per_axis.scale_shape(shape):
                return per_axis
            raise KernelError(
                f"Scale has shape {scale_shape}; expected {per_axis.scale_shape(shape)}, one value per index of axis "
                f"{per_axis.axis} of a tensor of shape {shape}."
            )
        raise KernelError(
            f"Scale has rank {len(scale_shape)} and block_size is 0; expected a scalar or a 1-D scale.",
            hint="Blocked quantization needs a positive block_size.",
        )
    if block_size < 0:
        raise KernelError(f"block_size is {block_size}; expected a positive number, or 0 for no blocks.")
    if not shape or len(scale_shape) != len(shape):
        raise KernelError(
            f"Scale has rank {len(scale_shape)} and block_size is {block_size}; expected the rank of the tensor "
            f"({len(shape)}), and at least 1."
        )
    axis = normalize_axis(axis, len(shape))
    blocked = PerBlock(axis, block_size)
    if scale_shape == blocked.scale_shape(shape):
        return blocked
    if all(s == d for i, (s, d) in enumerate(zip(scale_shape, shape, strict=True)) if i != axis):
        raise KernelError(
            f"block_size is {block_size} for {shape[axis]} elements and {scale_shape[axis]} scales along axis {axis}; "
            f"expected {_legal_block_sizes(shape[axis], scale_shape[axis])}."
        )
    raise KernelError(
        f"Scale has shape {scale_shape}; expected {blocked.scale_shape(shape)} for a tensor of shape {shape}, axis "
        f"{axis} and block_size {block_size}."
    )


def _legal_block_sizes(elements: int, scales: int) -> str:
    """The block sizes B with ceil(elements / B) == scales, in words: [ceil(D/S), ceil(D/(S-1)) - 1] of the spec."""
    if scales == 0 or elements == 0:
        return "scales if, and only if, there are elements"
    low = -(-elements // scales)
    if scales == 1:
        return f"{low} or more"
    high = -(-elements // (scales - 1)) - 1
    return f"{low} to {high}" if low <= high else f"another number of scales (no block size gives {scales})"
