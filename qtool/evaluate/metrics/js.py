"""Jensen-Shannon divergence of the softmax, in nats.

    JS = mean over rows of  (KL(p, m) + KL(q, m)) / 2,   m = (p + q) / 2, p = softmax(x), q = softmax(y)

over the last axis of an output of rank >= 2 that holds logits. Symmetric and never above ln 2 = 0.6931, where ``kl``
may be infinite. Source: J. Lin, Divergence Measures Based on the Shannon Entropy, IEEE Transactions on Information
Theory 37, 1991.

0 for rows that are equal, whatever they hold; ``nan`` for other rows with a NaN or +inf on a side, or nothing but -inf.
``None`` for an output of rank below 2, with a last axis of length 0 or 1, or without rows. Bool counts as 0 and 1,
integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._softmax import divergence
from qtool.evaluate.metrics.base import Floats, Metric
from qtool.evaluate.metrics.kl import KlAccumulator


class JsAccumulator(KlAccumulator):
    """The sum over rows and their number."""

    def divergences(self, log_p: Floats, log_q: Floats) -> Floats:
        """The divergence of each row."""
        p, q = np.exp(log_p), np.exp(log_q)
        with np.errstate(divide="ignore"):
            log_m = np.log((p + q) / 2)
        return np.minimum((divergence(p, log_p, log_m) + divergence(q, log_q, log_m)) / 2, math.log(2))


METRIC = Metric("js", "JS", "nats", higher_is_better=False, start=JsAccumulator, bounds=(0.0, math.log(2)))
