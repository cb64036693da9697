"""``qtool compare``: several quantized forms of one model side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output
from qtool.cli._progress import progress_bars
from qtool.cli._report import check_forms, write_comparison
from qtool.errors import EXIT_FAILED

EXAMPLES = opt.examples(
    "qtool compare model.int8.onnx model.qdq.onnx --reference model.onnx --data eval.npz",
    "qtool compare *.int8.onnx --reference model.onnx --data eval.npz --labels labels --rank top1",
    "qtool compare a.onnx b.onnx --reference model.onnx --data eval.npz --no-latency --markdown -",
)


def compare(
    candidates: Annotated[
        list[Path], typer.Argument(metavar="CANDIDATE...", help="The quantized models.", show_default=False)
    ],
    reference: Annotated[
        Path, typer.Option("--reference", metavar="FLOAT", help="The float model of all of them.", show_default=False)
    ],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="DATA", show_default=False, help=f"Samples to compare on: {opt.DATA_HELP}"),
    ] = None,
    samples: opt.SampleCount = None,
    shuffle: opt.Shuffle = None,
    labels: Annotated[
        str | None,
        typer.Option("--labels", metavar="KEY", show_default=False, help="Array that holds the right answers."),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            metavar="METRIC",
            show_default="the metric that belongs to the labels, else sqnr",
            help="The metric that stands for accuracy where the best are marked.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", show_default="the usual ones", help="Compute only this. Repeatable."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", show_default="all", help="Compare only this output. Repeatable."),
    ] = None,
    ctc_blank: Annotated[
        int | None,
        typer.Option("--ctc-blank", metavar="ID", min=0, show_default=False, help="The output holds CTC scores."),
    ] = None,
    word_separator: Annotated[
        int | None,
        typer.Option("--word-separator", metavar="ID", min=0, show_default=False, help="Id between words, for wer."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="What runs the candidates: ort (onnxruntime), or spec or spec-avx2, untimed.",
        ),
    ] = "ort",
    latency: Annotated[bool, typer.Option("--latency/--no-latency", help="Measure how long the models take.")] = True,
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
    """Compare several quantized models with their float model.

    Runs all on the same samples and marks those that no other one beats in accuracy, size and latency. Ends with 1 if
    none of them is usable.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.calibrate.readers import files_of
    from qtool.errors import ConfigError

    forms = {"json": json_target, "markdown": markdown_target, "junit": junit_target, "html": html_target}
    check_forms(forms, reference, *candidates, *files_of(data))
    at_once = opt.batch_size(batch)
    if not data:
        raise ConfigError("No data to compare on; expected at least one --data DATA.")
    with progress_bars(out) as progress:
        comparison = api.compare_models(
            reference,
            candidates,
            data,
            rank=rank,
            engine=engine,
            labels=labels,
            metrics=metric or None,
            outputs=output or None,
            ctc_blank=ctc_blank,
            word_separator=word_separator,
            latency=latency,
            samples=samples,
            shuffle=shuffle,
            batch=at_once,
            num_threads=threads,
            progress=progress,
        )
    from qtool.evaluate.writers.comparison import comparison_table

    write_comparison(out, comparison, forms)
    if STDOUT not in forms.values():
        table = comparison_table(comparison)
        out.data(table.title)
        out.table(table.columns, table.rows, right=table.columns[1:-1])
    for note in dict.fromkeys(note for report in comparison.reports for note in report.notes):
        out.note(note)
    for index, report in enumerate(comparison.reports):
        for line in report.failures:
            out.error(f"{comparison.name(index)}: {line}")
    if not any(comparison.best):
        raise typer.Exit(EXIT_FAILED)
