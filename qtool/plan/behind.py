"""What the readers behind a scalar function make of the errors of its argument.

A convolution's result that a HardSwish reads has no weights of its own to say which of its values matter. But each
element of it becomes one element of what the next convolution reads, on the same channel: a value x counts like f(x)
there and an error of it like f'(x) times as large a one: the range methods are given that tensor's channels, as far as
they reach in terms of x, and the slope. Without this the range before the function reaches where the range behind it
clips, and wastes its codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.calibrate.statistics import StatisticsBehind, TensorStatistics
from qtool.plan.analysis import Graph
from qtool.plan.pointwise import functions_of

Floats = npt.NDArray[np.float64]

_POINTS = 4097  # as fine as the bins of a histogram


def with_readers_behind(
    graph: Graph, value: ir.Value, own: TensorStatistics, seen: Mapping[str, TensorStatistics]
) -> TensorStatistics:
    """Statistics of a tensor with the channels of the first weighted reader that all of it passes to, if there is one.

    Args:
        graph: Facts about the graph of the value.
        value: The tensor.
        own: Its statistics.
        seen: Those of other tensors.

    Returns:
        ``own`` itself where its readers have weights, or nothing is known of those behind them.
    """
    if own.channel_energy is not None or not own.finite:
        return own
    points = np.linspace(min(max(own.minimum, own.floor), 0.0), max(own.maximum, 0.0), _POINTS)
    for output, result in functions_of(graph, value, points):
        behind = seen.get(output.name or "")
        if behind is None or behind.channel_energy is None or behind.channel_absmax is None:
            continue
        slopes = np.gradient(result, points) if np.ptp(points) > 0.0 else np.zeros(0)
        if not slopes.any() or not np.isfinite(slopes).all():
            return own
        told: dict[str, Any] = {field.name: getattr(own, field.name) for field in fields(TensorStatistics)}
        told |= {
            "channel_axis": behind.channel_axis,
            "channel_absmax": _reach(points, result, behind.channel_absmax),
            "channel_energy": behind.channel_energy,
            "clip_weight": max(own.clip_weight, behind.clip_weight),
        }
        return StatisticsBehind(**told, points=points, gain=np.square(slopes / np.abs(slopes).max()))
    return own


def _reach(points: Floats, result: Floats, behind: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Of each channel the largest |x| of the points whose function lies within its reach behind."""
    order = np.argsort(np.abs(points), kind="stable")
    magnitudes = np.abs(points)[order]
    least_from_here = np.minimum.accumulate(np.abs(result)[order][::-1])[::-1]
    last = np.searchsorted(least_from_here, behind, side="right") - 1
    return np.where(last < 0, 0.0, magnitudes[np.maximum(last, 0)]).astype(np.float32)
