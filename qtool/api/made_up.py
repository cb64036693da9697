"""Inputs made up for verification where the user gave none: seeded normal floats, integers 0 and 1.

They decide about no scale. Where a model leaves dimensions open, sizes are tried one after the other until the float
model runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.models import inputs_of
from qtool.errors import DataError, QtoolError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.runtime import TensorInfo

_COUNT = 2
# sizes that are tried for open dimensions: quality shows on small ones, blocks of weights and their kernels on larger
_SIZES = (8, 1, 16, 64)
_TRIAL_SIZES = (64, 8, 512)


def random_feeds(
    loaded: ir.Model,
    float_model: str | Path | onnx.ModelProto,
    *,
    num_threads: int | None,
    base_dir: str | Path | None,
) -> tuple[list[tuple[int, Mapping[str, Any]]], str | None]:
    """Seeded random batches that the float model runs on, each with its number of samples; or none, and a line why.

    The first size for open dimensions with which the float model runs is taken.
    """
    from qtool.runtime import create_session

    reason = ""
    try:
        inputs = inputs_of(loaded)
        session = create_session(float_model, num_threads=num_threads, base_dir=base_dir)
    except QtoolError as error:
        return [], _remark(error.message)
    if any(0 in info.shape for info in inputs):
        return [], _remark("an input has no elements.")
    for size in _sizes_for(inputs, _SIZES):
        try:
            batches = _batches(inputs, size, _COUNT)
            for _, feeds in batches:
                session.run(feeds)
        except QtoolError as error:
            reason = reason or error.message
            continue
        return batches, None
    return [], _remark(reason)


def trial_feeds(inputs: Sequence[TensorInfo]) -> tuple[Sequence[tuple[int, Mapping[str, Any]]], list[str]]:
    """Seeded random samples for a trial run: whether a model loads and runs, never how good it is.

    Returns:
        Alternatives, each (number of samples, inputs), of which one is meant to be run; none, and a remark, if no
        sample can be made up.
    """
    try:
        return [_batches(inputs, size, 1)[0] for size in _sizes_for(inputs, _TRIAL_SIZES)], []
    except DataError as error:
        return [], [f"the result was loaded, but not run: {error.message}"]


def _sizes_for(inputs: Sequence[TensorInfo], sizes: Sequence[int]) -> Sequence[int]:
    """All sizes, if a dimension takes one: a leading one that is open has size 1."""
    is_open = any(not isinstance(size, int) for info in inputs for size in info.shape[1:])
    return sizes if is_open else sizes[:1]


def _batches(inputs: Sequence[TensorInfo], size: int, count: int) -> list[tuple[int, Mapping[str, Any]]]:
    from qtool.calibrate.samples import random_samples

    return list(random_samples(_closed(inputs, size), count).counted_batches())


def _closed(inputs: Sequence[TensorInfo], size: int) -> list[TensorInfo]:
    """Inputs with a size for every dimension: 1 for a leading one, ``size`` for others; one symbol has one size."""
    sizes: dict[str, int] = {}
    for info in inputs:
        for axis, found in enumerate(info.shape):
            if isinstance(found, str):
                sizes.setdefault(found, size if axis else 1)

    def closed(axis: int, found: int | str | None) -> int:
        return found if isinstance(found, int) else size if axis and found is None else sizes.get(found or "", 1)

    return [replace(info, shape=tuple(closed(axis, s) for axis, s in enumerate(info.shape))) for info in inputs]


def _remark(reason: str) -> str:
    return (
        f"The result was loaded, but run on nothing: no samples are given, and random ones do not do ({reason}) "
        "Give samples with --calib."
    )
