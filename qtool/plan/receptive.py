"""Which elements of its input a Conv multiplies for one element of its output, as rows of a matrix product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Geometry:
    """Attributes of a Conv, one number for each spatial axis (``pads``: a pair).

    Attributes:
        kernel: Size of the kernel.
        strides: Steps of the output.
        dilations: Steps within the kernel.
        pads: Padding before and after; None for ``auto``.
        auto: ``SAME_UPPER`` or ``SAME_LOWER``, whose padding depends on the input.
        groups: Number of groups of channels.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...] | None
    auto: str
    groups: int

    def rows(self, x: Array, fill: int, *, limit: int) -> list[Array]:
        """What is multiplied with the weights of each group, for up to ``limit`` elements of the output.

        Args:
            x: (N, C, *spatial), the input.
            fill: What padding holds.
            limit: Number of rows; they are evenly spaced over batch and space.

        Returns:
            A matrix (rows, kernel elements * channels of the group) for each group, channels fastest.
        """
        pads = self._pads(x.shape[2:])
        padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill) if any(map(any, pads)) else x
        sizes = self.sizes(x.shape[2:])
        count = len(x) * math.prod(sizes)
        if count <= limit:
            return self._all_rows(padded, sizes)
        chosen = np.linspace(0, max(count - 1, 0), min(count, limit)).astype(np.intp)
        batch, *places = np.unravel_index(chosen, (len(x), *sizes))
        starts = [place * stride for place, stride in zip(places, self.strides, strict=True)]
        taps = []
        for offset in itertools.product(*(range(k) for k in self.kernel)):
            where = tuple(start + o * d for start, o, d in zip(starts, offset, self.dilations, strict=True))
            index: tuple[Any, ...] = (batch, slice(None), *where)
            taps.append(padded[index])
        stacked = np.stack(taps, axis=1)  # (rows, kernel elements, channels)
        parts = np.split(stacked, self.groups, axis=2)
        return [np.ascontiguousarray(part).reshape(len(chosen), -1) for part in parts]

    def _all_rows(self, padded: Array, sizes: list[int]) -> list[Array]:
        """The same for every element of the output: whole windows are copied, which takes far less than picking."""
        taps = list(itertools.product(*(range(k) for k in self.kernel)))
        channels = padded.shape[1]
        stacked = np.empty((len(padded), *sizes, len(taps), channels), padded.dtype)
        for tap, offset in enumerate(taps):
            window = tuple(
                slice(o * d, o * d + (size - 1) * stride + 1, stride)
                for o, d, size, stride in zip(offset, self.dilations, sizes, self.strides, strict=True)
            )
            stacked[..., tap, :] = np.moveaxis(padded[(slice(None), slice(None), *window)], 1, -1)
        rows = stacked.reshape(-1, len(taps), channels)
        parts = np.split(rows, self.groups, axis=2)
        return [np.ascontiguousarray(part).reshape(len(rows), -1) for part in parts]

    def sizes(self, spatial: tuple[int, ...]) -> list[int]:
        """Size of the output, for an input of such a size."""
        return [
            max(0, (size + sum(pad) - (k - 1) * d - 1) // s + 1)
            for size, pad, k, d, s in zip(
                spatial, self._pads(spatial), self.kernel, self.dilations, self.strides, strict=True
            )
        ]

    @classmethod
    def of(cls, attributes: Mapping[str, Any], kernel: tuple[int, ...]) -> Geometry:
        """The attributes of a Conv as they are in its node, without those that have their default."""
        rank = len(kernel)
        auto = attributes.get("auto_pad", "NOTSET")
        flat = attributes.get("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        return cls(
            kernel=tuple(kernel),
            strides=tuple(attributes.get("strides", (1,) * rank)),
            dilations=tuple(attributes.get("dilations", (1,) * rank)),
            pads=None if auto.startswith("SAME") else tuple(zip(flat[:rank], flat[rank:], strict=True)),
            auto=auto,
            groups=int(attributes.get("group", 1)),
        )

    def _pads(self, spatial: tuple[int, ...]) -> list[tuple[int, int]]:
        if self.pads is not None:
            return list(self.pads)
        found = []
        for size, k, d, s in zip(spatial, self.kernel, self.dilations, self.strides, strict=True):
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            half = total // 2
            found.append((half, total - half) if self.auto == "SAME_UPPER" else (total - half, half))
        return found


def geometry_of(node: ir.Node, weight_shape: tuple[int, ...]) -> Geometry:
    """The attributes of a Conv whose weight has shape (M, C / groups, *kernel)."""
    attributes: dict[str, Any] = {}
    for name, one in node.attributes.items():
        if name == "auto_pad":
            attributes[name] = one.as_string()
        elif name == "group":
            attributes[name] = one.as_int()
        elif name in ("pads", "strides", "dilations"):
            attributes[name] = tuple(one.as_ints())
    return Geometry.of(attributes, tuple(weight_shape[2:]))
