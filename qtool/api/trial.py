"""Made-up input for a trial run: whether a model loads and runs, never how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.runtime import TensorInfo

# of dimensions without a size, but for the first, which is 1: one after the other until the float model runs
_OPEN_SIZES = (64, 8, 512)


def trial_feeds(inputs: tuple[TensorInfo, ...]) -> tuple[Sequence[tuple[int, Mapping[str, Any]]], list[str]]:
    """Seeded random samples for a model with these inputs: normal floats, integers 0 and 1.

    Dimensions without a size become 1 (the first) or 64, 8 or 512 (all others of one sample).

    Returns:
        Alternatives, each (number of samples, inputs), of which one is meant to be run; none, and a remark, if no
        sample can be made up.
    """
    from qtool.errors import DataError

    is_open = any(not isinstance(size, int) for info in inputs for size in info.shape[1:])
    try:
        return [_sample(inputs, size) for size in (_OPEN_SIZES if is_open else _OPEN_SIZES[:1])], []
    except DataError as error:
        return [], [f"the result was loaded, but not run: {error.message}"]


def _sample(inputs: tuple[TensorInfo, ...], open_size: int) -> tuple[int, Mapping[str, Any]]:
    from qtool.calibrate.samples import random_samples

    sizes: dict[str, int] = {}
    for info in inputs:
        for axis, size in enumerate(info.shape):
            if isinstance(size, str):
                sizes.setdefault(size, 1 if axis == 0 else open_size)
    fixed = tuple(
        replace(
            info,
            shape=tuple(
                size if isinstance(size, int) else sizes[size] if isinstance(size, str) else open_size if axis else 1
                for axis, size in enumerate(info.shape)
            ),
        )
        for info in inputs
    )
    return next(iter(random_samples(fixed, 1).counted_batches(None)))
