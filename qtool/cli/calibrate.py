"""``qtool calibrate``: observe a model on samples once, and save what was seen for any number of quantizations."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target, human_bytes
from qtool.cli._progress import progress_bars
from qtool.cli._summary import costs

if TYPE_CHECKING:
    from qtool.calibrate.statistics import Statistics

EXAMPLES = opt.examples(
    "qtool calibrate model.onnx --data calib.npz",
    "qtool calibrate model.onnx --data a.npz --data b.npz -o all.stats.npz",
    "qtool quantize model.onnx --stats model.stats.npz --method percentile:99.9",
    "qtool calibrate model.onnx --data calib.npz --method minmax",
)


def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an ONNX file.", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="DATA",
            show_default=False,
            help=f"Calibration samples: {opt.DATA_HELP}",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    samples: opt.SampleCount = None,
    shuffle: opt.Shuffle = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            show_default="all",
            help="Observe only what this range method needs: minmax and mean_minmax need no histograms, which makes "
            "the run faster and the file small.",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    on_nan: opt.OnNan = "stop",
    prepare: opt.NoPrepare = None,
    config: opt.ConfigFile = None,
    target: opt.Target = None,
    output: Annotated[
        Path | None,
        opt.output_file("STATS", "the statistics go", default="MODEL.stats.npz beside MODEL"),
    ] = None,
    force: opt.Overwrite = False,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            "--checkpoint",
            metavar="N",
            min=1,
            show_default=False,
            help="Every N samples, keep what was seen in STATS.partial. After an interruption the same command goes on "
            "from there and writes the same file.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    batch: opt.Batch = None,
    max_memory: opt.MaxMemory = None,
    threads: opt.Threads = None,
    custom_ops: opt.CustomOps = None,  # noqa: ARG001 - its callback does the work
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Observe a model's activations and save their statistics.

    Without --method the file serves every range method: 'qtool quantize --stats' derives the ranges from it without
    running the model again.

    stdout gets its path. It keeps the inputs of the first samples, on which a result is verified.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.api._checkpoint import checkpoint_path
    from qtool.api.clock import peak_rss
    from qtool.calibrate.readers import files_of
    from qtool.errors import ConfigError, InterruptedRun
    from qtool.publish import default_statistics

    if not data:
        raise ConfigError("No data to calibrate on; expected at least one --data DATA.")
    destination = output or default_statistics(model)
    check_json_target(json_target, model, config, destination, *files_of(data))
    at_once = opt.batch_size(batch)
    nan_rule, limit = opt.on_nan(on_nan), opt.byte_count(max_memory)
    seconds: dict[str, float] = {}
    try:
        with progress_bars(out) as progress:
            statistics = api.calibrate(
                model,
                data,
                output=destination,
                method=method,
                prepare=prepare,
                config=config,
                target=target,
                samples=samples,
                shuffle=shuffle,
                batch=at_once,
                on_nan=nan_rule,
                max_memory=limit,
                checkpoint=checkpoint,
                force=force,
                num_threads=threads,
                progress=progress,
                seconds=seconds,
            )
    except KeyboardInterrupt:
        partial = checkpoint_path(destination)
        if checkpoint is None or not partial.exists():
            raise
        raise InterruptedRun(
            f"interrupted, '{partial}' is kept, and '{destination}' was not written",
            hint="The same command goes on from there.",
        ) from None
    if json_target is not None:
        out.json(_document(destination, statistics, seconds, peak_rss()), json_target)
    out.say(f"{_count(len(statistics), 'tensor')} observed on {_count(statistics.samples, 'sample')}")
    if verbose:
        out.say()
        out.say_table(["tensor", "values", "minimum", "maximum"], _rows(statistics), right=["values"])
    out.say()
    facts = costs(seconds, peak_rss())
    for label, text in [("Size", f"{human_bytes(destination.stat().st_size)} of statistics"), *facts]:
        out.say(f"{label:<9} {text}")
    for note in statistics.notes:
        out.note(note)
    from qtool.runtime.paths import as_argument

    chosen = [] if method is None else ["--method", method]
    words = ["qtool", "quantize", as_argument(model), "--stats", as_argument(destination), *chosen]
    out.hint(f"Quantize from them: {shlex.join(words)}")
    if json_target != STDOUT:
        out.data(str(destination))


def _document(destination: Path, statistics: Statistics, seconds: dict[str, float], peak: int) -> dict[str, Any]:
    """JSON: counts and extremes; the histograms are in the file."""
    rows = statistics.to_dict(histograms=False)
    spent = {"seconds": {stage: round(value, 4) for stage, value in seconds.items()}, "peak_rss_bytes": peak}
    return {"schema_version": 1, "statistics": str(destination)} | rows | spent | {"notes": list(statistics.notes)}


def _rows(statistics: Statistics) -> list[list[str]]:
    rows = []
    for name, one in statistics.items():
        limits = [f"{one.minimum:.6g}", f"{one.maximum:.6g}"] if one.finite else ["none", "none"]
        rows.append([name, str(one.count), *limits])
    return rows


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
