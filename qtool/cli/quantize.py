"""``qtool quantize``: options in, a model file out; what happened on stderr, its path on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target
from qtool.cli._progress import progress_bars
from qtool.cli._summary import show_plan, show_summary
from qtool.errors import ConfigError

EXAMPLES = opt.examples(
    "qtool quantize model.onnx --calib calib.npz",
    "qtool quantize model.onnx --calib a.npz --calib b.npz --format qdq --exclude 'op:Gemm' -o small.onnx",
    "qtool quantize model.onnx --calib 'images/*.npz' --samples 200 --shuffle 0",
    "qtool quantize bert.onnx --calib input_ids=ids.npy attention_mask=mask.npy",
    "qtool quantize model.onnx --stats model.stats.npz --method mse --method '/head/*=minmax'",
    "qtool quantize model.onnx --calib calib.npz --dry-run",
    "qtool quantize model.onnx --calib calib.npz --target tensorrt",
    "qtool quantize model.onnx --calib calib.npz --override '/head/*=activations:uint16' --override 'op:Gemm=float'",
    "qtool quantize model.onnx --calib calib.npz --dry-run --show skipped",
    "qtool quantize transformer.onnx --dynamic",
    "qtool quantize model.onnx --weight-only --weights int4 --block 32",
)


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an ONNX file.", show_default=False)],
    calib: Annotated[
        list[str] | None,
        typer.Option(
            "--calib",
            metavar="DATA",
            show_default=False,
            help=f"Calibration samples: {opt.DATA_HELP}",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    samples: opt.SampleCount = None,
    shuffle: opt.Shuffle = None,
    on_nan: opt.OnNan = "stop",
    stats: Annotated[
        Path | None,
        typer.Option(
            "--stats",
            metavar="STATS",
            show_default=False,
            help="Statistics that 'qtool calibrate' saved for this model, instead of samples: no inference, the same "
            "result.",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="[GLOB=]auto|minmax|percentile[:P]|mse|entropy|mean_minmax",
            show_default="auto",
            help="How the range of an activation follows from its values; with GLOB=, only that of tensors with such "
            "names. Repeatable: the last one that matches counts.",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    random_calib: Annotated[
        int | None,
        typer.Option(
            "--random-calib",
            metavar="N",
            min=1,
            show_default=False,
            help="Calibrate on N random samples instead of data: to try a model out, not to ship it. Recorded in "
            "the model.",
            rich_help_panel=opt.CALIBRATION,
        ),
    ] = None,
    target: opt.Target = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="qlinear|qdq",
            show_default="qlinear",
            help="Form of the quantized graph: integer operators (QLinearConv, QLinearMatMul) where they exist, or "
            "float operators between Q/DQ pairs.",
            rich_help_panel=opt.QUANTIZATION,
        ),
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option(
            "--activations",
            metavar="TYPE",
            show_default="uint8",
            help="Element type of activations: uint8, int8, uint16 or int16.",
            rich_help_panel=opt.QUANTIZATION,
        ),
    ] = None,
    weights: opt.Weights = None,
    per_channel: Annotated[
        bool | None,
        typer.Option(
            "--per-channel/--per-tensor",
            show_default="per-channel",
            help="One weight scale per output channel, or one per weight.",
            rich_help_panel=opt.QUANTIZATION,
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--asymmetric",
            show_default="asymmetric",
            help="Fix the zero point of activations, or fit it to their range.",
            rich_help_panel=opt.QUANTIZATION,
        ),
    ] = None,
    dedicated_qdq: Annotated[
        bool | None,
        typer.Option(
            "--dedicated-qdq",
            show_default=False,
            help="Give each consumer of a tensor its own Q/DQ pair.",
            rich_help_panel=opt.QUANTIZATION,
        ),
    ] = None,
    dynamic: opt.Dynamic = None,
    weight_only: opt.WeightOnly = None,
    block: opt.Block = None,
    scale_type: opt.ScaleType = None,
    matmul_nbits: opt.MatMulNBits = None,
    prepare: opt.NoPrepare = None,
    config: opt.ConfigFile = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="PATTERN",
            show_default=False,
            help="Quantize only these nodes: a name, a glob ('/layer1/*'), 'op:Type' or 'domain:NAME'. Repeatable.",
            rich_help_panel=opt.SELECTION,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="PATTERN",
            show_default=False,
            help="Leave these nodes in float; patterns as for --include. Repeatable.",
            rich_help_panel=opt.SELECTION,
        ),
    ] = None,
    override: opt.Overrides = None,
    allow_empty: Annotated[
        bool | None,
        typer.Option(
            "--allow-empty",
            show_default=False,
            help="Accept a model in which nothing can be quantized.",
            rich_help_panel=opt.SELECTION,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        opt.output_file(
            "FILE",
            "the quantized model goes",
            default="MODEL.int8.onnx beside MODEL; in weight-only mode the type of weights instead of int8",
        ),
    ] = None,
    force: opt.Force = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan and write no model.", rich_help_panel=opt.RUN),
    ] = False,
    show: opt.Show = None,
    batch: opt.Batch = None,
    max_memory: opt.MaxMemory = None,
    threads: opt.Threads = None,
    custom_ops: opt.CustomOps = None,  # noqa: ARG001 - its callback does the work
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Quantize a model and verify the result.

    Observes activations on calibration samples, decides node by node, and writes the quantized model.

    The file is checked, run and compared with the float model before it is put in place. stdout gets its path.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    from qtool import api
    from qtool.calibrate.readers import files_of
    from qtool.publish import default_output
    from qtool.weight_settings import WEIGHT_ONLY_DTYPES

    # which of the default outputs it will be, the config decides
    targets = [output] if output is not None else [default_output(model, dtype) for dtype in WEIGHT_ONLY_DTYPES]
    check_json_target(json_target, model, config, *targets, stats, *files_of(calib))
    at_once, shown = opt.batch_size(batch), opt.show(show)
    if shown is not None and not dry_run:
        raise ConfigError("Option --show is about the plan that --dry-run shows.", hint="Add --dry-run.")
    general, by_tensor = _methods(method or [])
    nan_rule, limit = opt.on_nan(on_nan), opt.byte_count(max_memory)

    with progress_bars(out) as progress:
        result = api.quantize(
            model,
            calib or None,
            stats=stats,
            output=output,
            target=target,
            format=format_,
            activations=activations,
            weights=weights,
            per_channel=per_channel,
            symmetric_activations=symmetric,
            method=general,
            tensor_methods=by_tensor or None,
            include=include or None,
            exclude=exclude or None,
            dedicated_qdq=dedicated_qdq,
            dynamic=dynamic,
            allow_empty=allow_empty,
            weight_only=weight_only,
            block=block,
            scale_type=scale_type,
            matmul_nbits=matmul_nbits,
            prepare=prepare,
            overrides=opt.overrides(override),
            config=config,
            random_calib=random_calib,
            samples=samples,
            shuffle=shuffle,
            batch=at_once,
            on_nan=nan_rule,
            max_memory=limit,
            force=force,
            dry_run=dry_run,
            num_threads=threads,
            progress=progress,
        )
    if json_target is not None:
        out.json(result.to_dict(), json_target)
    if dry_run:
        if json_target != STDOUT:
            show_plan(out, result, shown or "all")
    else:
        show_summary(out, model, result)
        if json_target != STDOUT and result.model_path is not None:
            out.data(str(result.model_path))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _methods(given: list[str]) -> tuple[str | None, dict[str, str]]:
    """The method of all tensors, if one is given, and those of globs in order."""
    from qtool.errors import ConfigError

    general = None
    by_tensor: dict[str, str] = {}
    for text in given:
        pattern, equals, name = text.rpartition("=")  # a tensor's name may hold "=", a method's does not
        if equals:
            by_tensor.pop(pattern, None)
            by_tensor[pattern] = name
        elif general is None:
            general = text
        else:
            raise ConfigError(
                f"--method is '{general}' and '{text}'; expected one for all tensors.",
                hint="A method for some of them is given with a glob of their names: --method 'GLOB=NAME'.",
            )
    return general, by_tensor
