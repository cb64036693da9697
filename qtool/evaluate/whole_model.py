"""Whether one range method for all tensors is better than ``auto``, which looks at each tensor alone.

Several quantized forms of a model are run on calibration samples beside the float model. With n_i the energy of the
error of sample i at an output, under ``auto`` and under another method,

    gain = 10 log10( sum n_i(auto) / sum n_i(other) )    [dB]

The gain is an estimate from few samples: its standard error follows from how much each of them contributes,

    error = 10 / ln 10 * sqrt( m / (m - 1) * sum (n_i(auto) / sum n(auto) - n_i(other) / sum n(other))^2 )

of m samples. The other method is taken where its gain is more than ``MARGIN_DB`` and more than ``CERTAINTY`` standard
errors at every output. 2.5 of them are a chance below one in 80: one in 20 that any of four methods wins by chance.

That holds where the error of ``auto`` comes from many samples. Where a few make most of it (a classifier that is sure
of all but one), what is best for those says nothing about others: the samples that carry the error count as

    (sum n_i)^2 / sum n_i^2

of them, and below ``CARRIERS`` under ``auto`` nothing is concluded from an output, except that a method is not taken
that is worse there. The other method may leave its error to a few samples, as one that clips does: ``error`` grows with
that, up to 4.3 dB where one sample has it all. Without this rule, and with more lenient ones, the choice is worse than
``auto`` on the other half of the calibration data of eleven models (docs/results.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.runtime import Session, TensorInfo
from qtool.signal import db, signal_and_noise

SHARE = 8
"""The judged samples are at most those of the calibration divided by this: the check shall cost little beside it."""
MIN_SAMPLES = 32
"""Samples, or batches where the model fixes their size, below which nothing is judged."""
ROUNDS = (8, 16, 32)
"""Samples after which methods that have fallen behind are dropped; the last number is the most."""
CARRIERS = 8.0
"""Samples that must carry the error of ``auto``."""
MAX_OUTPUT_BYTES = 32 << 20
"""Of the float model's outputs, which are kept for all candidates."""
MARGIN_DB = 0.1
CERTAINTY = 2.5

