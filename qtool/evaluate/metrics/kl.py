"""Kullback-Leibler divergence of the softmax, in nats.

    KL = mean over rows of  sum_c p_c * ln(p_c / q_c),   p = softmax(x), q = softmax(y)

over the last axis of an output of rank >= 2 that holds logits; a row is one decision (one per token of a language
model). 0 means the same probabilities. Of an output that already is a softmax it is taken as well, and says less: a
second softmax levels the probabilities. Source: S. Kullback, R. Leibler, On Information and Sufficiency, Annals of
Mathematical Statistics 22, 1951.

0 for rows that are equal, whatever they hold; ``nan`` for other rows with a NaN or +inf on a side, or nothing but -inf;
``inf`` if a class that the float model finds possible has a score of -inf. ``None`` for an output of rank below 2, with
a last axis of length 0 or 1, or without rows. Bool counts as 0 and 1, integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._softmax import divergence, equal_rows, has_classes, log_softmax
from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric


class KlAccumulator(SumAccumulator):
    """The sum over rows and their number."""

    def divergences(self, log_p: Floats, log_q: Floats) -> Floats:
        """The divergence of each row."""
        return divergence(np.exp(log_p), log_p, log_q)

    def terms(self, reference: Array, candidate: Array) -> Terms | None:
        """The divergence of each row, 0 for equal ones."""
        if not has_classes(reference):
            return None
        rows = self.divergences(log_softmax(reference), log_softmax(candidate))
        rows[equal_rows(reference, candidate)] = 0.0
        return rows, rows.size

    def value(self, sums: Floats) -> Floats:
        """The mean over rows."""
        mean: Floats = sums[..., 0] / sums[..., 1]
        return mean


METRIC = Metric("kl", "KL", "nats", higher_is_better=False, start=KlAccumulator, bounds=(0.0, math.inf))
