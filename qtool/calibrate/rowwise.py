"""Whether a batch says of each sample what the sample says alone, to the last bit.

Runtimes choose kernels by shape: a product of one row may add in another order than that of many rows. Statistics must
not depend on the batch, so every shape of batch is checked the first time it occurs: its first and its last sample are
run alone as well, segment by segment. A tensor with a sample axis must hold their arrays at its ends; one without must
be equal to both, and is then the same for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qtool.calibrate.blocked import Run

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = Mapping[str, Array]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def shapes_of(feeds: Feeds) -> Shapes:
    """What decides how a runtime computes a batch."""
    return tuple(array.shape for array in feeds.values())


def single(feeds: Feeds, row: int) -> dict[str, Array]:
    """One sample of a batch."""
    return {name: array[row : row + 1] for name, array in feeds.items()}


def find_shared(model: Run, rows: int, feeds: Feeds) -> frozenset[str] | str:
    """Check a batch of two samples or more against its first and last one.

    Returns:
        The tensors that have no sample axis; or the name of one whose values depend on the batch.
    """
    shared: set[str] = set()
    heads, tails = model.steps(single(feeds, 0)), model.steps(single(feeds, rows - 1))
    for (whole, _), (first, _), (last, _) in zip(model.steps(feeds), heads, tails, strict=True):
        for name, array in whole.items():
            if _same(array, first[name]) and _same(array, last[name]):
                shared.add(name)
            elif not _is_stacked(array, first[name], last[name], rows):
                return name
        whole.clear()
        first.clear()
        last.clear()
    return frozenset(shared)


def _is_stacked(array: Array, first: Array, last: Array, rows: int) -> bool:
    if array.ndim == 0 or first.ndim != array.ndim or first.shape[0] * rows != array.shape[0]:
        return False
    n = first.shape[0]
    return first.shape == last.shape and _same(array[:n], first) and _same(array[array.shape[0] - n :], last)


def _same(a: Array, b: Array) -> bool:
    """Equal shapes and bits: NaNs are equal to themselves, and the two zeros are not equal."""
    if a.shape != b.shape:
        return False
    bits = np.dtype(f"uint{8 * a.itemsize}")
    return bool(np.array_equal(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits)))
