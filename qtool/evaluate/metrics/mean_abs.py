"""Mean absolute error.

    sum |x - y| / n

over all n elements of all samples, summed in float64, in the unit of the output. Source: C. Willmott, K. Matsuura,
Advantages of the mean absolute error over the root mean square error, Climate Research 30, 2005.

``nan`` once a NaN stood on one side only, ``inf`` once an infinity did, ``None`` if there was no element. Bool counts
as 0 and 1; integers of one type are subtracted exactly.
"""

from __future__ import annotations

import math

from qtool.evaluate.metrics._sums import SumAccumulator, Terms
from qtool.evaluate.metrics.base import Array, Floats, Metric, absolute_error


class MeanAbsAccumulator(SumAccumulator):
    """The sum of errors and their number."""

    def terms(self, reference: Array, candidate: Array) -> Terms:
        """Errors per element."""
        return absolute_error(reference, candidate), reference.size

    def value(self, sums: Floats) -> Floats:
        """The mean."""
        mean: Floats = sums[..., 0] / sums[..., 1]
        return mean


METRIC = Metric(
    "mean_abs",
    "Mean abs",
    "",
    higher_is_better=False,
    start=MeanAbsAccumulator,
    bounds=(0.0, math.inf),
    default=True,
)
