"""Granularity of quantization parameters, in one language: the block shape (torchao's vocabulary).

A tensor is cut into blocks of ``block_shape``; each block has one scale and one zero point. Per tensor, per axis and
blocked are the same thing with different block shapes.
"""

from __future__ import annotations

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
