"""What every mode of quantize() does alike: read and check at the start; verify, publish and report at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qtool.api.clock import Clock, peak_rss
from qtool.api.limits import check_limit
from qtool.api.models import as_runnable
from qtool.api.outcome import destination_of, quality_notes, why_nothing
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, refuse_quantized
from qtool.config import QuantConfig
from qtool.errors import NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.api.forecast import PlanTable
    from qtool.evaluate.whole_model import AutoCheck
    from qtool.plan import Plan, Selection
    from qtool.plan.fusion import Fusion
    from qtool.prepare.prepare import Prepared
    from qtool.runtime import Session

# (number of samples, inputs) to verify on, for a float model and the folder of its external data
FeedsFor: TypeAlias = "Callable[[str | Path | onnx.ModelProto, Path | None], Iterable[tuple[int, Mapping[str, Any]]]]"


@dataclass(frozen=True)
class Run:
    """How the work is done, whatever the mode; only ``output`` and ``dry_run`` change what is there afterwards.

    Attributes:
        output: Destination that is asked for.
        force: Overwrite it; accept a model that holds quantized operators already.
        dry_run: Decide, but write nothing.
        num_threads: Threads of the runtime and the kernels.
        progress: Called with (stage, done, total).
    """

    output: str | os.PathLike[str] | None = None
    force: bool = False
    dry_run: bool = False
    num_threads: int | None = None
    progress: Progress | None = None


class Job:
    """One call of quantize(), from the model that is given to the result.

    Args:
        model: What is quantized.
        settings: What is asked for.
        run: How.
        inputs: Other files that are read, which must not be overwritten.

    Attributes:
        model: What is quantized, as it is given.
        loaded: The same, read.
        clock: Wall time of the stages.
        notes: What a user should know so far.
        table: The plan as a table, of a dry run.
        auto: Which ranges ``auto`` came to.

    Raises:
        ConfigError: For a destination that cannot be used.
        ModelError: For a model that cannot be read, or is quantized already (without ``force``).
    """

    def __init__(self, model: ModelLike, settings: QuantConfig, run: Run, *, inputs: Sequence[Path] = ()) -> None:
        from qtool.prepare.load import describe_source, load_model
        from qtool.publish import Published, check_destination

        self.model, self.run = model, run
        self.clock = Clock(run.progress)
        self.notes: list[str] = []
        self._published = Published(None, 0, {}, 0)
        self._proto: onnx.ModelProto | None = None
        self._engine = "ort"
        self.table: PlanTable | None = None
        self.auto: AutoCheck | None = None
        path = Path(model) if isinstance(model, (str, os.PathLike)) else None
        with self.clock("prepare"):
            self.loaded = load_model(model)
            self._source = describe_source(model, self.loaded)
            self._destination = destination_of(path, run.output, settings)
            if self._destination is not None and not run.dry_run:
                check_destination(
                    self._destination,
                    path,
                    force=run.force,
                    source_data=self._source.data_files,
                    inputs=inputs,
                )
            refuse_quantized(self.loaded, force=run.force)

    @property
    def source_bytes(self) -> int:
        """Size of the model that is quantized, with its external data."""
        return self._source.nbytes

    def require_some(self, plan: Plan, settings: QuantConfig, hint: str | None = None) -> None:
        """Refuse a plan that quantizes nothing, unless that is allowed.

        Raises:
            NothingToQuantizeError: If it does.
        """
        if not plan.decisions and not settings.allow_empty:
            raise NothingToQuantizeError(f"0 of {plan.nodes} nodes were quantized: {why_nothing(plan)}.", hint=hint)

    def foresee(self, prepared: Prepared, plan: Plan, settings: QuantConfig, selection: Selection) -> None:
        """Make the table of a dry run."""
        from qtool.api.forecast import plan_table

        with self.clock("plan"):
            self.table = plan_table(prepared, plan, settings, selection)
        self.notes += [self.table.remark] if self.table.remark is not None else []

    def publish(
        self,
        quantized: ir.Model,
        prepared: Prepared,
        feeds: FeedsFor,
        settings: QuantConfig,
        *,
        provenance: Mapping[str, Any] | None = None,
        engine: str = "ort",
        trial: bool = False,
        reference: Session | None = None,
    ) -> int:
        """Verify the quantized model beside the float one and put it in place; see :func:`qtool.publish.publish`.

        Args:
            quantized: What an emitter made.
            prepared: The prepared float model.
            feeds: Makes what both are run on.
            settings: Recorded in the model.
            provenance: What else is recorded.
            engine: What runs the quantized model.
            trial: The feeds are made up, and say nothing about quality.
            reference: The float model, as far as its outputs are known; None loads it.

        Returns:
            The number of samples that it was run on.

        Raises:
            VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
        """
        from qtool.publish import publish

        self._engine = engine
        record = {"version": package_version(), "config": settings.to_dict(), "source.sha256": self._source.sha256}
        with self.clock("verify"):
            float_model, base_dir, cleanup = as_runnable(self.model, self.loaded, prepared.model)
            try:
                self._published, self._proto = publish(
                    quantized,
                    float_model,
                    feeds(float_model, base_dir),
                    self._destination,
                    provenance=record | dict(provenance or {}),
                    external_data=bool(self._source.data_files),
                    num_threads=self.run.num_threads,
                    base_dir=base_dir,
                    engine=engine,
                    trial=trial,
                    replace=self.run.force,
                    reference=reference,
                    check=check_limit,
                )
            finally:
                cleanup()
        self.notes += self._published.notes
        return self._published.samples

    def judge(self, samples: str, remedy: str) -> None:
        """Note an output that is far from the float model's.

        Args:
            samples: What kind of samples the result was verified on.
            remedy: What a user can do.
        """
        self.notes += quality_notes(self._published.sqnr_db, samples, remedy)

    def result(
        self,
        prepared: Prepared,
        plan: Plan,
        settings: QuantConfig,
        done: str,
        *,
        verified_on: str = "calibration",
        fusion: Fusion | None = None,
    ) -> QuantizeResult:
        """What was done; ``done`` says it in one clause."""
        published = self._published
        where = f" -> {published.path}" if published.path else ""
        return QuantizeResult(
            model_path=published.path,
            model=self._proto,
            plan=plan,
            quantized=plan.quantized,
            total=plan.nodes,
            by_op=plan.by_operator(),
            skips=list(plan.skips),
            bytes_before=self._source.nbytes,
            bytes_after=published.nbytes,
            sqnr_db=published.sqnr_db,
            verified_samples=published.samples,
            verified_on=verified_on,
            engine=self._engine,
            actions=prepared.actions,
            notes=list(dict.fromkeys(self.notes)),
            seconds=self.clock.seconds,
            peak_rss_bytes=peak_rss(),
            config=settings,
            message=f"{done}{where}",
            fusion=fusion,
            table=self.table,
            auto=self.auto,
        )
