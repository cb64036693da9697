"""The Python API: calibrate, quantize, evaluate, inspect. No terminal code; inputs are never changed."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qtool.config import QuantConfig
from qtool.dtypes import qdtype
from qtool.errors import EXIT_OK, ConfigError, ModelError, NothingToQuantizeError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.calibrate.samples import Data, Samples
    from qtool.calibrate.statistics import Statistics
    from qtool.calibrate.statsfile import Batch
    from qtool.evaluate.report import Report
    from qtool.plan import Plan, Skip
    from qtool.prepare.prepare import Prepared
    from qtool.runtime import TensorInfo

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"
Progress: TypeAlias = Callable[[str, int, int], None]

# Samples of the calibration data on which the result is run beside the float model before it is put in place: up to
# this many, and no further one once that has taken this long.
VERIFY_SAMPLES = 4
VERIFY_SECONDS = 1.5
_QUANTIZED_OPS = frozenset(
    (
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
        "MatMulInteger", "MatMulNBits", "QLinearAdd", "QGemm", "QAttention", "GatherBlockQuantized",
    )
)  # fmt: skip


@dataclass(frozen=True)
class QuantizeResult:
    """What :func:`quantize` did.

    Attributes:
        model_path: The quantized file; None for a dry run and for a result in memory.
        model: The quantized model, if no output path was given and none could be derived.
        plan: Every decision.
        quantized: Nodes that are quantized, absorbed ones included.
        total: Nodes of the prepared graph, subgraphs included.
        by_op: Operator -> (quantized, all).
        skips: Nodes that stay float, with reasons.
        bytes_before: Size of the source model, external data included.
        bytes_after: Size of the result; 0 for a dry run.
        sqnr_db: Output name -> dB against the float model on the first calibration samples.
        verified_samples: How many those were.
        actions: What preparation did to the float graph.
        notes: What a user should know.
        seconds: Stage -> wall time.
        peak_rss_bytes: Peak resident memory of the process.
        config: The settings that took effect.
        exit_code: What a command should exit with.
        message: One line.
    """

    model_path: Path | None
    model: onnx.ModelProto | None
    plan: Plan
    quantized: int
    total: int
    by_op: dict[str, tuple[int, int]]
    skips: list[Skip]
    bytes_before: int
    bytes_after: int
    sqnr_db: dict[str, float]
    verified_samples: int
    actions: tuple[str, ...]
    notes: list[str]
    seconds: dict[str, float]
    peak_rss_bytes: int
    config: QuantConfig
    exit_code: int = EXIT_OK
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Strict-JSON-ready: infinities and NaN are strings."""
        return {
            "schema_version": 1,
            "model": str(self.model_path) if self.model_path else None,
            "message": self.message,
            "exit_code": self.exit_code,
            "quantized": self.quantized,
            "total": self.total,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "sqnr_db": {name: _json_number(value) for name, value in self.sqnr_db.items()},
            "verified_samples": self.verified_samples,
            "seconds": {stage: round(value, 4) for stage, value in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "config": self.config.to_dict(),
            "actions": list(self.actions),
            "notes": list(self.notes),
            "plan": self.plan.to_dict(),
        }


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect` found.

    Attributes:
        nodes: (name, operator, ``quantize`` or ``float``, reason) of each node of the prepared graph.
        by_op: Operator -> (would be quantized, all).
        inputs: Of the model.
        outputs: Of the model.
        opset: Version of ai.onnx in the file.
        ir_version: IR version of the file.
        nbytes: File size, external data included.
        weight_bytes: Bytes of all constants.
        domains: Operator domains that the model imports.
        quantized: Nodes that would be quantized, absorbed ones included.
        total: Nodes of the prepared graph, those in subgraphs included, which have no row in ``nodes``.
        actions: What preparation would do to the float graph.
    """

    nodes: list[tuple[str, str, str, str]]
    by_op: dict[str, tuple[int, int]]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    ir_version: int
    nbytes: int
    weight_bytes: int
    domains: list[str]
    quantized: int
    total: int
    actions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""

        def rows(infos: tuple[TensorInfo, ...]) -> list[dict[str, Any]]:
            return [{"name": i.name, "dtype": i.dtype.name, "shape": list(i.shape)} for i in infos]

        return {
            "schema_version": 1,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "domains": self.domains,
            "bytes": self.nbytes,
            "weight_bytes": self.weight_bytes,
            "inputs": rows(self.inputs),
            "outputs": rows(self.outputs),
            "quantized": self.quantized,
            "total": self.total,
            "by_operator": {op: {"quantized": q, "total": n} for op, (q, n) in self.by_op.items()},
            "nodes": [
                {"node": n, "op_type": op, "decision": decision, "reason": reason}
                for n, op, decision, reason in self.nodes
            ],
            "actions": list(self.actions),
        }


def quantize(
    model: ModelLike,
    calib: Data | None = None,
    *,
    stats: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    format: str | None = None,  # noqa: A002 - the field's own word, as in onnxruntime.quantization
    activations: str | None = None,
    weights: str | None = None,
    per_channel: bool | None = None,
    symmetric_activations: bool | None = None,
    method: str | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    dedicated_qdq: bool | None = None,
    allow_empty: bool | None = None,
    random_calib: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantize a model with scales that are calibrated on samples, verify it, and put it in place.

    One of ``calib``, ``stats`` and ``random_calib`` says where the ranges of activations come from.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; never changed.
        calib: Samples: npz paths, a mapping of arrays, or an iterable of mappings.
        stats: A statistics file that :func:`calibrate` wrote for this model. The result is the same, byte for byte, as
            from the data that it was made of, whatever the range method.
        output: Destination; by default ``<model>.int8.onnx`` beside a model that is a file, and memory otherwise.
        config: Settings, or a TOML file of settings; the options below override them where they are not None.
        format: ``qlinear`` or ``qdq``.
        activations: Element type of activations.
        weights: Element type of weights.
        per_channel: Weight scales per output channel.
        symmetric_activations: Fix the zero point of activations.
        method: Range method of activations.
        include: Only these nodes.
        exclude: Not these nodes.
        dedicated_qdq: One Q/DQ pair for each reader.
        allow_empty: Accept a model in which nothing can be quantized.
        random_calib: Calibrate on this many random samples instead of data.
        force: Overwrite the output; accept a model that holds quantized operators already.
        dry_run: Decide, but calibrate nothing and write nothing.
        num_threads: Threads of the runtime and the kernels. Does not change the result.
        progress: Called with (stage, done, total).

    Returns:
        What was done. The model is in ``model_path``, or in ``model`` if there is no path.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read or used.
        DataError: For samples that do not fit.
        NothingToQuantizeError: If nothing was quantized (unless ``allow_empty``).
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    from qtool.calibrate.methods import parse_method
    from qtool.calibrate.statsfile import load_statistics
    from qtool.emit import emit
    from qtool.plan import Selection, build_plan, check_finite
    from qtool.prepare.fingerprint import fingerprint
    from qtool.prepare.load import describe_source, load_model
    from qtool.publish import Published, check_destination, publish

    settings = resolve_config(
        config,
        format=format,
        activations=activations,
        weights=weights,
        per_channel=per_channel,
        symmetric_activations=symmetric_activations,
        method=method,
        include=include,
        exclude=exclude,
        dedicated_qdq=dedicated_qdq,
        allow_empty=allow_empty,
    )
    range_method, _ = parse_method(settings.method)
    _refuse_several(calib=calib, stats=stats, random_calib=random_calib)
    source_path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    clock = _Clock(progress)
    with clock("prepare"):
        saved = None if stats is None else load_statistics(stats)
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = _destination(source_path, output)
        if destination is not None and not dry_run:
            check_destination(
                destination, source_path, force=force, source_data=source.data_files, inputs=_files(calib, stats)
            )
        _refuse_quantized(loaded, force=force)
        prepared, settings, notes = _prepare(loaded, settings)
        if saved is not None:
            saved.require_model(fingerprint(prepared.model, loaded.graph.opset_imports))
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
    with clock("plan"):
        plan = build_plan(prepared.model, settings, selection)
        if plan.decisions and prepared.obstacle is not None:
            raise prepared.obstacle
        check_finite(prepared.model, plan)
    if not plan.decisions and not settings.allow_empty:
        raise NothingToQuantizeError(
            f"0 of {plan.nodes} nodes were quantized: {_why_nothing(plan)}.",
            hint="'qtool inspect MODEL -v' gives the reason for each node; --allow-empty writes the model anyway.",
        )
    published = Published(None, 0, {}, 0)
    proto = None
    # A dry run needs no samples, but checks those that it is given.
    samples = statistics = None
    batches: tuple[Batch, ...] = ()
    if saved is not None:
        statistics = saved.select(plan.tensors, histograms=range_method.needs_histogram)
        batches = saved.batches
        if not batches:
            notes.append("The statistics file keeps no samples: the result was loaded, but not run on any.")
    elif calib is not None or random_calib is not None or not dry_run:
        samples = _samples(calib, random_calib, _inputs(loaded))
        notes += samples.notes
    if not dry_run:
        if samples is not None:
            with clock("calibrate"):
                statistics = _observe(
                    prepared.model,
                    list(plan.tensors),
                    samples,
                    histograms=range_method.needs_histogram,
                    num_threads=num_threads,
                    progress=clock.progress("calibrate"),
                )
        with clock("plan"):
            plan = build_plan(prepared.model, settings, selection, statistics)
        if not plan.decisions and not settings.allow_empty:
            raise NothingToQuantizeError(f"0 of {plan.nodes} nodes were quantized: {_why_nothing(plan)}.")
        with clock("emit"):
            quantized = emit(prepared.model, plan, format=settings.format, dedicated_qdq=settings.dedicated_qdq)
        hashes: Sequence[str] | None
        if samples is None:
            assert saved is not None, "Bug: neither samples nor statistics"
            sample_count, hashes = saved.samples, saved.sources
        else:
            sample_count, hashes = samples.count, None if random_calib is not None else _hashes(samples)
        with clock("verify"):
            float_model, base_dir, cleanup = _as_runnable(model, loaded, prepared.model)
            try:
                published, proto = publish(
                    quantized,
                    float_model,
                    _first(samples, VERIFY_SAMPLES, VERIFY_SECONDS) if samples is not None else batches,
                    destination,
                    provenance=_provenance(settings, source.sha256, sample_count, hashes),
                    external_data=bool(source.data_files),
                    num_threads=num_threads,
                    base_dir=base_dir,
                )
            finally:
                cleanup()
        notes += published.notes
    notes += plan.notes
    where = f" -> {published.path}" if published.path else ""
    return QuantizeResult(
        model_path=published.path,
        model=proto,
        plan=plan,
        quantized=plan.quantized,
        total=plan.nodes,
        by_op=plan.by_operator(),
        skips=list(plan.skips),
        bytes_before=source.nbytes,
        bytes_after=published.nbytes,
        sqnr_db=published.sqnr_db,
        verified_samples=published.samples,
        actions=prepared.actions,
        notes=list(dict.fromkeys(notes)),
        seconds=clock.seconds,
        peak_rss_bytes=_peak_rss(),
        config=settings,
        message=f"{plan.quantized} of {plan.nodes} nodes quantized{where}",
    )


def calibrate(
    model: ModelLike,
    data: Data,
    *,
    output: str | os.PathLike[str] | None = None,
    tensors: Sequence[str] | None = None,
    method: str = "minmax",
    config: QuantConfig | str | os.PathLike[str] | None = None,
    force: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """Observe a model's activations on samples, and save what was seen for :func:`quantize`.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        data: Samples, as for :func:`quantize`.
        output: Statistics file to write. It always has histograms, so that every range method can be derived from it,
            and keeps the inputs of the first samples, on which a result is run before it is put in place.
        tensors: Names of tensors of the prepared model; by default those that quantizing it with ``config`` needs.
        method: The range method that the statistics are for: it decides whether histograms are filled.
        config: Settings that decide which tensors are wanted.
        force: Overwrite the output.
        num_threads: Threads of the runtime and the kernels.
        progress: Called with ("calibrate", done, total).

    Returns:
        Statistics by tensor name.

    Raises:
        ConfigError: For an unknown method or tensor, or an output that cannot be written.
        ModelError: For a model that cannot be read or run.
        DataError: For samples that do not fit, or activations that hold NaN.
    """
    from qtool.calibrate.methods import parse_method
    from qtool.calibrate.statsfile import SavedStatistics, save_statistics
    from qtool.plan import Selection, build_plan
    from qtool.prepare.fingerprint import fingerprint
    from qtool.prepare.load import external_files, load_model
    from qtool.publish import check_statistics_destination

    settings = resolve_config(config)
    range_method, _ = parse_method(method)
    loaded = load_model(model)
    destination = None if output is None else Path(output)
    if destination is not None:
        source = Path(model) if isinstance(model, (str, os.PathLike)) else None
        check_statistics_destination(
            destination, source, force=force, source_data=external_files(loaded), inputs=_files(data)
        )
    prepared, settings, _ = _prepare(loaded, settings)
    if tensors is None:
        selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
        tensors = list(build_plan(prepared.model, settings, selection).tensors)
    samples = _samples(data, None, _inputs(loaded))
    statistics = _observe(
        prepared.model,
        tensors,
        samples,
        histograms=range_method.needs_histogram or destination is not None,
        num_threads=num_threads,
        progress=_Clock(progress).progress("calibrate"),
    )
    notes = samples.notes
    if destination is not None:
        batches, remark = _kept(samples)
        notes += () if remark is None else (remark,)
        notes += () if tensors else ("No activation is quantized with these settings: there was nothing to observe.",)
        model_id = fingerprint(prepared.model, loaded.graph.opset_imports)
        saved = SavedStatistics(statistics, model_id, samples.count, tuple(_hashes(samples)), batches)
        save_statistics(destination, saved)
    return replace(statistics, notes=notes)


def evaluate(
    float_model: ModelLike | bytes,
    quant_model: ModelLike | bytes,
    data: Data,
    *,
    labels: str | None = None,
    metrics: Sequence[str] | None = None,
    latency: bool = True,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare a float model and its quantized form on samples.

    Args:
        float_model: The reference.
        quant_model: The candidate.
        data: Samples of the float model's inputs.
        labels: Key of the labels in the data.
        metrics: Names of metrics; by default all that the data allow.
        latency: Whether to time both models.
        num_threads: Threads of the runtime.
        progress: Called with ("evaluate", done, total).

    Raises:
        ConfigError: For an unknown metric.
        ModelError: If a model cannot be read or run, or the interfaces differ.
        DataError: If samples or labels do not fit.
    """
    from qtool.calibrate.samples import open_samples
    from qtool.evaluate.compare import compare
    from qtool.prepare.load import load_model

    reference, candidate = _parsed(float_model), _parsed(quant_model)
    samples = open_samples(data, _inputs(load_model(reference)), labels=[] if labels is None else [labels])
    with ExitStack() as cleanup:
        return compare(
            _comparable(reference, cleanup),
            _comparable(candidate, cleanup),
            samples,
            labels=labels,
            metrics=metrics,
            num_threads=num_threads,
            latency=latency,
            progress=_Clock(progress).progress("evaluate"),
        )


def inspect(model: ModelLike, *, config: QuantConfig | str | os.PathLike[str] | None = None) -> Inspection:
    """Say what a model holds, what would be quantized, and why the rest would not.

    Args:
        model: A path, proto or onnx_ir model; never changed.
        config: Settings; by default those of :func:`quantize`.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read.
    """
    from qtool.plan import Selection, build_plan
    from qtool.prepare.load import describe_source, load_model

    settings = resolve_config(config)
    loaded = load_model(model)
    source = describe_source(model)
    prepared, settings, _ = _prepare(loaded, settings)
    selection = Selection(settings, [(n.name, n.op_type) for n in prepared.source_nodes])
    plan = build_plan(prepared.model, settings, selection)
    rows: dict[str, tuple[str, str, str, str]] = {}
    for d in plan.decisions:
        rows[d.node] = (d.node, d.op_type, "quantize", d.note or "")
        for name in d.absorbed:
            rows[name] = (name, "", "quantize", f"part of {d.node}")
    for s in plan.skips:
        rows[s.node] = (s.node, s.op_type, "float", s.reason)
    nodes = []
    for node in prepared.model.graph:
        row = rows[node.name or ""]
        nodes.append((row[0], node.op_type, row[2], row[3]))
    return Inspection(
        nodes=nodes,
        by_op=plan.by_operator(),
        inputs=tuple(_described(v) for v in _caller_inputs(loaded)),
        outputs=tuple(_described(v) for v in prepared.model.graph.outputs),
        opset=loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx", 0)),
        ir_version=loaded.ir_version,
        nbytes=source.nbytes,
        weight_bytes=sum(t.nbytes for t in _constants(loaded)),
        domains=sorted(domain or "ai.onnx" for domain in loaded.graph.opset_imports),
        quantized=plan.quantized,
        total=plan.nodes,
        actions=prepared.actions,
    )


def resolve_config(config: QuantConfig | str | os.PathLike[str] | None, **options: Any) -> QuantConfig:
    """Settings from a config or a TOML file, with the options that are not None on top.

    Raises:
        ConfigError: For an unreadable file, an unknown name, or an illegal value or combination.
    """
    from qtool.calibrate.methods import parse_method

    base = QuantConfig() if config is None else config
    if isinstance(base, (str, os.PathLike)):
        base = QuantConfig.from_toml(Path(base))
    if not isinstance(base, QuantConfig):
        raise ConfigError(f"Config is {type(base).__name__}; expected a QuantConfig or the path of a TOML file.")
    settings = base.with_options(**options)
    parse_method(settings.method)
    return settings


# --------------------------------------------------------------------------------------------------------- small parts


class _Clock:
    """Wall time of each stage, and the caller's progress function."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def progress(self, stage: str) -> Callable[[int, int], None] | None:
        """The part of the progress function that a stage calls with (done, total)."""
        report = self._progress
        return None if report is None else lambda done, total: report(stage, done, total)


def _destination(source: Path | None, output: str | os.PathLike[str] | None) -> Path | None:
    from qtool.publish import default_output

    if output is not None:
        return Path(output)
    return None if source is None else default_output(source)


def _prepare(loaded: ir.Model, settings: QuantConfig) -> tuple[Prepared, QuantConfig, list[str]]:
    """The prepared model, the settings that can be carried out on it, and what a user should know about that.

    Weight scales per channel need a higher opset than one scale per tensor. Where the model cannot be raised that far,
    but is high enough for the latter, that is what it gets.
    """
    prepared = _prepare_for(loaded, settings)
    if prepared.obstacle is None or not settings.per_channel:
        return prepared, settings, []
    per_tensor = settings.with_options(per_channel=False)
    again = _prepare_for(loaded, per_tensor)
    if again.obstacle is not None:
        return prepared, settings, []
    return again, per_tensor, [f"weights have one scale per tensor, not per channel: {prepared.obstacle.message}"]


def _prepare_for(loaded: ir.Model, settings: QuantConfig) -> Prepared:
    from qtool.prepare.prepare import prepare
    from qtool.runtime.capability import highest_quantizing_opset

    floors = [
        qdtype(settings.activations).floor(),
        qdtype(settings.weights).floor(per_axis=settings.per_channel),
    ]
    opset = loaded.graph.opset_imports.get("", loaded.graph.opset_imports.get("ai.onnx", 0))
    min_opset, min_ir = max(f[0] for f in floors), max(f[1] for f in floors)
    return prepare(
        loaded, min_opset=min_opset, min_ir=min_ir, max_opset=max(min_opset, highest_quantizing_opset(opset))
    )


def _refuse_quantized(model: ir.Model, *, force: bool) -> None:
    found = sorted({node.op_type for node in model.graph.all_nodes() if node.op_type in _QUANTIZED_OPS})
    if found and not force:
        raise ModelError(
            f"The model is quantized already: it holds {', '.join(found)}.",
            hint="Start from the float model; --force quantizes what is still float.",
        )


def _refuse_several(**origins: object) -> None:
    """Ranges come from one place."""
    names = {"calib": "calibration data", "stats": "a statistics file", "random_calib": "random calibration"}
    given = [names[name] for name, value in origins.items() if value is not None]
    if len(given) > 1:
        first, *rest = given
        raise ConfigError(f"{first[0].upper()}{first[1:]} and {' and '.join(rest)} are given; expected one of them.")


def _files(*data: object) -> list[Path]:
    """The files among what was given as data."""
    items = [i for one in data for i in (one if isinstance(one, (list, tuple)) else (one,))]
    return [Path(item) for item in items if isinstance(item, (str, Path))]


def _samples(calib: Data | None, random_calib: int | None, inputs: tuple[TensorInfo, ...]) -> Samples:
    from qtool.calibrate.samples import open_samples, random_samples

    if random_calib is not None:
        return random_samples(inputs, random_calib)
    if calib is None:
        raise ConfigError(
            "Quantizing activations needs calibration data, and none was given.",
            hint="Pass samples with --calib DATA.npz, or what 'qtool calibrate' saved with --stats STATS.npz; "
            "--random-calib N tries the model out on random values.",
        )
    return open_samples(calib, inputs)


def _hashes(samples: Samples) -> list[str]:
    return [source.sha256 for source in samples.sources]


def _observe(model: ir.Model, tensors: Sequence[str], samples: Samples, **options: Any) -> Statistics:
    """Statistics of the wanted tensors; infinities are counted here and judged by the plan."""
    from qtool.calibrate.collect import collect
    from qtool.calibrate.statistics import Statistics

    if not tensors:  # weights only: nothing to run
        return Statistics({}, 0)
    proto, _, cleanup = _as_proto(model)
    try:
        return collect(proto, tensors, samples, allow_inf=list(tensors), **options)
    finally:
        cleanup()


def _kept(samples: Samples) -> tuple[tuple[Batch, ...], str | None]:
    """The batches that a statistics file keeps for verification, and a remark if they are fewer than usual."""
    from qtool.calibrate.statsfile import MAX_BATCH_BYTES

    batches: list[Batch] = []
    done = nbytes = 0
    for rows, feeds in _first(samples, VERIFY_SAMPLES, float("inf")):
        nbytes += sum(array.nbytes for array in feeds.values())
        if nbytes > MAX_BATCH_BYTES:
            return tuple(batches), (
                f"Samples are large: {done or 'none'} of them {'is' if done == 1 else 'are'} kept in the statistics "
                f"file, for the verification of a result."
            )
        batches.append((rows, dict(feeds)))
        done += rows
    return tuple(batches), None


def _first(samples: Samples, count: int, seconds: float) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Batches of the first samples, the smallest there are; at least one, no further one after some seconds."""
    done, start = 0, time.perf_counter()
    for rows, feeds in samples.counted_batches(None):
        yield rows, feeds
        done += rows
        if done >= count or time.perf_counter() - start > seconds:
            return


def _provenance(
    settings: QuantConfig, source_sha256: str, samples: int, hashes: Sequence[str] | None
) -> dict[str, Any]:
    """What the model records about its making; no hashes of data means random samples."""
    record: dict[str, Any] = {
        "version": package_version(),
        "config": settings.to_dict(),
        "source.sha256": source_sha256,
        "calibration.samples": str(samples),
    }
    if hashes is None:
        record["calibration.random"] = "true"
    else:
        record["calibration.sha256"] = list(hashes)
    return record


def _why_nothing(plan: Plan) -> str:
    """The reason that speaks for most nodes, a telling one before an expected one."""
    if not plan.skips:
        return "the model has no nodes"
    counts: dict[tuple[bool, str], int] = {}
    for s in plan.skips:
        key = (s.expected, s.reason)
        counts[key] = counts.get(key, 0) + 1
    (_, reason), _ = min(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1]))
    return reason


def _inputs(model: ir.Model) -> tuple[TensorInfo, ...]:
    for value in _caller_inputs(model):
        if not _is_tensor(value):
            kind = type(value.type).__name__.removesuffix("Type").lower()
            raise ModelError(
                f"Input '{value.name}' is of the type {kind}, which samples cannot hold; expected a tensor.",
                hint="Export the model with tensors as its inputs.",
            )
    return tuple(_info(v) for v in _caller_inputs(model))


def _caller_inputs(model: ir.Model) -> list[ir.Value]:
    """Inputs that have no default."""
    return [v for v in model.graph.inputs if v.name not in model.graph.initializers]


def _is_tensor(value: ir.Value) -> bool:
    import onnx_ir as ir

    return value.type is None or isinstance(value.type, ir.TensorType)


def _described(value: ir.Value) -> TensorInfo:
    """What a person is shown of an input or output; the dtype ``object`` stands for what is no tensor."""
    import numpy as np

    from qtool.runtime import TensorInfo

    if _is_tensor(value):
        return _info(value)
    return TensorInfo(value.name or "", np.dtype(object), ())


def _info(value: ir.Value) -> TensorInfo:
    import numpy as np
    import onnx_ir as ir

    from qtool.runtime import TensorInfo

    if value.dtype in (None, ir.DataType.UNDEFINED):
        kind = "no type" if value.type is None else type(value.type).__name__
        raise ModelError(f"Value '{value.name}' of the model's interface has {kind}; expected a tensor.")
    dtype = np.dtype(np.str_) if value.dtype == ir.DataType.STRING else np.dtype(value.dtype.numpy())
    if value.shape is None:
        raise ModelError(f"Value '{value.name}' of the model's interface has no shape; expected a known rank.")
    # old exporters write -1 for a dimension of any size
    shape = tuple((d if d >= 0 else None) if isinstance(d, int) else d.value for d in value.shape.dims)
    return TensorInfo(value.name or "", dtype, shape)


def _constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in model.graph.all_nodes():
        if node.op_type == "Constant":
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR:
                    yield attribute.as_tensor()


def _has_external_data(model: ir.Model) -> bool:
    import onnx_ir as ir

    return any(isinstance(t, ir.ExternalTensor) for t in _constants(model))


_PROTO_LIMIT = 1_900_000_000


def _as_proto(model: ir.Model) -> tuple[onnx.ModelProto | Path, Path | None, Callable[[], None]]:
    """A form of a model that a runtime loads: a proto, or a temporary file if it is too large for one."""
    import onnx_ir as ir

    if sum(t.nbytes for t in _constants(model)) < _PROTO_LIMIT and not _has_external_data(model):
        return ir.to_proto(model), None, _nothing
    folder = tempfile.TemporaryDirectory(prefix="qtool-")
    path = Path(folder.name) / "model.onnx"
    ir.save(model, path, external_data="model.onnx.data")
    return path, Path(folder.name), folder.cleanup


def _as_runnable(
    model: ModelLike, loaded: ir.Model, prepared: ir.Model
) -> tuple[str | Path | onnx.ModelProto, Path | None, Callable[[], None]]:
    """The user's own model, for the runtime; or its prepared form if the runtime would refuse its node names."""
    names = [node.name for node in loaded.graph if node.name]
    if len(names) != len(set(names)):
        return _as_proto(prepared)
    if isinstance(model, (str, os.PathLike)):
        return Path(model), None, _nothing
    return _as_proto(loaded)


def _parsed(model: ModelLike | bytes) -> ModelLike:
    """Bytes as a proto."""
    if not isinstance(model, bytes):
        return model
    import onnx

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as error:  # protobuf's own error types moved between versions
        raise ModelError("The bytes of the model do not parse as protobuf.") from error
    return proto


def _comparable(model: ModelLike, cleanup: ExitStack) -> str | Path | onnx.ModelProto:
    """A model as the runtime takes it; temporary files live as long as ``cleanup``."""
    import onnx
    import onnx_ir as ir

    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, ir.Model):
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model; found {type(model).__name__}."
        )
    runnable, _, remove = _as_proto(model)
    cleanup.callback(remove)
    return runnable


def _nothing() -> None:
    """Nothing to clean up."""


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _json_number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
