"""What calibration counts: the histogram on a power-of-two grid, and the range."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qtool import kernels
from qtool.bench import shapes
from qtool.bench.cases.case import GBS, NUMPY, QTOOL, Case, Engine, engine
from qtool.bench.cases.elementwise import matrix

EXPONENT, BITS = 3, 10  # 2048 bins over [-8, 8)


def histogram(elements: int, threads: int) -> list[Engine]:
    """2048 bins over a range that holds every value: where both cut at the same places, the counts are equal."""
    x = matrix(elements)
    limit = 2.0**EXPONENT
    return [
        engine(QTOOL, lambda: kernels.histogram(x, EXPONENT, BITS, num_threads=threads)),
        engine(NUMPY, lambda: np.histogram(x, 2 << BITS, (-limit, limit))[0]),
    ]


def min_max(elements: int, threads: int) -> list[Engine]:
    """One pass that also counts NaN, Inf and zeros, against two that do not."""
    x = matrix(elements)
    return [
        engine(QTOOL, lambda: kernels.min_max(x, num_threads=threads), comparable=False),
        engine(NUMPY, lambda: (np.min(x), np.max(x)), comparable=False),
    ]


def _case(name: str, size: str) -> Case:
    elements = shapes.ELEMENTS[size]
    build = histogram if name == "histogram" else min_max
    return Case(f"{name}/float32/{size}", GBS, 4.0 * elements, lambda t: build(elements, t), quick=size == "1M")


def cases() -> Iterator[Case]:
    """All statistics."""
    for name in ("histogram", "min_max"):
        for size in ("1M", "16M"):
            yield _case(name, size)
