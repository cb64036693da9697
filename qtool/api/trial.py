"""Made-up input for a trial run: whether a model loads and runs, never how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qtool.errors import DataError

if TYPE_CHECKING:
    from qtool.runtime import TensorInfo

# of dimensions without a size, but for the first, which is 1
_OPEN_SIZE = 8


def trial_feeds(inputs: tuple[TensorInfo, ...]) -> tuple[Sequence[tuple[int, Mapping[str, Any]]], list[str]]:
    """One seeded random sample for a model with these inputs: normal floats, integers 0 and 1.

    Dimensions without a size become 1 (the first) or 8; one symbol is one size.

    Returns:
        (number of samples, inputs) at most once, and a remark if none could be made.
    """
    from qtool.calibrate.samples import random_samples

    sizes: dict[str, int] = {}
    for info in inputs:
        for axis, size in enumerate(info.shape):
            if isinstance(size, str):
                sizes.setdefault(size, 1 if axis == 0 else _OPEN_SIZE)
    fixed = tuple(
        replace(
            info,
            shape=tuple(
                size if isinstance(size, int) else sizes[size] if isinstance(size, str) else _OPEN_SIZE if axis else 1
                for axis, size in enumerate(info.shape)
            ),
        )
        for info in inputs
    )
    try:
        samples = random_samples(fixed, 1)
        return [(rows, feeds) for rows, feeds in samples.counted_batches(None)][:1], []
    except DataError as error:
        return [], [f"the result was loaded, but not run: {error.message}"]
