"""What tells two statistics apart, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.calibrate.saved import SavedStatistics, difference_of
from qtool.calibrate.statistics import TensorStatistics, merge

COUNTS = ("count", "nan", "pos_inf", "neg_inf", "zeros")
MEANS = ("sample_ranges", "sample_min_sum", "sample_max_sum")


@dataclass(frozen=True)
class TensorDifference:
    """One thing in which a tensor's statistics differ.

    Attributes:
        tensor: Its name.
        what: ``tensor`` (only one has it), ``range``, ``mean range``, ``histogram``, ``channels``, or the name of a
            count.
        first: As a user reads it; ``-`` if there is nothing.
        second: The same of the other.
    """

    tensor: str
    what: str
    first: str
    second: str


@dataclass(frozen=True)
class StatsDifference:
    """What tells two statistics files apart.

    Attributes:
        model: The first part of the model that differs; None if both are of one model.
        samples: How many each is of.
        tensors: Differences of tensors, in the order of the first file.
        same_data: Whether both are of the same samples of the same files; no difference of the statistics.
    """

    model: str | None
    samples: tuple[int, int]
    tensors: tuple[TensorDifference, ...]
    same_data: bool

    @property
    def equal(self) -> bool:
        """Whether model, number of samples and all statistics are the same."""
        return self.model is None and self.samples[0] == self.samples[1] and not self.tensors

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = [{"tensor": r.tensor, "what": r.what, "first": r.first, "second": r.second} for r in self.tensors]
        return {
            "equal": self.equal,
            "model": self.model,
            "samples": list(self.samples),
            "same_data": self.same_data,
            "differences": rows,
        }


def difference(first: SavedStatistics, second: SavedStatistics) -> StatsDifference:
    """Compare two statistics; exact, nothing is rounded before."""
    mine, theirs = first.statistics, second.statistics
    rows: list[TensorDifference] = []
    for name in dict.fromkeys([*mine, *theirs]):
        if name in mine and name in theirs:
            rows += _of_tensor(name, mine[name], theirs[name])
        else:
            rows.append(TensorDifference(name, "tensor", *(_there(name in one) for one in (mine, theirs))))
    return StatsDifference(
        model=difference_of(second.model, first.model, other="the first"),
        samples=(first.samples, second.samples),
        tensors=tuple(rows),
        same_data=first.coverage == second.coverage,
    )


def _there(is_there: bool) -> str:
    return "observed" if is_there else "-"


def _of_tensor(name: str, a: TensorStatistics, b: TensorStatistics) -> Iterator[TensorDifference]:
    if a == b:
        return
    changed = [TensorDifference(name, "range", _range(a), _range(b))] if _range(a) != _range(b) else []
    for key in COUNTS:
        mine, theirs = getattr(a, key), getattr(b, key)
        if mine != theirs:
            changed.append(TensorDifference(name, key.replace("_", " "), str(mine), str(theirs)))
    if any(getattr(a, key) != getattr(b, key) for key in MEANS):
        changed.append(TensorDifference(name, "mean range", _mean_range(a), _mean_range(b)))
    yield from changed
    if (a.histogram is None) != (b.histogram is None):
        yield TensorDifference(name, "histogram", *(_there(one.histogram is not None) for one in (a, b)))
    elif a.histogram is not None and a.finite == b.finite and (moved := _moved(a, b)):
        yield TensorDifference(name, "histogram", f"{moved} values", "in other bins")
    channels = [_channels(one) for one in (a, b)]
    if channels[0] != channels[1]:
        yield TensorDifference(name, "channels", channels[0][0], channels[1][0])


def _moved(a: TensorStatistics, b: TensorStatistics) -> int:
    """How many values lie in other bins, both histograms being of one width."""
    wide_a = merge(a.without_channels(), TensorStatistics(histogram=np.zeros_like(b.histogram), exponent=b.exponent))
    wide_b = merge(b.without_channels(), TensorStatistics(histogram=np.zeros_like(a.histogram), exponent=a.exponent))
    assert wide_a.histogram is not None, "Bug: the histogram was merged away"
    assert wide_b.histogram is not None, "Bug: the histogram was merged away"
    return int(np.abs(wide_a.histogram - wide_b.histogram).sum()) // 2


def _range(one: TensorStatistics) -> str:
    return f"[{one.minimum!r}, {one.maximum!r}]" if one.finite else "-"


def _mean_range(one: TensorStatistics) -> str:
    if not one.sample_ranges:
        return "-"
    return f"[{one.mean_minimum!r}, {one.mean_maximum!r}] of {one.sample_ranges} samples"


def _channels(one: TensorStatistics) -> tuple[str, bytes, bytes]:
    """For a reader, and for the comparison."""
    if one.channel_axis is None:
        return "-", b"", b""
    absmax = b"" if one.channel_absmax is None else one.channel_absmax.tobytes()
    energy = b"" if one.channel_energy is None else one.channel_energy.tobytes()
    number = 0 if one.channel_absmax is None else len(one.channel_absmax)
    return f"{number} along axis {one.channel_axis}", absmax, energy
