"""``qtool convert``: a quantized model in another form; its path on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target, human_bytes
from qtool.cli._progress import progress_bars

if TYPE_CHECKING:
    from qtool.api import ConvertResult

NODES_SHOWN = 3
EXAMPLES = opt.examples(
    "qtool convert model.int8.onnx --to qdq",
    "qtool convert from_elsewhere.onnx --to qlinear -o model.qlinear.onnx --data calib.npz",
    "qtool convert model.int8.onnx --to float --reference model.onnx --data eval.npz",
)


def convert(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A quantized model.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="qlinear|qdq|float",
            show_default=False,
            help="Operators on codes (QLinearConv, QLinearMatMul), float operators between Q/DQ pairs, or floats: "
            "weights dequantized, activations no longer rounded.",
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="DATA",
            show_default="seeded random samples",
            help=f"Samples that the result is compared with MODEL on: {opt.DATA_HELP}",
        ),
    ] = None,
    samples: opt.SampleCount = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            metavar="FLOAT",
            show_default=False,
            help="The float model that was quantized: both are measured against it, too.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        opt.output_file(
            "FILE", "the converted model goes", default="MODEL.qdq.onnx (or .qlinear, .float) beside MODEL"
        ),
    ] = None,
    force: opt.Overwrite = False,
    threads: opt.Threads = None,
    custom_ops: opt.CustomOps = None,  # noqa: ARG001 - its callback does the work
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Write a quantized model in another form and verify that it is the same function.

    Takes standard ONNX operators of any tool. Scales, zero points and codes stay what they are, to the last bit.

    The file is checked, run and compared with MODEL before it is put in place. stdout gets its path.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.calibrate.readers import files_of

    check_json_target(json_target, model, reference, output, *files_of(data))
    with progress_bars(out) as progress:
        result = api.convert(
            model,
            to,
            output=output,
            data=data or None,
            reference=reference,
            samples=samples,
            force=force,
            num_threads=threads,
            progress=progress,
        )
    if json_target is not None:
        out.json(result.to_dict(), json_target)
    _show(out, result)
    if json_target != STDOUT and result.model_path is not None:
        out.data(str(result.model_path))


def _show(out: Output, result: ConvertResult) -> None:
    done = ", ".join(f"{count} {op}" for op, count in result.converted.items())
    if done:
        out.say(f"rewritten: {done}")
    if result.dequantized or result.unrounded:
        out.say(f"{result.dequantized} weights dequantized, {result.unrounded} roundings of activations taken away")
    if result.left:
        out.say(f"{len(result.left)} quantized nodes stay in QDQ form")
        shown = result.left if out.verbose else result.left[:NODES_SHOWN]
        for name, op, reason in shown:
            out.say(f"  {name} ({op}): {reason}")
        if len(shown) < len(result.left):
            out.say(f"  and {len(result.left) - len(shown)} more (-v lists all)")
    ratio = f"{human_bytes(result.bytes_before)} -> {human_bytes(result.bytes_after)}"
    out.say(f"{'Size':<9} {ratio}")
    count = result.verified_samples
    on = f"on {count} {result.verified_on} {'sample' if count == 1 else 'samples'}"
    for name, value in result.sqnr_db.items():
        text = "equal to the source" if value == float("inf") else f"{value:.1f} dB from the source"
        out.say(f"{'Output':<9} {name}: {text}, {on}")
    for name, (before, after) in result.reference_db.items():
        out.say(f"{'SQNR':<9} {name}: {before:.1f} dB before, {after:.1f} dB now, against the reference, {on}")
    for note in result.notes:
        out.note(note)