Batch = tuple[int, Mapping[str, npt.NDArray[Any]]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """How much better a method is than ``auto`` at an output.

    Attributes:
        db: Decibels.
        error: Standard error of that.
    """

    db: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Whether the method is better."""
        return self.db >= MARGIN_DB and self.db >= CERTAINTY * self.error

    @property
    def is_hopeless(self) -> bool:
        """Whether the method is unlikely to turn out better on more samples."""
        return self.db + CERTAINTY * self.error < MARGIN_DB


def gain_of(auto: Floats, other: Floats) -> Gain | None:
    """The gain at one output; None if the method changes nothing there.

    Args:
        auto: Error energies under ``auto``, shape (samples,); infinite or NaN where the output is no good.
        other: Those under another method, same shape.
    """
    before, after = float(auto.sum()), float(other.sum())
    if np.array_equal(auto, other) and math.isfinite(before):
        return None
    if not math.isfinite(after) or before == 0.0:
        return Gain(-math.inf, 0.0)
    if not math.isfinite(before) or after == 0.0:
        return Gain(math.inf, 0.0)
    count = len(auto)
    spread = float(np.sum((auto / before - other / after) ** 2))
    error = 10.0 / math.log(10.0) * math.sqrt(count / (count - 1) * spread) if count > 1 else math.inf
    return Gain(10.0 * math.log10(before / after), error)


def carriers(noise: Floats) -> float:
    """How many samples carry the error: all if they have the same, 1 if one of them has it all."""
    total, squares = float(noise.sum()), float(np.sum(noise**2))
    return total**2 / squares if math.isfinite(squares) and squares > 0.0 else float(len(noise))


class KnownOutputs:
    """A model as far as its outputs for some inputs are known; a :class:`~qtool.runtime.Session` for these.

    Args:
        session: The model; it is run here, and not kept.
        batches: What to run it on.
        workers: Batches to run at once.
    """

    def __init__(self, session: Session, batches: Sequence[Batch], *, workers: int) -> None:
        self.inputs: tuple[TensorInfo, ...] = session.inputs
        self.outputs: tuple[TensorInfo, ...] = session.outputs
        self.opaque_outputs: Mapping[str, str] = session.opaque_outputs
        self.batches = list(batches)
        """Those whose outputs are known; the feeds of an id in _known must live as long as it."""
        with ThreadPoolExecutor(workers) as pool:
            outputs = pool.map(lambda batch: session.run(batch[1]), batches)
            self._known = {id(batch[1]): found for batch, found in zip(batches, outputs, strict=True)}

    def forget_all_but(self, count: int) -> None:
        """Let the outputs of all but the first batches go."""
        self.batches = self.batches[:count]
        kept = {id(feeds) for _, feeds in self.batches}
        self._known = {key: outputs for key, outputs in self._known.items() if key in kept}

    def run(
        self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """The outputs for one of the batches, which must be the same object."""
        known = self._known[id(feeds)]
        return known if outputs is None else {name: known[name] for name in outputs}


@dataclass(frozen=True)
class Energies:
    """Signal and error of a quantized model at its float outputs.

    Attributes:
        signal: Output -> energy of the float model's output, shape (samples,).
        noise: Output -> energy of the error, same shape; infinite where the outputs cannot be compared.
    """

    signal: Mapping[str, Floats]
    noise: Mapping[str, Floats]

    def joined(self, more: Energies) -> Energies:
        """Those of further samples behind these."""
        return Energies(
            {name: np.concatenate([one, more.signal[name]]) for name, one in self.signal.items()},
            {name: np.concatenate([one, more.noise[name]]) for name, one in self.noise.items()},
        )

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.noise.values()), ()))

    @property
    def sqnr_db(self) -> dict[str, float]:
        """Output -> decibels over all samples."""
        return {name: db(float(self.signal[name].sum()), float(one.sum())) for name, one in self.noise.items()}

    @property
    def carriers(self) -> float:
        """Samples that carry the error, at the output where they are most."""
        return max(map(carriers, self.noise.values()))


def energies(session: Session, reference: KnownOutputs, batches: Sequence[Batch], *, workers: int) -> Energies:
    """Run a quantized model.

    Args:
        session: The model; it is run by several threads at once.
        reference: The float model.
        batches: Some of the float model's.
        workers: Batches at once.
    """
    names = [info.name for info in reference.outputs if info.dtype.kind in "fV"]

    def compared(batch: Batch) -> list[tuple[float, float]]:
        expected, found = reference.run(batch[1]), session.run(batch[1], names)
        return [_energy(expected[name], found[name]) for name in names]

    with ThreadPoolExecutor(workers) as pool:
        table = np.asarray(list(pool.map(compared, batches)), np.float64).reshape(len(batches), len(names), 2)
    return Energies(
        {name: table[:, column, 0] for column, name in enumerate(names)},
        {name: table[:, column, 1] for column, name in enumerate(names)},
    )


def _energy(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> tuple[float, float]:
    if found.shape != expected.shape:
        return 0.0, math.inf
    signal, noise = signal_and_noise(expected, found)
    return signal, noise if math.isfinite(noise) else math.inf


def gains(auto: Energies, other: Energies) -> list[Gain]:
    """The gain at each output that the method changes; over the samples that both have."""
    return [gain for gain, _ in _gains(auto, other)]


def telling_gains(auto: Energies, other: Energies) -> list[Gain]:
    """The gains at those of the outputs whose error under ``auto`` many samples carry."""
    return [gain for gain, is_telling in _gains(auto, other) if is_telling]


def _gains(auto: Energies, other: Energies, share: float = 1.0) -> list[tuple[Gain, bool]]:
    """Gains, and whether they tell: after a share of the samples, that share of the carriers will do."""
    count = min(auto.samples, other.samples)
    found = []
    for name, noise in auto.noise.items():
        before = noise[:count]
        gain = gain_of(before, other.noise[name][:count])
        if gain is not None:
            found.append((gain, carriers(before) >= share * CARRIERS))
    return found


def least(found: Iterable[Gain]) -> Gain:
    """The gain where it is least; that of the larger error among equals."""
    return min(found, key=lambda gain: (gain.db, -gain.error))


def is_better(auto: Energies, other: Energies) -> bool:
    """Whether a method is better than ``auto`` at every output that tells, by no chance, and worse at no other."""
    found = _gains(auto, other)
    telling = [gain for gain, is_telling in found if is_telling]
    return bool(telling) and all(g.is_sure for g in telling) and not any(gain.is_hopeless for gain, _ in found)


def is_behind(auto: Energies, other: Energies, total: int) -> bool:
    """Whether a method is as good as out of the race: worse at some output that tells, or the same everywhere.

    Args:
        auto: After a part of the samples.
        other: After the same.
        total: How many samples there will be.
    """
    found = _gains(auto, other, auto.samples / total)
    return not found or any(gain.is_hopeless for gain, is_telling in found if is_telling)


@dataclass(frozen=True)
class MethodTrial:
    """One way to choose the ranges, on the whole model.

    Attributes:
        method: As the user writes it.
        samples: How many samples it ran on; fewer than ``auto`` where it fell too far behind, 0 where it does not run.
        sqnr_db: Output -> decibels on these.
        gain: Against ``auto``, where it is least among the outputs that tell, or else among all; None for ``auto``
            itself, where nothing ran, and where the outputs are the same.
    """

    method: str
    samples: int
    sqnr_db: Mapping[str, float]
    gain: Gain | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict-JSON-ready: infinities and NaN are strings."""
        gain = self.gain
        return {
            "method": self.method,
            "samples": self.samples,
            "sqnr_db": {name: _number(value) for name, value in self.sqnr_db.items()},
            "gain_db": None if gain is None else _number(gain.db),
            "gain_error_db": None if gain is None else _number(gain.error),
        }


@dataclass(frozen=True)
class AutoCheck:
    """Which ranges the tensors got that were left to ``auto``.

    Attributes:
        chosen: ``auto``, or the method that is better for the whole model.
        samples: Calibration samples on which that was judged; 0 if it was not.
        reason: Why, in one clause.
        trials: What was measured, ``auto`` first; none if nothing was judged.
    """

    chosen: str
    samples: int
    reason: str
    trials: tuple[MethodTrial, ...] = ()

    def message(self) -> str:
        """One line."""
        return f"{self.chosen}, tensor by tensor: {self.reason}" if self.chosen == "auto" else self.reason

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "chosen": self.chosen,
            "samples": self.samples,
            "reason": self.reason,
            "trials": [trial.to_dict() for trial in self.trials],
        }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
