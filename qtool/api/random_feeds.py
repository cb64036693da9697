"""Inputs made up for verification where the user gave none; they decide about no scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.models import inputs_of
from qtool.errors import QtoolError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.runtime import TensorInfo

_COUNT = 2
# sizes that are tried for dimensions that the model leaves open; the same name has the same size
_SIZES = (8, 1, 16, 64)


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
    from qtool.calibrate.samples import random_samples
    from qtool.runtime import create_session

    reason = ""
    try:
        inputs = inputs_of(loaded)
        session = create_session(float_model, num_threads=num_threads, base_dir=base_dir)
    except QtoolError as error:
        return [], _remark(error.message)
    if any(0 in info.shape for info in inputs):
        return [], _remark("an input has no elements.")
    open_axes = any(not isinstance(size, int) for info in inputs for size in info.shape)
    for size in _SIZES if open_axes else _SIZES[:1]:
        try:
            samples = random_samples(_closed(inputs, size), _COUNT)
            batches: list[tuple[int, Mapping[str, Any]]] = list(samples.counted_batches())
            for _, feeds in batches:
                session.run(feeds)
        except QtoolError as error:
            reason = reason or error.message
            continue
        return batches, None
    return [], _remark(reason)


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
