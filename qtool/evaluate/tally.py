"""The running comparison of one output: every metric's accumulator, and what no metric sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qtool.evaluate.metrics.base import Accumulator, Array, Metric, is_real
from qtool.evaluate.report import OutputReport

if TYPE_CHECKING:
    from qtool.runtime import TensorInfo


class OutputTally:
    """Adds up one output over batches.

    Args:
        info: Name, element type and declared shape in the float model.
        metrics: What to compute; those that need labels only where labels fit this output.
    """

    def __init__(self, info: TensorInfo, metrics: Sequence[Metric]) -> None:
        self.info = info
        self._metrics = tuple(metrics)
        self._accumulators: dict[str, Accumulator] = {metric.name: metric.start() for metric in metrics}
        self._elements = 0
        self._float_nan = 0
        self._new_nan = 0
        self._new_inf = 0
        self._notes: dict[str, None] = {}  # a set that keeps its order
        self._shape_differs = False
        self._touched: set[str] = set()  # metrics that had something to compare

    def update(self, reference: Array, candidate: Array, labels: Array | None) -> None:
        """Add one batch.

        Outputs without numbers, or whose shapes differ (as many boxes as were found), are noted and not compared.

        Args:
            reference: Output of the float model.
            candidate: Output of the quantized model.
            labels: Labels of this output and batch, shape ``reference.shape[:-1]``; None if labels are not about it.

        Raises:
            DataError: If a label is no class of this output.
        """
        name = self.info.name
        if not (is_real(reference.dtype) and is_real(candidate.dtype)):
            self._notes[f"Output '{name}' holds no numbers ({reference.dtype}); it was not compared."] = None
            return
        if reference.dtype != candidate.dtype:
            self._notes[
                f"Output '{name}' is {reference.dtype} in the float model and {candidate.dtype} in the quantized one."
            ] = None
        self._touched |= {metric.name for metric in self._metrics if labels is not None or not metric.needs_labels}
        if reference.shape != candidate.shape:
            if not self._shape_differs:
                self._notes[
                    f"Output '{name}' has shape {reference.shape} in the float model and {candidate.shape} in the "
                    f"quantized one: nothing to compare, its values are nan."
                ] = None
            self._shape_differs = True
            return
        self._elements += reference.size
        nan = np.isnan(reference)
        self._float_nan += int(np.count_nonzero(nan))
        self._new_nan += int(np.count_nonzero(np.isnan(candidate) & ~nan))
        self._new_inf += int(np.count_nonzero(np.isinf(candidate) & np.isfinite(reference)))
        for metric in self._metrics:
            if labels is not None or not metric.needs_labels:
                self._accumulators[metric.name].update(reference, candidate, labels)

    def report(self) -> OutputReport:
        """The values over everything added."""
        values = {name: accumulator.result() for name, accumulator in self._accumulators.items()}
        if self._shape_differs:
            values = {name: math.nan if name in self._touched else None for name in values}
        baselines = {
            metric.name: self._accumulators[metric.name].baseline() for metric in self._metrics if metric.needs_labels
        }
        return OutputReport(
            name=self.info.name,
            dtype=str(self.info.dtype),
            shape=tuple(self.info.shape),
            elements=self._elements,
            values=values,
            float_values=baselines,
            new_nan=self._new_nan,
            new_inf=self._new_inf,
        )

    def notes(self) -> tuple[str, ...]:
        """What the reader should know about this output, one line each."""
        lines = list(self._notes)
        if self._float_nan:
            lines.append(
                f"Output '{self.info.name}': {self._float_nan} of {self._elements} values are NaN in the float model."
            )
        if self._new_inf:
            lines.append(
                f"Output '{self.info.name}': {self._new_inf} of {self._elements} values are infinite in the quantized "
                f"model and finite in the float model."
            )
        return tuple(lines)

    def failures(self) -> tuple[str, ...]:
        """What makes the quantized model unusable whatever the gates say, one line each."""
        if not self._new_nan:
            return ()
        line = (
            f"Output '{self.info.name}': {self._new_nan} of {self._elements} values are NaN in the quantized model "
            f"and not in the float model."
        )
        return (line,)
