"""``qtool prepare``: the float model as quantization sees it; what was done on stderr, its path on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target, human_bytes
from qtool.cli._progress import progress_bars
from qtool.cli._summary import costs

if TYPE_CHECKING:
    from qtool.api import PrepareResult

EXAMPLES = opt.examples(
    "qtool prepare model.onnx",
    "qtool prepare model.onnx --opset 21 -o model.21.onnx",
    "qtool prepare model.onnx --calib calib.npz --json -",
)


def prepare(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an ONNX file.", show_default=False)],
    calib: Annotated[
        list[str] | None,
        typer.Option(
            "--calib",
            metavar="DATA",
            show_default="random samples",
            help=f"Samples that the result is verified on: {opt.DATA_HELP}",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            "--opset",
            metavar="N",
            min=1,
            show_default="that of MODEL",
            help="Raise the opset to N if it is lower.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        opt.output_file("FILE", "the prepared model goes", default="MODEL.prepared.onnx beside MODEL"),
    ] = None,
    force: opt.Force = False,
    threads: opt.Threads = None,
    custom_ops: opt.CustomOps = None,  # noqa: ARG001 - its callback does the work
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Write the float model that quantization starts from.

    Evaluates constants, folds BatchNormalization and constants into weights, inlines functions, removes dead nodes.

    The file is checked, run and compared with MODEL before it is put in place. stdout gets its path.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.calibrate.readers import files_of
    from qtool.publish import default_prepared

    target = output if output is not None else default_prepared(model)
    check_json_target(json_target, model, target, *files_of(calib))
    with progress_bars(out) as progress:
        result = api.prepare(
            model, calib or None, output=output, opset=opset, force=force, num_threads=threads, progress=progress
        )
    if json_target is not None:
        out.json(result.to_dict(), json_target)
    _show(out, result)
    if json_target != STDOUT and result.model_path is not None:
        out.data(str(result.model_path))


def _show(out: Output, result: PrepareResult) -> None:
    for line in result.actions or ("nothing had to be done",):
        out.say(line)
    out.say()
    out.say(f"{'Nodes':<9} {result.nodes_before} -> {result.nodes_after}")
    if result.opset_before != result.opset_after:
        out.say(f"{'Opset':<9} {result.opset_before} -> {result.opset_after}")
    out.say(f"{'Size':<9} {human_bytes(result.bytes_before)} -> {human_bytes(result.bytes_after)}")
    for name, db in result.sqnr_db.items():
        samples = "sample" if result.verified_samples == 1 else "samples"
        out.say(
            f"{'SQNR':<9} {db:.1f} dB at output {name}, on {result.verified_samples} {result.verified_on} {samples}"
        )
    for label, text in costs(result.seconds, result.peak_rss_bytes):
        out.say(f"{label:<9} {text}")
    for note in result.notes:
        out.note(note)
