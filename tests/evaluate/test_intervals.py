"""Exact and resampled statistics: by hand, and against other ways to the same number."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from qtool.evaluate import intervals
from qtool.evaluate.intervals import Z, bootstrap, detectable_share, draws, mcnemar, score_interval, share_interval


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (6, 0, 2 / 64), (0, 6, 2 / 64), (3, 3, 1.0), (8, 1, 2 * 10 / 512)],
)
def test_mcnemar(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == p


def test_mcnemar_is_the_exact_binomial() -> None:
    for lost, gained in ((30, 45), (700, 601), (2, 90)):
        n = lost + gained
        tail = sum(Fraction(math.comb(n, i), 2**n) for i in range(min(lost, gained) + 1))
        assert mcnemar(lost, gained) == pytest.approx(float(2 * tail), rel=1e-14)


def test_mcnemar_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = mcnemar(2400, 2550)
    monkeypatch.setattr(intervals, "_EXACT", 100)
    assert mcnemar(2400, 2550) == pytest.approx(exact, rel=1e-9)
    assert 0.0 < mcnemar(400_000, 402_000) < 0.05


def restricted_score(lost: int, gained: int, n: int, delta: float) -> float:
    """The score statistic with the likelihood's maximum found by search, not by its formula."""

    def likelihood(q: float) -> float:
        p = q + delta
        terms = ((gained, p), (lost, q), (n - lost - gained, 1 - p - q))
        return sum(count * math.log(max(share, 1e-300)) for count, share in terms if count)

    low, high = max(0.0, -delta), (1 - delta) / 2
    for _ in range(200):
        third = (high - low) / 3
        low, high = (low + third, high) if likelihood(low + third) < likelihood(high - third) else (low, high - third)
    q = (low + high) / 2
    return (gained - lost - n * delta) / math.sqrt(n * (2 * q + delta - delta * delta))


@pytest.mark.parametrize(("lost", "gained", "n"), [(12, 2, 50), (1, 0, 30), (40, 35, 600), (3, 9, 12), (0, 6, 20)])
def test_the_ends_of_an_interval_are_just_rejected(lost: int, gained: int, n: int) -> None:
    low, high = score_interval(lost, gained, n)
    assert restricted_score(lost, gained, n, low) == pytest.approx(Z, abs=2e-5)
    assert restricted_score(lost, gained, n, high) == pytest.approx(-Z, abs=2e-5)
    assert low <= (gained - lost) / n <= high
    mirrored = score_interval(gained, lost, n)
    assert (-mirrored[1], -mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_no_disagreement_still_leaves_room() -> None:
    # with nothing discordant the score is n d / sqrt(n d (1 - d)): it is z at d = z^2 / (n + z^2)
    low, high = score_interval(0, 0, 200)
    assert high == pytest.approx(Z * Z / (200 + Z * Z), rel=1e-9)
    assert low == pytest.approx(-high, rel=1e-9)
    assert score_interval(0, 1, 1)[1] == pytest.approx(1.0)


def test_a_share_of_all_or_none_leaves_room() -> None:
    z2 = Z * Z
    assert share_interval(1.0, 500) == pytest.approx((500 / (500 + z2), 1.0), rel=1e-12)
    assert share_interval(0.0, 20) == pytest.approx((0.0, z2 / (20 + z2)), abs=1e-15)
    low, high = share_interval(0.8, 50)
    for end in (low, high):  # just where the normal test of a share ends to reject
        assert abs(0.8 - end) / math.sqrt(end * (1 - end) / 50) == pytest.approx(Z, rel=1e-9)


def test_detectable() -> None:
    assert detectable_share(0, 0, 200) == 6 / 200  # 6 losses and no gain: p = 2 / 64
    assert detectable_share(2, 3, 200) == 6 / 200
    assert detectable_share(4, 5, 200) == 7 / 200  # 8 : 1 has p = 0.039, 7 : 2 has 0.18
    assert detectable_share(50, 50, 1000) == (61 - 39) / 1000  # 60 : 40 has p = 0.057
    assert detectable_share(0, 0, 5) > 1
    for lost, gained in ((50, 50), (7, 9), (300, 111)):
        m, net = lost + gained, round(detectable_share(lost, gained, 1000) * 1000)
        gains = (m - net) // 2
        assert mcnemar(m - gains, gains) < 0.05 <= mcnemar(m - gains - 1, gains + 1)


def test_bootstrap_of_a_mean_is_the_normal_interval() -> None:
    values = np.random.default_rng(0).standard_normal(400)
    (interval,) = bootstrap(400, [lambda weights: weights @ values / 400])
    assert interval is not None
    error = values.std() / 20
    assert interval == pytest.approx((values.mean() - Z * error, values.mean() + Z * error), abs=0.15 * error)
    assert interval == bootstrap(400, [lambda weights: weights @ values / 400])[0]  # the seed is fixed


def test_bootstrap_draws_n_of_n() -> None:
    seen = []
    bootstrap(9, [lambda weights: (seen.append(weights.copy()), weights[:, 0])[1]])
    weights = np.concatenate(seen)
    assert weights.shape == (1000, 9)
    assert set(weights.sum(axis=1)) == {9.0}
    assert weights.mean(axis=0) == pytest.approx(np.ones(9), abs=0.15)


def test_bootstrap_works_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(50.0)
    whole = bootstrap(50, [lambda weights: weights @ values])
    monkeypatch.setattr(intervals, "_CHUNK", 100)
    rows = []
    parts = bootstrap(50, [lambda weights: (rows.append(len(weights)), weights @ values)[1]])
    assert max(rows) == 2
    assert whole == parts


def test_bootstrap_of_what_has_no_value() -> None:
    assert bootstrap(7, [lambda weights: weights[:, 0]]) == [None]  # too few samples
    assert bootstrap(8, [lambda weights: weights[:, 0] * np.nan]) == [None]
    assert bootstrap(8, [lambda weights: np.full(len(weights), np.inf)]) == [(np.inf, np.inf)]
    assert bootstrap(8, []) == []


def test_fewer_draws_of_many_samples() -> None:
    assert (draws(10), draws(20_000), draws(40_000), draws(10**6)) == (1000, 1000, 500, 200)
