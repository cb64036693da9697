"""Error rate of ids against sequences of them: the character error rate where classes are characters.

    CER = sum over samples of edits(answer, label) / sum over samples of length(label)

with the Levenshtein distance; it can be above 1. The answer is the argmax over the last axis, position by position
where there is a label; with ``--ctc-blank ID``, equal neighbours are merged and the blank dropped, and a label has its
own length. Labels are integers, filled up with -100. Source: V. Levenshtein, Binary codes capable of correcting
deletions, insertions, and reversals, Soviet Physics Doklady 10, 1966; A. Graves et al., Connectionist Temporal
Classification, ICML 2006, for the best path.

A position with a NaN is an answer that no label has. ``None`` if no label holds an id, or the output has no positions.
Bool and integer scores compare like numbers.
"""

from __future__ import annotations

import math

from qtool.evaluate.metrics._edits import ErrorRateAccumulator
from qtool.evaluate.metrics.base import LabelKind, Metric

METRIC = Metric(
    "cer",
    "CER",
    "",
    higher_is_better=False,
    start=ErrorRateAccumulator,
    needs_labels=True,
    bounds=(0.0, math.inf),
    kinds=frozenset({LabelKind.TOKENS, LabelKind.SEQUENCES}),
    default_for=frozenset({LabelKind.SEQUENCES}),
    share=True,
)
