"""What the outputs are predicted to lose where sums of two products saturate."""

from __future__ import annotations

import math

import pytest

from qtool.evaluate.attribution.verdict import Verdict, _loss


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1.0, 10.0, 10.0),
        (1.0, 1.0, 0.0),
        (2.0, 1.0, 0.0),
        (0.0, 0.0, 0.0),
        (0.0, 1.0, math.inf),
        (1.0, math.inf, math.inf),
        (math.inf, math.inf, 0.0),
    ],
)
def test_loss_in_decibels(before: float, after: float, expected: float) -> None:
    assert _loss(before, after) == expected


@pytest.mark.parametrize(("loss", "words"), [(6.5, "about 6.5 dB"), (math.inf, "all that they have")])
def test_the_note_says_how_much(loss: float, words: str) -> None:
    (note,) = Verdict((1.0,), frozenset(), loss, without_vnni=True).notes
    assert f"saturate: the outputs would lose {words} there." in note
    assert Verdict((1.0,), frozenset(), loss, without_vnni=False).notes == []
