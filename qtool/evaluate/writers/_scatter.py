"""A scatter chart of numbered points, for candidates: what each costs against how good it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qtool.evaluate.writers._svg import Drawing

WIDTH, HEIGHT = 520.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 18.0, 34.0, 52.0
_NEAR = 13.0
"""Pixels within which points share a label."""


@dataclass(frozen=True)
class Point:
    """One candidate.

    Attributes:
        number: What it is called in the chart and in the table.
        x: Its cost.
        y: How good it is; an infinity stands at the edge.
        best: Whether it is marked.
    """

    number: int
    x: float
    y: float
    best: bool


@dataclass(frozen=True)
class Axis:
    """What an axis says.

    Attributes:
        title: What it measures.
        text: A value as text.
        bounds: The least and the largest value that there can be.
    """

    title: str
    text: Callable[[float], str]
    bounds: tuple[float, float] = (-math.inf, math.inf)


def scatter_chart(points: Sequence[Point], x: Axis, y: Axis, label: str) -> str:
    """Points on two linear axes that hold all of them.

    Args:
        points: At least one; y is a number or an infinity.
        x: The horizontal axis.
        y: The vertical axis.
        label: What it shows, for those who do not see it.
    """
    drawing = Drawing(WIDTH, HEIGHT, f"scatter {x.title}")
    across = _ticks([point.x for point in points], x.bounds)
    finite = [point.y for point in points if math.isfinite(point.y)]
    up = _ticks(finite or [0.0, 1.0], y.bounds)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def place(value: float, ticks: Sequence[float], low: float, high: float) -> float:
        if math.isinf(value):
            return high if value > 0 else low
        return low + (high - low) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    for tick in up if finite else ():
        height = place(tick, up, bottom, _TOP)
        drawing.line([_LEFT, right], [height, height], "line", 0.8)
        drawing.text(_LEFT - 8, height + 4, y.text(tick), color="muted", size=11, anchor="end", kind="figure")
    for number, tick in enumerate(across):
        along = place(tick, across, _LEFT, right)
        drawing.line([along, along], [_TOP, bottom], "line", 0.8)
        anchor = "end" if number == len(across) - 1 else "middle"
        drawing.text(along, bottom + 18, x.text(tick), color="muted", size=11, anchor=anchor, kind="figure")
    drawing.text(_LEFT, 16, y.title, color="muted", size=12)
    drawing.text(right, HEIGHT - 8, x.title, color="muted", size=12, anchor="end")
    spots = [(place(p.x, across, _LEFT, right), place(p.y, up, bottom, _TOP), p) for p in points]
    for left, top, point in sorted(spots, key=lambda spot: spot[2].best):
        drawing.dot(left, top, "accent" if point.best else "muted", 11.0 if point.best else 9.0, hollow=not point.best)
    for left, top, names in _labels(spots):
        inside = left < right - 40
        drawing.text(left + (10 if inside else -10), top - 8, names, size=12, anchor="start" if inside else "end",
                     kind="figure halo")  # fmt: skip
    return drawing.svg(label)


def _labels(spots: Sequence[tuple[float, float, Point]]) -> Iterator[tuple[float, float, str]]:
    """Numbers, of points that are close to each other together."""
    groups: list[list[tuple[float, float, Point]]] = []
    for spot in spots:
        near = next((g for g in groups if math.hypot(g[0][0] - spot[0], g[0][1] - spot[1]) < _NEAR), None)
        if near is None:
            groups.append([spot])
        else:
            near.append(spot)
    for group in groups:
        left, top, _ = group[0]
        yield left, top, ", ".join(str(point.number) for _, _, point in group)


def _ticks(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> list[float]:
    """Round numbers, evenly spaced, around all values: at least two."""
    low, high = min(values), max(values)
    if high == low:
        margin = abs(low) / 2 or 1.0
        low, high = max(low - margin, bounds[0]), min(high + margin, bounds[1])
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
