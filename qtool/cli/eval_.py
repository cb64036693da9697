"""``qtool eval``: compare a quantized model with its float model, and fail if it is not good enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output
from qtool.cli._progress import progress_bars
from qtool.cli._report import check_forms, show_next_steps, show_report, write_forms
from qtool.errors import EXIT_FAILED

EXAMPLES = opt.examples(
    "qtool eval model.onnx model.int8.onnx --data eval.npz",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --labels labels --fail-under top1=0.9",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --fail-under sqnr=30 --json report.json",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --html report.html --markdown comment.md",
    "qtool eval model.onnx model.int8.onnx --data eval.npz --labels labels --fail-over drop=0.5pp",
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
        typer.Option(
            "--labels",
            metavar="KEY",
            show_default=False,
            help="Array of the data that holds the right answers: class indices or a label map (integers), or "
            "regression targets (floats).",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            show_default="ort",
            help="What runs the quantized model: ort (onnxruntime), or spec, which follows the ONNX documents to the "
            "bit and takes every element type, and is slower, or spec-avx2, the same as on a processor without VNNI.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            show_default="the usual ones",
            help="Compute only this: a metric, all, or MODULE:FUNCTION of your own. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", show_default="all", help="Compare only this output. Repeatable."),
    ] = None,
    ctc_blank: Annotated[
        int | None,
        typer.Option(
            "--ctc-blank",
            metavar="ID",
            min=0,
            show_default=False,
            help="The output holds CTC scores with this blank, and the labels are sequences of ids.",
        ),
    ] = None,
    word_separator: Annotated[
        int | None,
        typer.Option(
            "--word-separator", metavar="ID", min=0, show_default=False, help="Id between words, for the metric wer."
        ),
    ] = None,
    latency: Annotated[
        bool | None,
        typer.Option("--latency/--no-latency", show_default="latency", help="Measure how long both models take."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE.toml",
            show_default=False,
            help="Read settings from the \\[eval] table of FILE.toml; options given here win.",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
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
            help="Exit with 1 if the metric's worst output is above VALUE; drop=0.5pp or drop=1% limits what accuracy "
            "is lost. Repeatable.",
            rich_help_panel=opt.GATES,
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            "--min-agreement",
            metavar="PERCENT",
            show_default=False,
            help="Exit with 1 if fewer decisions of the float model stay the same.",
            rich_help_panel=opt.GATES,
        ),
    ] = None,
    layers: opt.Layers = None,
    sensitivity: opt.Sensitivity = None,
    layer_samples: opt.LayerSamples = None,
    checks: opt.Checks = None,
    batch: opt.Batch = None,
    threads: opt.Threads = None,
    custom_ops: opt.CustomOps = None,  # noqa: ARG001 - its callback does the work
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
    from qtool.evaluate.settings import EvalSettings, all_gates

    forms = {"json": json_target, "markdown": markdown_target, "junit": junit_target, "html": html_target}
    check_forms(forms, float_model, quant_model, config, *files_of(data))
    at_once = batch if batch is None or batch == "auto" else opt.batch_size(batch)
    if not data:
        raise ConfigError("No data to compare on; expected at least one --data DATA.")
    # a gate that cannot be judged is a mistake to be told before an hour of work
    chosen = EvalSettings() if config is None else EvalSettings.from_toml(config)
    for library in chosen.custom_ops:
        api.register_custom_ops(library)
    gates = all_gates(chosen, gating.parse_gates(fail_under or (), fail_over or (), min_agreement))
    chosen = chosen.with_options(
        labels=labels,
        metric=tuple(metric or ()),
        output=tuple(output or ()),
        engine=engine,
        latency=latency,
        ctc_blank=ctc_blank,
        word_separator=word_separator,
        samples=samples,
        shuffle=shuffle,
        batch=at_once,
        threads=threads,
        checks=tuple(checks or ()),
        layers=layers,
        sensitivity=sensitivity,
        layer_samples=layer_samples,
    )
    if (layers is False or sensitivity is False) and not (chosen.layers or chosen.sensitivity) and not layer_samples:
        chosen = replace(chosen, layer_samples=None)  # of a file whose layers are switched off here
    timed, engine_name = chosen.latency is not False, chosen.engine or "ort"
    gating.require_latency(gates, engine_name, latency=timed)
    needed = gating.required_metrics(gates, labels=chosen.labels is not None)

    with progress_bars(out) as progress:
        report = api.evaluate(
            float_model,
            quant_model,
            data,
            engine=engine_name,
            labels=chosen.labels,
            metrics=gating.with_required(chosen.metric or None, needed),
            outputs=list(chosen.output) or None,
            ctc_blank=chosen.ctc_blank,
            word_separator=chosen.word_separator,
            latency=timed,
            details=html_target is not None,
            samples=chosen.samples,
            shuffle=chosen.shuffle,
            batch=chosen.batch_size,
            num_threads=chosen.threads,
            layers=chosen.layers is True,
            layer_samples=chosen.layer_samples,
            sensitivity=chosen.sensitivity is True,
            checks=chosen.checks or "quick",
            progress=progress,
        )
    report = gating.judged(report, gates)
    write_forms(out, report, forms)
    if STDOUT not in forms.values():
        show_report(out, report)
        show_next_steps(out, report)
    for note in report.notes:
        out.note(note)
    for line in gating.lines(report):
        out.error(line)
    if not report.passed:
        raise typer.Exit(EXIT_FAILED)
