"""Who is to blame, and on which kind of processor.

Sums of two products that leave int16 saturate on processors without VNNI, and nowhere else. Blame is shared out on one
kind: on that without VNNI where the outputs would lose more than a trace there, because a model meets processors that
nobody has tested it on; otherwise on the other, on which such sums cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qtool.evaluate.attribution.saturation import NOTABLE_DB
from qtool.evaluate.attribution.share import noises, shares
from qtool.evaluate.attribution.tally import UnitTally


@dataclass(frozen=True)
class Verdict:
    """Shares of the noise at the outputs.

    Attributes:
        shares: Of each unit.
        measured: Units whose share was measured.
        loss_db: Decibels that the outputs are predicted to lose without VNNI; None if nothing saturates.
        without_vnni: Whether the shares are those without VNNI.
    """

    shares: Sequence[float | None]
    measured: frozenset[int]
    loss_db: float | None
    without_vnni: bool

    @property
    def notes(self) -> list[str]:
        """What the reader should know."""
        if not self.without_vnni:
            return []
        if self.loss_db is None:
            there = "; on these samples none does."
        else:
            lost = f"about {self.loss_db:.1f} dB" if math.isfinite(self.loss_db) else "all that they have"
            there = f": the outputs would lose {lost} there."
        text = (
            f"Shares, ranks and causes are those on a processor without VNNI, where int16 sums saturate{there} "
            "What operators inherit, and the total, is of onnxruntime on this one."
        )
        return [text]


def judge(
    tallies: Sequence[UnitTally], measured: Mapping[int, float], injected: Mapping[int, float], *, without_vnni: bool
) -> Verdict:
    """Predict the noise on both kinds of processor, and share it out on one.

    Args:
        tallies: Of all units.
        measured: Unit -> noise at the outputs that its error of one batch makes, saturation included.
        injected: Unit -> noise of that error beside the signal where it is made.
        without_vnni: Whether the shares have to be those without VNNI.
    """
    there, here = (
        noises(
            [tally.noise_to_signal(saturation=saturation) for tally in tallies],
            {u: noise * _of_all_samples(tallies[u], injected.get(u), saturation) for u, noise in measured.items()},
        )
        for saturation in (True, False)
    )
    loss = _loss(sum(here), sum(there)) if any(tally.saturated for tally in tallies) else None
    counts = without_vnni or (loss is not None and loss >= NOTABLE_DB)
    return Verdict(shares(there if counts else here), frozenset(measured), loss, counts)


def _of_all_samples(tally: UnitTally, injected: float | None, saturation: bool) -> float:
    """What the noise of a unit's error counts where it saturates: that of all samples, as it is rare in few of them."""
    ratio = tally.noise_to_signal(saturation=saturation)
    return ratio / injected if tally.saturated and injected and math.isfinite(ratio) else 1.0


def _loss(before: float, after: float) -> float:
    if not before:
        return math.inf if after else 0.0
    if not math.isfinite(before):  # nothing is left to lose
        return 0.0
    return max(0.0, 10.0 * math.log10(after / before)) if math.isfinite(after) else math.inf
