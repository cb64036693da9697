"""The running comparison of one output: every metric's accumulator, and what no metric sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qtool.evaluate.labels import arrange
from qtool.evaluate.metrics.base import Accumulator, Array, LabelKind, Metric, is_real
from qtool.evaluate.report import OutputReport, Statistic

if TYPE_CHECKING:
    from qtool.runtime import TensorInfo


class OutputTally:
    """Adds up one output over batches.

    Args:
        info: Name, element type and declared shape in the float model.
        metrics: What to compute; those that need labels only where labels fit this output.
        kind: What the labels of this output are; None if it has none.
    """

    def __init__(self, info: TensorInfo, metrics: Sequence[Metric], kind: LabelKind | None = None) -> None:
        self.info = info
        self._metrics = tuple(metrics)
        self._kind = kind
        self._accumulators: dict[str, Accumulator] = {metric.name: metric.start() for metric in metrics}
        self._elements = 0
        self._float_nan = 0
        self._new_nan = 0
        self._nan = 0
        self._new_inf = 0
        self._notes: dict[str, None] = {}  # a set that keeps its order
        self._shape_differs = False
        self._touched: set[str] = set()  # metrics that had something to compare

    def update(
        self, reference: Array, candidate: Array, labels: Array | None, samples: int, *, fixed_batch: bool
    ) -> None:
        """Add one batch.

        Outputs without numbers, or whose shapes differ (as many boxes as were found), are noted and not compared.

        Args:
            reference: Output of the float model.
            candidate: Output of the quantized model.
            labels: Labels of this output and batch; None if labels are not about it.
            samples: Number of samples in the batch.
            fixed_batch: Whether the model fixes its batch size, so that a declared leading dimension may be it.

        Raises:
            DataError: If a label cannot be one of this output.
        """
        name = self.info.name
        self._nan += _count_nan(candidate)
        if not (is_real(reference.dtype) and is_real(candidate.dtype)):
            self._notes[f"Output '{name}' holds no numbers ({reference.dtype}); it was not compared."] = None
            return
        if reference.dtype != candidate.dtype:
            self._notes[
                f"Output '{name}' is {reference.dtype} in the float model and {candidate.dtype} in the quantized one."
            ] = None
        used = [metric for metric in self._metrics if labels is not None or not metric.needs_labels]
        self._touched |= {metric.name for metric in used}
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
        parts = samples if self._separable(reference, samples, fixed_batch) else None
        arranged = None if labels is None or self._kind is None else arrange(self._kind, reference, candidate, labels)
        for metric in used:
            accumulator = self._accumulators[metric.name]
            if arranged is not None and metric.needs_labels and not metric.own:
                accumulator.update(*arranged, samples=parts)
            else:
                accumulator.update(reference, candidate, labels, samples=parts)

    def _separable(self, output: Array, samples: int, fixed_batch: bool) -> bool:
        """Whether axis 0 of an output counts the samples of the batch."""
        if samples == 1:
            return True
        declared = self.info.shape[0] if self.info.shape else None
        return bool(output.ndim) and len(output) == samples and (fixed_batch or not isinstance(declared, int))

    def judged(self) -> Mapping[str, tuple[Metric, Accumulator]]:
        """The metrics that can be trusted to be about this output, each with what it added up."""
        if self._shape_differs:
            return {}
        return {metric.name: (metric, self._accumulators[metric.name]) for metric in self._metrics}

    def report(self, statistics: Mapping[str, Statistic] | None = None) -> OutputReport:
        """The values over everything added.

        Args:
            statistics: Metric name to what is known about its value.
        """
        values = {name: accumulator.result() for name, accumulator in self._accumulators.items()}
        if self._shape_differs:
            values = {name: math.nan if name in self._touched else None for name in values}
        baselines = {
            metric.name: self._accumulators[metric.name].baseline()
            for metric in self._metrics
            if metric.needs_labels and not metric.own
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
            statistics={} if statistics is None else dict(statistics),
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
        subject = f"Output '{self.info.name}'"
        if self._shape_differs and self._nan:
            return (f"{subject}: {self._nan} values are NaN in the quantized model.",)
        if self._new_nan:
            both = self._nan - self._new_nan
            more = f", and {both} more are NaN in both" if both else ""
            found = f"{self._new_nan} of {self._elements} values are NaN in the quantized model"
            return (f"{subject}: {found} and not in the float model{more}.",)
        if self._nan:
            return (f"{subject}: {self._nan} of {self._elements} values are NaN in the quantized and the float model.",)
        return ()


def _count_nan(array: Array) -> int:
    """NaN in an output, whatever its type: a NaN is what differs from itself."""
    return int(np.count_nonzero(np.isnan(array))) if is_real(array.dtype) else 0
