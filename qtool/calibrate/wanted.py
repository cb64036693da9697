"""What is to be observed of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

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

    Raises:
        ValueError: If there are energies without an axis, or they are no finite non-negative numbers.
    """

    name: str
    channel_axis: int | None = None
    channel_energy: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
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
