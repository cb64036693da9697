"""What was seen so far, in a file beside the output, so that an interrupted run goes on instead of starting over.

A checkpoint is a statistics file of the first samples of the run. It belongs to a run if it is of the same model, the
same tensors, and exactly those samples: nothing else decides what follows, so the result is that of one whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.errors import ConfigError, DataError

if TYPE_CHECKING:
    from qtool.calibrate.coverage import Coverage
    from qtool.calibrate.samples import Samples
    from qtool.calibrate.saved import SavedStatistics
    from qtool.calibrate.statistics import Statistics
    from qtool.calibrate.wanted import Wanted
    from qtool.prepare.fingerprint import Fingerprint

SUFFIX = ".partial"
_HINT = "Delete it to start over, or choose another output with -o."


def checkpoint_path(output: Path) -> Path:
    """Where the checkpoint of an output is."""
    return output.with_name(output.name + SUFFIX)


class Checkpoint:
    """The checkpoint of one run.

    Args:
        output: The statistics file that the run is to write.
        model: The prepared model.
        samples: All samples of the run.
        every: Samples between two checkpoints.

    Attributes:
        path: Its file.
        done: Samples that it is of, when it was read or written last.

    Raises:
        ConfigError: If ``every`` is not positive.
    """

    def __init__(self, output: Path, model: Fingerprint, samples: Samples, every: int) -> None:
        if every < 1:
            raise ConfigError(f"Samples between two checkpoints are {every}; expected 1 or more.")
        self.path = checkpoint_path(output)
        self.every = every
        self.done = 0
        self._model = model
        self._samples = samples
        self._coverage: Coverage = ()

    def resume(self, tensors: Sequence[str | Wanted], *, histograms: bool, allow_nan: bool) -> Statistics | None:
        """What an earlier run saw of the first samples; None if it left no checkpoint.

        Args:
            tensors: What this run observes.
            histograms: Whether it fills histograms.
            allow_nan: Whether it leaves NaNs out; otherwise it would have stopped at the first.

        Raises:
            DataError: If there is a file that is no checkpoint of this run, naming the first difference.
        """
        from qtool.calibrate.statsfile import load_statistics

        if not self.path.exists():
            return None
        try:
            found = load_statistics(self.path)
        except DataError as error:
            raise DataError(f"Checkpoint cannot be used: {error.message}", hint=_HINT) from error
        self._require_same_model(found)
        self._require_same_tensors(found, tensors, histograms=histograms)
        self._require_same_samples(found)
        if not allow_nan:
            self._require_no_nan(found.statistics)
        self.done, self._coverage = found.samples, found.coverage
        return found.statistics

    def save(self, statistics: Statistics) -> None:
        """Put the statistics of the first samples in place of the last checkpoint.

        Raises:
            ConfigError: If the file cannot be written.
        """
        from qtool.calibrate.coverage import combined
        from qtool.calibrate.kept import Kept, survey
        from qtool.calibrate.saved import SavedStatistics
        from qtool.calibrate.statsfile import save_statistics

        new, _ = survey(self._samples.slice(self.done, statistics.samples), keep=False)
        coverage = combined([self._coverage, new], repeats=True)
        saved = SavedStatistics(statistics, self._model, coverage, Kept())
        # a draft of a fixed name: a run that is killed while it writes leaves no more than this one
        save_statistics(self.path, saved, draft=self.path.with_name(self.path.name + "~"))
        self.done, self._coverage = statistics.samples, coverage

    def remove(self) -> None:
        """The output is in place: nothing needs the checkpoint any more."""
        self.path.with_name(self.path.name + "~").unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _require_same_model(self, found: SavedStatistics) -> None:
        from qtool.calibrate.saved import difference_of

        what = difference_of(found.model, self._model, other="the model")
        if what is not None:
            raise DataError(f"Checkpoint '{self.path}' belongs to another model: {what}.", hint=_HINT)

    def _require_no_nan(self, found: Statistics) -> None:
        for name, one in found.items():
            if one.nan:
                raise DataError(
                    f"Checkpoint '{self.path}' left out {one.nan} NaN of {one.count} values in tensor '{name}'; this "
                    "run stops at the first NaN.",
                    hint=f"Go on with --on-nan skip. {_HINT}",
                )

    def _require_same_tensors(
        self, found: SavedStatistics, tensors: Sequence[str | Wanted], *, histograms: bool
    ) -> None:
        from qtool.calibrate.statistics import TensorStatistics, merge
        from qtool.calibrate.wanted import Wanted

        subject = f"Checkpoint '{self.path}' was made with other settings"
        wanted = {one.name: one for one in (Wanted(t) if isinstance(t, str) else t for t in tensors)}
        for name in [*wanted, *found.statistics]:
            if name not in found.statistics or name not in wanted:
                having = "this run" if name in wanted else "it"
                raise DataError(f"{subject}: only {having} observes tensor '{name}'.", hint=_HINT)
            try:
                merge(found.statistics[name], TensorStatistics.empty(histogram=histograms, wanted=wanted[name]))
            except ValueError as error:
                raise DataError(f"{subject}: tensor '{name}': {error}", hint=_HINT) from error

    def _require_same_samples(self, found: SavedStatistics) -> None:
        from qtool.calibrate.kept import survey

        total = self._samples.count
        if found.samples > total:
            raise DataError(
                f"Checkpoint '{self.path}' is of {found.samples} samples; this run has {total}.", hint=_HINT
            )
        try:
            first, _ = survey(self._samples.slice(0, found.samples), keep=False)
        except ConfigError:  # it ends inside of what this run feeds as one
            first = ()
        if first == found.coverage:
            return
        known = {use.sha256 for use in first}
        other = next((use for use in found.coverage if use.sha256 not in known), None)
        if other is None:
            what = "it took others of the same files"
        elif other.held is None:
            what = "it is of other samples in memory"
        else:
            what = f"the data file with SHA-256 {other.sha256[:12]} is not among them"
        raise DataError(
            f"Checkpoint '{self.path}' is of other data than the first {found.samples} samples of this run: {what}.",
            hint=_HINT,
        )
