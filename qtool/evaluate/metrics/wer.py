"""Word error rate against sequences of ids.

    WER = sum over samples of edits(words of the answer, words of the label) / sum over samples of words in the label

A word is a run of ids between two separators (``--word-separator ID``); see ``cer`` for the answer, the labels and the
distance. Source: NIST Speech Recognition Scoring Toolkit; V. Levenshtein, Soviet Physics Doklady 10, 1966.

A position with a NaN is an answer that no label has. ``None`` if no label holds a word, or the output has no positions.
Bool and integer scores compare like numbers.
"""

from __future__ import annotations

import math

from qtool.evaluate.metrics._edits import ErrorRateAccumulator
from qtool.evaluate.metrics.base import LabelKind, Metric

METRIC = Metric(
    "wer",
    "WER",
    "",
    higher_is_better=False,
    start=ErrorRateAccumulator,
    needs_labels=True,
    bounds=(0.0, math.inf),
    kinds=frozenset({LabelKind.TOKENS, LabelKind.SEQUENCES}),
    default_for=frozenset({LabelKind.SEQUENCES}),
    share=True,
)
