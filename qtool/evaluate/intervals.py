"""How far a figure of n samples can be trusted: exact and resampled statistics of paired comparisons.

Both models see the same samples, so what counts is the difference sample by sample. Where every sample has one right or
wrong answer, only the samples on which the models disagree carry information (Q. McNemar, Psychometrika 12, 1947): the
p-value is the exact binomial one, and the interval of the difference is T. Tango's (Statistics in Medicine 17, 1998),
which holds the differences that the score form of McNemar's test does not reject. Everything else is bootstrapped over
samples (B. Efron, Annals of Statistics 7, 1979): percentiles of the value on samples drawn with replacement, from a
fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qtool.evaluate.metrics.base import Floats

LEVEL = 0.95
Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
MIN_SAMPLES = 8
"""A bootstrap of fewer samples is too narrow to be worth showing."""
DRAWS = 1000
DRAW_SEED = 0
_EXACT = 5000  # disagreements up to which the binomial is summed in whole numbers
_MAX_WORK = 20_000_000  # samples drawn in all: some seconds
_MIN_DRAWS = 200
_CHUNK = 2_000_000


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p-value of McNemar's test that neither model is better.

    Args:
        lost: Samples that only the first model answers correctly.
        gained: Samples that only the second one does.
    """
    n, k = lost + gained, min(lost, gained)
    if n > _EXACT:
        terms = np.array([math.lgamma(i + 1) + math.lgamma(n - i + 1) for i in range(k + 1)])
        return min(1.0, 2 * float(np.sum(np.exp(math.lgamma(n + 1) - n * math.log(2) - terms))))
    term = tail = 1
    for i in range(k):
        term = term * (n - i) // (i + 1)
        tail += term
    return min(1.0, float(2 * tail / 2**n))  # whole numbers up to the last division


def score_interval(lost: int, gained: int, n: int, z: float = Z) -> tuple[float, float]:
    """Tango's interval of the difference of two paired shares, ``(gained - lost) / n``.

    Args:
        lost: Samples that only the first model answers correctly.
        gained: Samples that only the second one does.
        n: All samples, at least 1.
        z: Quantile of the normal distribution.
    """
    estimate = (gained - lost) / n

    def score(delta: float) -> float:
        # restricted maximum likelihood of P(only the first is right) under this difference
        a, b = 2.0 * n, (2 * n - gained + lost) * delta - (gained + lost)
        share = (math.sqrt(max(b * b + 4.0 * a * lost * delta * (1.0 - delta), 0.0)) - b) / (2.0 * a)
        variance = n * (2.0 * share + delta * (1.0 - delta))
        return (gained - lost - n * delta) / math.sqrt(variance) if variance > 0.0 else 0.0

    return _crossing(lambda d: score(d) <= z, -1.0, estimate), _crossing(lambda d: score(d) <= -z, estimate, 1.0)


def share_interval(share: float, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, J. of the American Statistical Association 22, 1927).

    Args:
        share: Of the samples, from 0 to 1.
        n: All samples, at least 1.
        z: Quantile of the normal distribution.
    """
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    whole = 1 + z * z / n
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def _crossing(beyond: Callable[[float], bool], low: float, high: float) -> float:
    """Where a falling condition turns true between two ends, by bisection to the last bit that matters."""
    for _ in range(60):
        middle = (low + high) / 2
        if beyond(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def detectable_share(lost: int, gained: int, n: int) -> float:
    """The smallest drop of a share that n paired samples could have shown.

    With as many disagreements as there are (or the 6 that a test at 5 % needs at least), so many more must be losses
    than gains that the exact test rejects. Above 1 where n is too small for any.

    Args:
        lost: Samples that only the first model answers correctly.
        gained: Samples that only the second one does.
        n: All samples.
    """
    fewest = 1 - math.floor(math.log2(1 - LEVEL))  # 2 * 2^-m < 0.05
    m = max(lost + gained, fewest)
    # p falls as gains do: the most gains that are still significant
    low, high = 0, m // 2
    while low < high:
        middle = (low + high + 1) // 2
        if mcnemar(m - middle, middle) < 1 - LEVEL:
            low = middle
        else:
            high = middle - 1
    return (m - 2 * low) / n


def draws(n: int) -> int:
    """How many times n samples are resampled."""
    return max(_MIN_DRAWS, min(DRAWS, _MAX_WORK // max(n, 1)))


def bootstrap(n: int, estimators: Sequence[Callable[[Floats], Floats]]) -> list[tuple[float, float] | None]:
    """95 % percentile intervals of several figures, on the same draws.

    Args:
        n: Number of samples.
        estimators: Weights (draws, n) of the samples to a figure of each draw, (draws,).

    Returns:
        An interval each, None where a draw has no value, or for fewer than 8 samples.
    """
    if n < MIN_SAMPLES or not estimators:
        return [None] * len(estimators)
    random = np.random.default_rng(DRAW_SEED)
    found: list[list[Floats]] = [[] for _ in estimators]
    left, size = draws(n), max(1, _CHUNK // n)
    while left:
        rows = min(left, size)
        left -= rows
        weights = np.empty((rows, n))
        for row in weights:
            row[:] = np.bincount(random.integers(0, n, n), minlength=n)
        for values, estimate in zip(found, estimators, strict=True):
            values.append(estimate(weights))
    return [_percentiles(np.concatenate(values)) for values in found]


def _percentiles(values: Floats) -> tuple[float, float] | None:
    if np.isnan(values).any():
        return None
    ordered = np.sort(values)
    # nearest ranks, because values may be infinite
    skipped = int(len(values) * (1 - LEVEL) / 2)
    return float(ordered[skipped]), float(ordered[-1 - skipped])
