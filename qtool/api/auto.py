"""Method ``auto`` checked on the whole model: is one method for all tensors better than the choice for each alone?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.models import as_runnable
from qtool.api.settings import ModelLike, selection_for
from qtool.config import QuantConfig
from qtool.errors import QtoolError

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.calibrate.samples import Samples
    from qtool.calibrate.saved import Batch
    from qtool.calibrate.statistics import Statistics
    from qtool.emit import Codes
    from qtool.evaluate.whole_model import AutoCheck, Energies, Gain, KnownOutputs
    from qtool.plan import Plan
    from qtool.prepare.prepare import Prepared
    from qtool.runtime import Session

AUTO = "auto"
# What is tried in place of auto, for all tensors that are left to it. minmax never won by the rule (docs/results.md);
# entropy, which clips most, is where the readers care little how large the large values are.
METHODS = ("mse", "percentile:99.999", "percentile:99.99", "entropy")
# Bytes of a sample above which fewer are kept than are needed (calibrate/kept.py): then they are not even read.
_MAX_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Judged:
    """The plan to go on with.

    Attributes:
        plan: That of the best way to choose the ranges.
        check: How it was found; None where no tensor is left to ``auto``.
        model: The plan as nodes, where it was written for the check.
        reference: The float model's outputs for ``batches``, where they are known.
        batches: The first of the samples that were judged on.
    """

    plan: Plan
    check: AutoCheck | None = None
    model: ir.Model | None = None
    reference: KnownOutputs | None = None
    batches: Sequence[Batch] = ()

    @property
    def provenance(self) -> dict[str, str]:
        """What the model records about it: the method, where it is not the one that was asked for."""
        return {} if self.check is None or self.check.chosen == AUTO else {"calibration.ranges": self.check.chosen}


def may_be_judged(samples: Samples) -> bool:
    """Whether there are enough samples, and small enough ones for as many to be kept as the check needs."""
    from qtool.evaluate.whole_model import MIN_SAMPLES, SHARE

    rows, feeds = next(samples.counted_batches(None))
    small = sum(array.nbytes for array in feeds.values()) <= _MAX_SAMPLE_BYTES
    return small and samples.count // rows >= SHARE * MIN_SAMPLES


def surveyed(samples: Samples, *, keep: bool) -> tuple[list[str], tuple[Batch, ...]]:
    """SHA-256 of each source of the samples, and the batches that a statistics file of them keeps.

    Args:
        samples: Those of the calibration.
        keep: Whether the batches are wanted.
    """
    from qtool.calibrate.kept import survey
    from qtool.calibrate.saved import source_hashes

    coverage, kept = survey(samples, keep=keep)
    return list(source_hashes(coverage)), tuple((batch.samples, batch.feeds) for batch in kept.batches)


def _not_judged(plan: Plan, why: str) -> Judged:
    """The plan as it is."""
    from qtool.evaluate.whole_model import AutoCheck

    return Judged(plan, AutoCheck(AUTO, 0, f"the whole model was not judged: {why}"))


def judge_auto(
    model: ModelLike,
    loaded: ir.Model,
    prepared: Prepared,
    settings: QuantConfig,
    statistics: Statistics,
    plan: Plan,
    batches: Sequence[Batch] | None,
    *,
    samples: int,
    verified: int,
    num_threads: int | None,
) -> Judged:
    """Run the plan of ``auto`` and those of other methods on calibration samples, and take the best.

    The result does not depend on ``num_threads``: each operator runs on one thread, and several samples at once.

    Args:
        model: The user's model.
        loaded: The same, read.
        prepared: The same, prepared.
        settings: Leave some tensors to ``auto``.
        statistics: Those of the plan.
        plan: With the ranges of ``auto``.
        batches: Kept samples, the smallest batches there are; None if the samples are random.
        samples: Samples of the calibration.
        verified: How many samples the verification will want; the float model's outputs for these are kept.
        num_threads: Samples to run at once.
    """
    from qtool.evaluate.whole_model import MIN_SAMPLES, ROUNDS, SHARE

    if not plan.tensors:
        return Judged(plan)
    if batches is None:
        return _not_judged(plan, "random samples say nothing about its outputs")
    runs = samples // max(1, batches[0][0] if batches else 1)
    if runs < SHARE * MIN_SAMPLES:
        why = f"that pays from {SHARE * MIN_SAMPLES} calibration samples on, and there are {runs}"
        few = "; compare it with --method mse on other samples (qtool compare)" if runs < MIN_SAMPLES else ""
        return _not_judged(plan, why + few)
    if len(batches) < MIN_SAMPLES:
        return _not_judged(
            plan, f"that takes {MIN_SAMPLES} different samples, and calibration keeps {len(batches) or 'none'}"
        )
    alternatives = _alternatives(prepared, settings, statistics, plan)
    first = next(alternatives, None)
    if first is None:
        return _not_judged(plan, "other methods give the same ranges")
    with tempfile.TemporaryDirectory(prefix="qtool-") as folder:
        race = _Race(prepared, settings, batches[: min(ROUNDS[-1], runs // SHARE)], Path(folder), num_threads)
        return race.run(model, loaded, plan, chain([first], alternatives), verified)


def _alternatives(
    prepared: Prepared, settings: QuantConfig, statistics: Statistics, plan: Plan
) -> Iterator[tuple[str, Plan]]:
    """Plans with other ranges than those of ``auto`` and of each other, by method."""
    from qtool.plan import in_place_of_auto, with_ranges_of

    seen: list[Mapping[str, Any]] = [plan.tensors]
    for method in METHODS:
        config = in_place_of_auto(settings, method)
        other = with_ranges_of(prepared.model, plan, config, selection_for(prepared, config), statistics)
        if other.tensors not in seen:
            seen.append(other.tensors)
            yield method, other


@dataclass
class _Runner:
    """A way to choose the ranges, in the race.

    Attributes:
        method: Its name.
        plan: With its ranges.
        model: The plan as nodes.
        path: The same as a file.
        session: The same, loaded; None if it is out of the race after the first round.
        found: What was measured; None if the model does not run.
    """

    method: str
    plan: Plan
    model: ir.Model
    path: Path
    session: Session | None = None
    found: Energies | None = None


class _Race:
    """Quantized forms of one model, run on more and more samples until one is left or there are no more.

    Args:
        prepared: The prepared model.
        settings: How plans are written as nodes.
        batches: The samples.
        folder: Where candidates are saved.
        num_threads: How many samples are run at once.
    """

    def __init__(
        self,
        prepared: Prepared,
        settings: QuantConfig,
        batches: Sequence[Batch],
        folder: Path,
        num_threads: int | None,
    ) -> None:
        from qtool.calibrate.collect import available_cores
        from qtool.emit import Codes
        from qtool.runtime.lean import is_lean

        self._prepared, self._settings = prepared, settings
        self._batches, self._folder = batches, folder
        self._one_at_a_time = is_lean()
        self._workers = 1 if self._one_at_a_time else num_threads or available_cores()
        self._codes: Codes = Codes()

    def run(
        self, model: ModelLike, loaded: ir.Model, plan: Plan, others: Iterator[tuple[str, Plan]], verified: int
    ) -> Judged:
        """See :func:`judge_auto`."""
        from qtool.evaluate.whole_model import ROUNDS, is_better
        from qtool.runtime.lean import release

        reference = self._reference(model, loaded)
        release(cycles=False)  # the float model's session, before others take its place
        if reference is None:
            return _not_judged(plan, f"the outputs of {len(self._batches)} samples take too much memory")
        if not any(info.dtype.kind in "fV" for info in reference.outputs):
            return _not_judged(plan, "no output holds floats")
        auto = self._entry(AUTO, plan)
        try:
            self._start(auto, reference)
        except QtoolError as error:  # the verification will say so, of the file itself
            return _not_judged(plan, f"the model does not run ({error.message})")
        entries = self._started(auto, others if self._may_conclude(auto) else iter(()), reference)
        alive = [entry for entry in entries if entry.session is not None]
        for start, end in pairwise([*(n for n in ROUNDS if n < len(self._batches)), len(self._batches)]):
            if not alive or not self._may_conclude(auto):
                break
            for entry in (auto, *alive):
                self._go_on(entry, reference, start, end)
            alive = [entry for entry in alive if not self._is_behind(auto, entry)]
        best = max(
            (entry for entry in alive if is_better(_found(auto), _found(entry))),
            key=lambda entry: _gain(auto, entry).db,
            default=auto,
        )
        reference.forget_all_but(_enough(reference.batches, verified))
        return Judged(best.plan, self._check(auto, entries, best), best.model, reference, reference.batches)

    def _check(self, auto: _Runner, entries: Sequence[_Runner], best: _Runner) -> AutoCheck:
        from qtool.evaluate.whole_model import AutoCheck, MethodTrial

        count = self._samples(_found(auto))
        on = f"on {count} calibration samples"
        if best is not auto:
            gain = _gain(auto, best).db
            reason = f"{best.method}, {gain:.1f} dB better than auto for the whole model {on}"
        elif self._may_conclude(auto):
            reason = f"no other method is surely better for the whole model {on}"
        else:
            reason = f"few of {count} calibration samples make most of the error, which says nothing about others"
        trials = [MethodTrial(AUTO, count, _found(auto).sqnr_db)]
        for entry in entries:
            if entry.found is None:
                trials.append(MethodTrial(entry.method, 0, {}))
            else:
                measured, gain_of_it = entry.found, _gain(auto, entry) if _differs(auto, entry) else None
                trials.append(MethodTrial(entry.method, self._samples(measured), measured.sqnr_db, gain_of_it))
        return AutoCheck(best.method, count, reason, tuple(trials))

    def _may_conclude(self, auto: _Runner) -> bool:
        """Whether enough samples carry the error, should the rest be like those that were run."""
        from qtool.evaluate.whole_model import CARRIERS

        found = _found(auto)
        return found.carriers * len(self._batches) >= CARRIERS * found.samples

    def _is_behind(self, auto: _Runner, entry: _Runner) -> bool:
        from qtool.evaluate.whole_model import is_behind

        return is_behind(_found(auto), _found(entry), len(self._batches))

    def _samples(self, found: Energies) -> int:
        return sum(rows for rows, _ in self._batches[: found.samples])

    def _started(self, auto: _Runner, others: Iterator[tuple[str, Plan]], reference: KnownOutputs) -> list[_Runner]:
        """All other methods after their first round; while one runs, the next one is written."""

        def first_round(entry: _Runner) -> None:
            with suppress(QtoolError):
                self._start(entry, reference)
            if entry.found is None or self._is_behind(auto, entry):
                entry.session = None

        entries: list[_Runner] = []
        if self._one_at_a_time:
            for method, plan in others:
                entries.append(self._entry(method, plan))
                first_round(entries[-1])
            return entries
        with ThreadPoolExecutor(1) as helper:
            running: Future[None] | None = None
            for method, plan in others:
                entries.append(self._entry(method, plan))
                if running is not None:
                    running.result()
                running = helper.submit(first_round, entries[-1])
            if running is not None:
                running.result()
        return entries

    def _entry(self, method: str, plan: Plan) -> _Runner:
        from qtool.emit import emit
        from qtool.publish import save_model

        settings = self._settings
        model = emit(
            self._prepared.model,
            plan,
            format=settings.format,
            dedicated_qdq=settings.dedicated_qdq,
            codes=self._codes,
        )
        model.graph.name = model.graph.name or "graph"
        path = self._folder / f"{method.replace(':', '-')}.onnx"
        save_model(model, path, external=False)
        return _Runner(method, plan, model, path)

    def _start(self, entry: _Runner, reference: KnownOutputs) -> None:
        """The first round."""
        from qtool.evaluate.whole_model import ROUNDS, energies
        from qtool.runtime import create_session

        entry.session = create_session(entry.path, num_threads=1)
        entry.found = energies(entry.session, reference, self._batches[: ROUNDS[0]], workers=self._workers)

    def _go_on(self, entry: _Runner, reference: KnownOutputs, start: int, end: int) -> None:
        """A further round."""
        from qtool.evaluate.whole_model import energies

        assert entry.session is not None, "Bug: it is out of the race"
        more = energies(entry.session, reference, self._batches[start:end], workers=self._workers)
        entry.found = _found(entry).joined(more)

    def _reference(self, model: ModelLike, loaded: ir.Model) -> KnownOutputs | None:
        """What the float model gives; None if that is too large to be kept."""
        from qtool.evaluate.whole_model import MAX_OUTPUT_BYTES, KnownOutputs
        from qtool.runtime import create_session

        runnable, base_dir, cleanup = as_runnable(model, loaded, self._prepared.model)
        try:
            session = create_session(runnable, num_threads=1, base_dir=base_dir)
        finally:
            cleanup()
        first = session.run(self._batches[0][1])
        if sum(array.nbytes for array in first.values()) * len(self._batches) > MAX_OUTPUT_BYTES:
            return None
        return KnownOutputs(session, self._batches, workers=self._workers)


def _found(entry: _Runner) -> Energies:
    assert entry.found is not None, "Bug: nothing was measured"
    return entry.found


def _differs(auto: _Runner, entry: _Runner) -> bool:
    from qtool.evaluate.whole_model import gains

    return bool(gains(_found(auto), _found(entry)))


def _gain(auto: _Runner, entry: _Runner) -> Gain:
    from qtool.evaluate.whole_model import gains, least, telling_gains

    return least(telling_gains(_found(auto), _found(entry)) or gains(_found(auto), _found(entry)))


def _enough(batches: Sequence[Batch], samples: int) -> int:
    """How many batches hold so many samples."""
    done = 0
    for index, (rows, _) in enumerate(batches):
        if done >= samples:
            return index
        done += rows
    return len(batches)
