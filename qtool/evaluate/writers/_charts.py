"""The charts of the HTML report. They draw what the report holds; what one leaves out, the tables have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtool.evaluate.attribution.report import InputHistogram, LayerReport
from qtool.evaluate.details import ModelFile
from qtool.evaluate.writers._cells import format_bytes
from qtool.evaluate.writers._svg import Drawing
from qtool.evaluate.writers._text import decibels, one_line, percent, share_text

WIDTH = 460.0
ROW = 40.0
TOP_DB = 70.0
"""Right end of the axis of decibels; more than that is as good as exact."""
FIX_DB, FLAG_DB = 20.0, 25.0
NAME_LENGTH = 44


def shortened(name: str, length: int = NAME_LENGTH) -> str:
    """A name that fits, cut in the middle: the ends of node names are what tells them apart."""
    shown = one_line(name)
    if len(shown) <= length:
        return shown
    tail = (length - 1) * 2 // 3
    return f"{shown[: length - 1 - tail]}…{shown[-tail:]}"


def share_chart(layers: Sequence[LayerReport]) -> str:
    """Bars: how much of the noise at the outputs each operator adds."""
    drawing = Drawing(WIDTH, ROW * len(layers) + 4, "share")
    largest = max((layer.share or 0.0 for layer in layers), default=0.0) or 1.0
    for row, layer in enumerate(layers):
        top = ROW * row
        share = layer.share or 0.0
        drawing.text(0, top + 14, shortened(layer.node), size=12, kind="mono")
        drawing.text(WIDTH, top + 14, share_text(layer), size=12, anchor="end", kind="figure")
        drawing.rectangle(0, top + 20, WIDTH, 9, "line")
        if share > 0:
            drawing.rectangle(0, top + 20, max(1.5, WIDTH * share / largest), 9, str(layer.cause))
    first = layers[0]
    return drawing.svg(
        f"Bar chart of {len(layers)} operators by their share of the output noise. The first is {one_line(first.node)} "
        f"with {share_text(first)}. The table below has all figures."
    )


def decibel_chart(layers: Sequence[LayerReport], *, without_vnni: bool = False) -> str:
    """Dots: own, inherited and total decibels of each operator, with the marks below which something is wrong.

    Args:
        layers: The operators.
        without_vnni: Whether to draw, where sums saturate on a processor without VNNI, the own decibels there as well.
    """
    bottom = ROW * len(layers) + 4
    drawing = Drawing(WIDTH, bottom + 24, "decibels")
    left, right = 6.0, WIDTH - 6.0

    def place(value: float) -> float:
        return left + (right - left) * min(max(value, 0.0), TOP_DB) / TOP_DB

    drawing.rectangle(left, 0, place(FIX_DB) - left, bottom, "saturation", 0.10)
    drawing.rectangle(place(FIX_DB), 0, place(FLAG_DB) - place(FIX_DB), bottom, "clipping", 0.10)
    for tick in range(0, int(TOP_DB) + 1, 10):
        drawing.line([place(tick)] * 2, [0, bottom], "line", 0.8)
        anchor = "start" if tick == 0 else "end" if tick == TOP_DB else "middle"
        drawing.text(place(tick), bottom + 16, f"{tick}{' dB' if tick == TOP_DB else ''}", color="muted", size=11,
                     anchor=anchor)  # fmt: skip
    for row, layer in enumerate(layers):
        top = ROW * row
        drawing.text(left, top + 14, shortened(layer.node, 40), size=12, kind="mono halo")
        there = layer.own_without_vnni_db if without_vnni else None
        every = (layer.own_db, there, layer.inherited_db, layer.total_db)
        values = [v for v in every if v is not None and not math.isnan(v)]
        if values:
            drawing.line([place(min(values)), place(max(values))], [top + 25] * 2, "muted", 1.2)
        for value, color, hollow in (
            (layer.inherited_db, "muted", True),
            (layer.total_db, "ink", False),
            (layer.own_db, "accent", False),
            (there, "saturation", False),
        ):
            if value is not None and not math.isnan(value):
                drawing.dot(place(value), top + 25, color, 11.0 if hollow else 7.0, hollow=hollow)
    first = layers[0]
    return drawing.svg(
        f"Dot chart of own, inherited and total decibels of {len(layers)} operators. {one_line(first.node)} has "
        f"{decibels(first.own_db)} of its own and {decibels(first.total_db)} in total. The table below has all figures."
    )


def histogram_chart(histogram: InputHistogram, salt: str) -> str:
    """The values of an activation on a logarithmic axis of counts, and the range that was chosen for them."""
    width, height, floor = 340.0, 112.0, 88.0
    drawing = Drawing(width, height, salt)
    ends = [histogram.low, histogram.high]
    ends += [end for end in (histogram.range_low, histogram.range_high) if end is not None and math.isfinite(end)]
    # of values near the end of float64 the width is infinite, half of each is not
    low, span = min(ends) / 2, max(ends) / 2 - min(ends) / 2

    def place(value: float) -> float:
        return 4 + (width - 8) * ((value / 2 - low) / span if span > 0 else 0.5)

    chosen = histogram.range_low is not None and histogram.range_high is not None
    if chosen:
        left, right = place(histogram.range_low or 0.0), place(histogram.range_high or 0.0)
        drawing.rectangle(left, 4, max(right - left, 1.0), floor - 4, "accent", 0.13)
    most = math.log1p(max(histogram.counts, default=0)) or 1.0
    count = len(histogram.counts)
    first, last = place(histogram.low), place(histogram.high)
    edges = [first + (last - first) * index / count for index in range(count + 1)] if count else []
    if count and last > first:
        tops = [floor - (floor - 10) * math.log1p(number) / most for number in histogram.counts]
        drawing.steps(edges, tops, floor, "rounding")
    drawing.line([4, width - 4], [floor, floor], "muted", 1.0)
    if chosen:
        for x in (left, right):
            drawing.line([x, x], [4, floor], "accent", 1.6)
    drawing.text(4, height - 8, f"{min(ends):.4g}", color="muted", size=11, kind="figure")
    drawing.text(width - 4, height - 8, f"{max(ends):.4g}", color="muted", size=11, anchor="end", kind="figure")
    if min(ends) < 0 < max(ends) and 0.15 < (place(0.0) - 4) / (width - 8) < 0.85:
        drawing.line([place(0.0)] * 2, [floor, floor + 5], "muted", 1.0)
        drawing.text(place(0.0), height - 8, "0", color="muted", size=11, anchor="middle", kind="figure")
    return drawing.svg(f"Histogram of {one_line(histogram.tensor)}: {describe(histogram)}.")


def describe(histogram: InputHistogram) -> str:
    """The histogram in words."""
    values = f"values from {histogram.low:.4g} to {histogram.high:.4g}"
    if histogram.range_low is None or histogram.range_high is None:
        return f"{values}; the running model chooses the range"
    text = f"{values}, range {histogram.range_low:.4g} to {histogram.range_high:.4g}"
    text += f", {percent(histogram.clipped)} clipped"
    return f"{text}, {histogram.used} of {histogram.codes} codes used" if histogram.codes else text


def size_chart(reference: ModelFile, candidate: ModelFile) -> str:
    """Two bars of bytes by element type, on one scale."""
    width, bar = 1040.0, 26.0
    drawing = Drawing(width, 128, "size")
    most = max(reference.nbytes, candidate.nbytes, 1)
    for index, (title, model) in enumerate((("float", reference), ("quantized", candidate))):
        top = index * 64.0
        drawing.text(0, top + 15, title, size=13)
        drawing.text(width, top + 15, format_bytes(model.nbytes), size=13, anchor="end", kind="figure")
        drawing.rectangle(0, top + 24, width, bar, "line")
        x = 0.0
        for one in model.types:
            part = width * one.nbytes / most
            if part > 0.5:
                drawing.rectangle(x, top + 24, part, bar, type_color(one.dtype))
                if part > 90:
                    drawing.text(x + 8, top + 41, one.dtype, size=12, kind="on-bar")
            x += part
    return drawing.svg(
        f"Bars of the bytes of both models by element type: float {_types(reference)}; quantized {_types(candidate)}."
    )


def type_color(dtype: str) -> str:
    """One colour for floats, one for codes, one for the rest."""
    if dtype.startswith(("float", "bfloat", "double")):
        return "float" if dtype in ("float32", "float64", "float16", "bfloat16") else "code"
    return "code" if dtype in ("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16") else "other"


def _types(model: ModelFile) -> str:
    return ", ".join(f"{one.dtype} {format_bytes(one.nbytes)}" for one in model.types) or "no constants"
