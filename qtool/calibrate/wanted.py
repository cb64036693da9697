"""What is to be observed of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Wanted:
    """A tensor to observe, and what the model says about its channels.

    Attributes:
        name: Of a float tensor of the top graph.
        channel_axis: The axis that the weighted consumers sum over, possibly negative; ``None`` if channels do not
            matter.
        channel_energy: float64, shape ``(K,)``: for each input channel j the sum of ``||W[:, j]||^2`` over the weighted
            consumers; ``None`` if it is not known. Kept with the statistics, so that a range method finds it there.
        clip_weight: How much more the squared error of a clipped value counts than that of a rounded one, because the
            readers add up errors of one sign; ``inf`` if nothing may be clipped. Kept likewise.
        floor: The value below which the readers see next to nothing, at most 0; ``-inf`` if there is none. Kept
            likewise.
        coherence: How much more the square of the mean error counts than that of errors which average out: for y = W x
            sum_i (sum_j W[i, j])^2 / sum_ij W[i, j]^2 over the weighted readers, less the 1 that the squares count
            already; 0 if that is negative or there are none. Kept likewise.

    Raises:
        ValueError: If there are energies without an axis, or they are no finite non-negative numbers, the weight is
            below 1, or the floor above 0.
    """

    name: str
    channel_axis: int | None = None
    channel_energy: npt.NDArray[np.float64] | None = None
    clip_weight: float = 1.0
    floor: float = -inf
    coherence: float = 0.0

    def __post_init__(self) -> None:
        if not (self.clip_weight >= 1.0 and self.floor <= 0.0 and 0.0 <= self.coherence < inf):
            raise ValueError(f"Clip weight, floor or coherence of '{self.name}' is out of bounds.")
        energy = self.channel_energy
        if energy is None:
            return
        if self.channel_axis is None:
            raise ValueError(f"Channel energies of '{self.name}' without a channel axis.")
        if energy.dtype != np.float64 or energy.ndim != 1 or not np.isfinite(energy).all() or (energy < 0).any():
            raise ValueError(f"Channel energies of '{self.name}' are no 1-D float64 array of finite numbers from 0 up.")
        kept = energy.copy()
        kept.flags.writeable = False
        object.__setattr__(self, "channel_energy", kept)
