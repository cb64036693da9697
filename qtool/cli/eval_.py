"""``qtool eval``: compare a quantized model with its float model, and fail if it is not good enough."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output
from qtool.cli._progress import progress_bars
from qtool.cli._report import check_forms, show_report, write_forms
from qtool.errors import EXIT_FAILED

EXAMPLES = opt.examples(
    "qtool eval model.onnx model.int8.onnx --data eval.npz",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --labels labels --fail-under top1=0.9",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --fail-under sqnr=30 --json report.json",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --html report.html --markdown comment.md",
)


def evaluate(
    float_model: Annotated[Path, typer.Argument(metavar="FLOAT", help="The float model.", show_default=False)],
    quant_model: Annotated[Path, typer.Argument(metavar="QUANT", help="The quantized model.", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="DATA", show_default=False, help=f"Samples to compare on: {opt.DATA_HELP}"),
    ] = None,
    samples: opt.SampleCount = None,
    shuffle: opt.Shuffle = None,
    labels: Annotated[
        str | None,
        typer.Option("--labels", metavar="KEY", show_default=False, help="Array of the data that holds class labels."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="What runs the quantized model: ort (onnxruntime), or spec, which follows the ONNX documents to the "
            "bit and takes every element type, and is slower.",
        ),
    ] = "ort",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", show_default="all that apply", help="Compute only this. Repeatable."),
    ] = None,
    latency: Annotated[bool, typer.Option("--latency/--no-latency", help="Measure how long both models take.")] = True,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-under",
            metavar="NAME=VALUE",
            show_default=False,
            help="Exit with 1 if the metric's worst output is below VALUE. Repeatable.",
            rich_help_panel=opt.GATES,
        ),
    ] = None,
    fail_over: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-over",
            metavar="NAME=VALUE",
            show_default=False,
            help="Exit with 1 if the metric's worst output is above VALUE. Repeatable.",
            rich_help_panel=opt.GATES,
        ),
    ] = None,
    batch: opt.Batch = None,
    threads: opt.Threads = None,
    markdown_target: opt.MarkdownTarget = None,
    junit_target: opt.JUnitTarget = None,
    html_target: opt.HtmlTarget = None,
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Compare a quantized model with its float model.

    Runs both on the same samples and shows quality per output, size and latency. Gates make it a test.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.calibrate.readers import files_of
    from qtool.errors import ConfigError
    from qtool.evaluate import gates as gating

    forms = {"json": json_target, "markdown": markdown_target, "junit": junit_target, "html": html_target}
    check_forms(forms, float_model, quant_model, *files_of(data))
    at_once = opt.batch_size(batch)
    if not data:
        raise ConfigError("No data to compare on; expected at least one --data DATA.")
    # a gate that cannot be judged is a mistake to be told before an hour of work
    gates = gating.parse_gates(fail_under or (), fail_over or ())
    if engine != "ort" and any(gate.name == "latency_ratio" for gate in gates):
        raise ConfigError(f"Gate latency_ratio needs the latency, which is not measured with --engine {engine}.")
    needed = gating.required_metrics(gates, labels=labels is not None)
    if not latency and any(gate.name == "latency_ratio" for gate in gates):
        raise ConfigError("Gate latency_ratio needs the latency, and --no-latency was given.")

    with progress_bars(out) as progress:
        report = api.evaluate(
            float_model,
            quant_model,
            data,
            engine=engine,
            labels=labels,
            metrics=list(dict.fromkeys([*metric, *needed])) if metric else None,
            latency=latency,
            details=html_target is not None,
            samples=samples,
            shuffle=shuffle,
            batch=at_once,
            num_threads=threads,
            progress=progress,
        )
    write_forms(out, report, forms)
    if STDOUT not in forms.values():
        show_report(out, report)
    for note in report.notes:
        out.note(note)
    failures = gating.check(report, gates)
    for line in failures:
        out.error(line)
    if failures:
        raise typer.Exit(EXIT_FAILED)
