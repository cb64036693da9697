"""Softmax over the last axis: the shared part of ``kl``, ``js`` and ``perplexity``."""

from __future__ import annotations

import numpy as np

from qtool.evaluate.metrics.base import Array, Floats


def log_softmax(scores: Array) -> Floats:
    """Logarithm of the softmax over the last axis in float64.

    A class with score -inf gets -inf. A row that holds a NaN or +inf, or nothing but -inf, is nan.
    """
    x: Floats = scores.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        x -= np.max(x, axis=-1, keepdims=True)
        x -= np.log(np.sum(np.exp(x), axis=-1, keepdims=True))
    return x


def divergence(p: Floats, log_p: Floats, log_q: Floats) -> Floats:
    """``sum p * (log p - log q)`` over the last axis; classes with p = 0 add nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.where(p == 0.0, 0.0, p * (log_p - log_q))
        # rounding may leave a tiny negative number of two equal distributions
        sums: Floats = np.maximum(np.sum(terms, axis=-1), 0.0)
    return sums


def equal_rows(reference: Array, candidate: Array) -> Array:
    """Whether rows along the last axis hold the same scores, a NaN being equal to a NaN: shape[:-1], bool."""
    same = (reference == candidate) | ((reference != reference) & (candidate != candidate))
    equal: Array = np.all(same, axis=-1)
    return equal


def has_classes(output: Array) -> bool:
    """Whether there is a class axis after a sample axis, something to choose from, and anything at all."""
    return output.ndim >= 2 and output.shape[-1] >= 2 and output.size > 0
