"""Perplexity of labels: the exponential of the mean cross entropy.

    PPL = exp( mean over labelled rows of  -ln softmax(scores)[label] )

over the class axis, which holds logits; labels stand at the position whose output predicts them (for next tokens:
already shifted). Source: F. Jelinek et al., Perplexity, a measure of the difficulty of speech recognition tasks,
Journal of the Acoustical Society of America 62, 1977.

``inf`` if a label's score is -inf, or the mean leaves the range of exp; ``nan`` if a labelled row holds a NaN or +inf,
or nothing but -inf. ``None`` without a label other than -100, or with fewer than two classes. Bool counts as 0 and 1,
integers as float64.
"""

from __future__ import annotations

import math

import numpy as np

from qtool.evaluate.metrics._classes import checked_labels
from qtool.evaluate.metrics._softmax import log_softmax
from qtool.evaluate.metrics._sums import JudgeAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, LabelKind, Metric


class PerplexityAccumulator(JudgeAccumulator):
    """The sum of cross entropies and the number of labelled rows, for each model."""

    def check(self, scores: Array, labels: Array | None) -> Array | None:
        """Class indices, -1 where there is none."""
        index, keep = checked_labels(scores, labels)
        return np.where(keep, index, -1) if scores.shape[-1] >= 2 else None

    def terms(self, scores: Array, labels: Array) -> Terms:
        """Cross entropy of each labelled row, and whether there is one."""
        keep = labels >= 0
        entropy = np.zeros(labels.shape)
        found = np.take_along_axis(log_softmax(scores[keep]), labels[keep][:, np.newaxis], axis=1)
        entropy[keep] = -found[:, 0]
        return entropy, keep

    def value(self, sums: Floats) -> Floats:
        """The exponential of the mean."""
        with np.errstate(over="ignore"):
            perplexity: Floats = np.exp(sums[..., 0] / sums[..., 1])
        return perplexity


METRIC = Metric(
    "perplexity",
    "Perplexity",
    "",
    higher_is_better=False,
    start=PerplexityAccumulator,
    needs_labels=True,
    bounds=(1.0, math.inf),
    kinds=frozenset({LabelKind.CLASSES, LabelKind.TOKENS}),
    default_for=frozenset({LabelKind.TOKENS}),
)
