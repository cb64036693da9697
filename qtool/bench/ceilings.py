"""What the machine does at most, sampled in the same rounds as the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qtool import kernels
from qtool.bench.timing import Sampler, timed

if TYPE_CHECKING:
    from qtool.kernels.ceilings import Peak


def copy(elements: int, work: float) -> Sampler:
    """Seconds that ``work`` bytes of traffic take at the rate of ``np.copyto`` on float32.

    Args:
        elements: Size of the arrays.
        work: Bytes read and written.
    """
    source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    sample = timed(lambda: np.copyto(target, source))
    share = work / (source.nbytes + target.nbytes)
    return lambda: sample() * share


def peak(name: Peak, work: float) -> Sampler | None:
    """Seconds that ``work`` operations take at the peak of a dot-product unit; None on a processor without it."""
    if kernels.peak(name, 1e-3) is None:
        return None
    return lambda: work / (kernels.peak(name) or 1.0)
