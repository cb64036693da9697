"""Statistics together with what they are of: a model, and samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
                    hint="Calibrate again without --method, or quantize with --method minmax.",
                )
        return Statistics(chosen, self.statistics.samples)


def source_hashes(coverage: Coverage) -> tuple[str, ...]:
    """The SHA-256 of each data file, as a record of what was used."""
    return tuple(sorted({sha256 for use in coverage for sha256 in use.files or (use.sha256,)}))


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


def merge_saved(parts: Iterable[SavedStatistics], *, subject: str = "The merged statistics") -> SavedStatistics:
    """The statistics of all samples of the parts: equal to those of one run over them, in whatever order.

    Args:
        parts: One or more, of one model and of different samples; each is let go before the next is asked for.
        subject: Start of error messages about the result.

    Raises:
        DataError: If they are of different models, were made with different settings, or share samples.
        ValueError: If there are none.
    """
    total: SavedStatistics | None = None
    before: list[tuple[str, Coverage]] = []
    for part in parts:
        if total is not None:
            _require_alike(part, total)
            _require_apart(part, before)
        before.append((part.subject, part.coverage))
        total = part if total is None else _sum(total, part)
        del part
    if total is None:
        raise ValueError("There are no statistics to merge.")
    return replace(total, subject=subject)


def _sum(a: SavedStatistics, b: SavedStatistics) -> SavedStatistics:
    names = list(a.statistics)
    if names != list(b.statistics):
        names.sort()
    tensors = {name: merge(a.statistics[name], b.statistics[name]) for name in names}
    return replace(
        a,
        statistics=Statistics(tensors, a.statistics.samples + b.statistics.samples),
        coverage=combined([a.coverage, b.coverage], repeats=True),
        kept=Kept.merged([a.kept, b.kept]),
    )


def _require_apart(part: SavedStatistics, before: Iterable[tuple[str, Coverage]]) -> None:
    """Refuse samples that were counted already.

    Raises:
        DataError: Naming them and the two files.
    """
    for subject, coverage in before:
        try:
            combined([coverage, part.coverage])
        except OverlapError as error:
            raise DataError(
                f"{subject} and {_inside(part.subject)} share samples: {error}; merged, they would count twice.",
                hint="Merge statistics of different samples.",
            ) from error
        except ValueError as error:
            raise DataError(f"{subject} and {_inside(part.subject)} cannot be merged: {error}.") from error


def _inside(subject: str) -> str:
    """A subject in the middle of a sentence."""
    return subject[0].lower() + subject[1:]


def _require_alike(part: SavedStatistics, first: SavedStatistics) -> None:
    """Refuse what cannot be added up.

    Raises:
        DataError: Naming the first difference.
    """
    of_first = _inside(first.subject)
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
