"""Statistics together with what they are of: a model, and samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from qtool.calibrate.coverage import Coverage, OverlapError, combined
from qtool.calibrate.kept import Kept
from qtool.calibrate.statistics import Statistics, TensorStatistics, merge
from qtool.errors import DataError
from qtool.prepare.fingerprint import Fingerprint

Batch = tuple[int, Mapping[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class SavedStatistics:
    """What a statistics file holds.

    Attributes:
        statistics: Of each tensor.
        model: Fingerprint of the prepared model that was observed.
        coverage: Which samples they are of.
        kept: The inputs of some samples.
        subject: Start of error messages.
    """

    statistics: Statistics
    model: Fingerprint
    coverage: Coverage
    kept: Kept
    subject: str = "The statistics file"

    @property
    def samples(self) -> int:
        """Samples of the data."""
        return sum(use.samples for use in self.coverage)

    @property
    def sources(self) -> tuple[str, ...]:
        """SHA-256 of each data file (or of the samples in memory), sorted."""
        return source_hashes(self.coverage)

    @property
    def batches(self) -> tuple[Batch, ...]:
        """(number of samples, inputs by name) of the kept samples."""
        return tuple((batch.samples, batch.feeds) for batch in self.kept.batches)

    def require_model(self, model: Fingerprint) -> None:
        """Refuse statistics of another model.

        Raises:
            DataError: Naming the first part that differs.
        """
        what = difference_of(self.model, model, other="the model")
        if what is None:
            return
        raise DataError(
            f"{self.subject} belongs to another model: {what}.",
            hint="Calibrate this model, with the settings that it is quantized with (element types may raise its "
            "opset, and with it change nodes).",
        )

    def select(self, tensors: Iterable[str], *, histograms: bool) -> Statistics:
        """The statistics of some tensors, in that order.

        Raises:
            DataError: If one is missing, or histograms are wanted and missing.
        """
        chosen: dict[str, TensorStatistics] = {}
        for name in tensors:
            if name not in self.statistics:
                raise DataError(
                    f"{self.subject} has no statistics of tensor '{name}', which these settings quantize.",
                    hint="Calibrate again with the settings of this run: qtool calibrate MODEL --config FILE.toml.",
                )
            chosen[name] = self.statistics[name]
            if histograms and chosen[name].histogram is None:
                raise DataError(
                    f"{self.subject} has no histogram of tensor '{name}', which the range method needs.",
                    hint="Calibrate again, or use --method minmax.",
                )
        return Statistics(chosen, self.statistics.samples)


def source_hashes(coverage: Coverage) -> tuple[str, ...]:
    """The SHA-256 of each source, as a record of what was used."""
    return tuple(sorted(use.sha256 for use in coverage))


def difference_of(model: Fingerprint, expected: Fingerprint, *, other: str) -> str | None:
    """What tells two models apart, seen from statistics of one of them; None if they are the same.

    Args:
        model: Of the statistics, which are "it" in the sentence.
        expected: The other.
        other: How the sentence calls the other.
    """
    found = model.first_difference(expected)
    if found is None:
        return None
    ours, theirs = found
    if ours is not None and theirs is not None and (ours.kind, ours.name) == (theirs.kind, theirs.name):
        return f"{theirs} differs"
    if theirs is None:
        return f"{other} has no {ours}"
    if ours is None:
        return f"{theirs} of {other} is unknown to it"
    return f"where {other} has {theirs}, it has {ours}"


def merge_saved(parts: Sequence[SavedStatistics], *, subject: str = "The merged statistics") -> SavedStatistics:
    """The statistics of all samples of the parts: equal to those of one run over them, in whatever order.

    Args:
        parts: One or more, of one model and of different samples.
        subject: Start of error messages about the result.

    Raises:
        DataError: If they are of different models, were made with different settings, or share samples.
    """
    first, *others = parts
    for part in others:
        _require_alike(part, first)
    try:
        coverage = combined(part.coverage for part in parts)
    except OverlapError as error:
        raise DataError(
            f"{' and '.join(_subjects(parts, str(error)))} cannot be merged: {error} would count twice.",
            hint="Merge statistics of different samples; each sample counts once.",
        ) from error
    except ValueError as error:
        raise DataError(f"{first.subject} and the others cannot be merged: {error}.") from error
    names = list(first.statistics)
    if any(list(part.statistics) != names for part in others):
        names = sorted(names)
    tensors = {}
    for name in names:
        total = first.statistics[name]
        for part in others:
            total = merge(total, part.statistics[name])
        tensors[name] = total
    observed = sum(part.statistics.samples for part in parts)
    kept = Kept.merged(part.kept for part in parts)
    return SavedStatistics(Statistics(tensors, observed), first.model, coverage, kept, subject)


def _subjects(parts: Sequence[SavedStatistics], overlap: str) -> list[str]:
    """The two files that share samples: the first pair whose coverage alone overlaps the same way."""
    for number, one in enumerate(parts):
        for other in parts[number + 1 :]:
            try:
                combined([one.coverage, other.coverage])
            except OverlapError:
                return [one.subject, other.subject]
    raise AssertionError(f"Bug: no two files share {overlap}")


def _require_alike(part: SavedStatistics, first: SavedStatistics) -> None:
    """Refuse what cannot be added up.

    Raises:
        DataError: Naming the first difference.
    """
    of_first = first.subject[0].lower() + first.subject[1:]
    what = difference_of(part.model, first.model, other=f"that of {of_first}")
    if what is not None:
        raise DataError(
            f"{part.subject} belongs to another model than {of_first}: {what}.",
            hint="Only statistics of one model, made with the same settings, can be merged.",
        )
    found = _first_unlike(part.statistics, first.statistics)
    if found is not None:
        raise DataError(
            f"{part.subject} and {of_first} were made with different settings: {found}.",
            hint="Calibrate all parts with the same --config.",
        )


def _first_unlike(mine: Statistics, theirs: Statistics) -> str | None:
    for name in [*theirs, *mine]:
        if name not in mine or name not in theirs:
            return f"only the {'second' if name not in mine else 'first'} has tensor '{name}'"
        try:
            merge(mine[name], theirs[name])
        except ValueError as error:
            return f"tensor '{name}': {str(error).rstrip('.')}"
    return None
