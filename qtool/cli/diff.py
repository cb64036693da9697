"""``qtool diff``: in what the quantization of two models differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target
from qtool.errors import EXIT_FAILED

if TYPE_CHECKING:
    from qtool.convert import Difference

EXAMPLES = opt.examples(
    "qtool diff model.int8.onnx model.qdq.onnx",
    "qtool diff before.onnx after.onnx --json changes.json",
    "qtool diff before.onnx after.onnx --exit-code --quiet",
)


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A quantized model.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.", show_default=False)],
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="Exit with 1 if they differ, as git does.", rich_help_panel=opt.RUN),
    ] = False,
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Compare the quantization parameters of two models.

    One row for each tensor whose type, scale, zero point, axis, blocks or codes differ, or that one of them has alone.

    Tensors are matched by name, whatever the form of the graph. Exits with 0, differences or not, unless --exit-code.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    check_json_target(json_target, a, b)
    from qtool import api

    found = api.diff(a, b)
    if json_target is not None:
        out.json(found.to_dict(), json_target)
    if json_target != STDOUT:
        _show(out, found)
    if exit_code and not found.is_empty:
        raise typer.Exit(EXIT_FAILED)


def _show(out: Output, found: Difference) -> None:
    if found.tensors:
        rows = [[t.name, t.kind, t.what, t.a, t.b] for t in found.tensors]
        out.table(["tensor", "kind", "what", "A", "B"], rows)
    if found.nodes:
        if found.tensors:
            out.data("")
        out.table(["node", "operator", "quantized"], [list(row) for row in found.nodes])
    a, b, nodes_a, nodes_b = found.counts
    if found.is_empty:
        out.say(f"no difference: {a} tensors and {nodes_a} nodes are quantized in the same way")
        return
    names = len({(t.kind, t.name) for t in found.tensors})
    out.say(
        f"{names} tensors differ ({a} quantized in A, {b} in B, {found.compared} in both), {found.codes} codes of "
        f"weights, and {len(found.nodes)} nodes are quantized on one side only ({nodes_a} in A, {nodes_b} in B)"
    )
