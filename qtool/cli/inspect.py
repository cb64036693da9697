"""``qtool inspect``: what is in a model, what would be quantized, and what not and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target, human_bytes
from qtool.cli._summary import show_rows, show_totals, target_line
from qtool.targets import DEFAULT_TARGET

if TYPE_CHECKING:
    from qtool.api import Inspection

EXAMPLES = opt.examples(
    "qtool inspect model.onnx",
    "qtool inspect model.onnx -v",
    "qtool inspect model.onnx --target tensorrt",
    "qtool inspect model.onnx --show skipped",
    "qtool inspect transformer.onnx --dynamic",
    "qtool inspect transformer.onnx --weight-only --weights int4",
    "qtool inspect model.onnx --json - | python -m json.tool",
)


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)],
    config: opt.ConfigFile = None,
    target: opt.Target = None,
    weights: opt.Weights = None,
    dynamic: opt.Dynamic = None,
    weight_only: opt.WeightOnly = None,
    block: opt.Block = None,
    scale_type: opt.ScaleType = None,
    matmul_nbits: opt.MatMulNBits = None,
    prepare: opt.NoPrepare = None,
    override: opt.Overrides = None,
    show: opt.Show = None,
    json_target: opt.JsonTarget = None,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Show a model's operators, types and sizes, and what would be quantized.

    Needs no samples and writes nothing. With -v or --show nodes get a row of their own:
    what becomes of each, its types, where its scales come from, bytes before and after, and why it stays float.
    """
    out = Output(quiet=quiet, verbose=verbose, color=color)
    check_json_target(json_target, model, config)
    shown = opt.show(show)
    from qtool import api

    inspection = api.inspect(
        model,
        config=config,
        target=target,
        weights=weights,
        dynamic=dynamic,
        weight_only=weight_only,
        block=block,
        scale_type=scale_type,
        matmul_nbits=matmul_nbits,
        prepare=prepare,
        overrides=opt.overrides(override),
    )
    if json_target is not None:
        out.json(inspection.to_dict(), json_target)
    if json_target != STDOUT:
        _show(out, model, inspection, shown or ("all" if verbose else None))


def _show(out: Output, model: Path, found: Inspection, which: str | None) -> None:
    out.data(str(model))
    domains = ", ".join(found.domains) if found.domains else "ai.onnx"
    out.data(f"opset {found.opset}, IR version {found.ir_version}, domains {domains}")
    out.data(f"{human_bytes(found.nbytes)} in all, {human_bytes(found.weight_bytes)} of weights")
    out.data("")
    rows = [["input", i.name, i.dtype.name, _shape(i.shape)] for i in found.inputs]
    rows += [["output", o.name, o.dtype.name, _shape(o.shape)] for o in found.outputs]
    out.table(["", "name", "type", "shape"], rows)
    out.data("")
    if found.table is not None and which is not None:
        show_rows(out, found.table, which)
        out.data("")
        show_totals(out, found.table)
    elif out.verbose:
        out.table(["node", "operator", "decision", "reason"], [list(node) for node in found.nodes])
    else:
        out.table(
            ["operator", "nodes", "quantized", "left in float because"],
            _by_operator(found),
            right=["nodes", "quantized"],
        )
    out.data("")
    if found.table is not None and found.table.forecast is not None:
        expected = found.table.forecast.file_bytes
        out.data(f"{human_bytes(expected)} would be the size of the file, {expected / found.nbytes:.1%} of this one")
    out.data(f"{found.quantized} of {found.total} nodes would be quantized")
    if found.target != DEFAULT_TARGET:
        out.data(f"for target {target_line(found.target)}")
    if found.table is not None and found.table.remark is not None:
        out.note(found.table.remark)
    if which is None:
        out.hint("-v lists every node; --show quantized or --show skipped some of them.")


def _by_operator(found: Inspection) -> list[list[str]]:
    """One row per operator; its most frequent reason for staying in float, and how many others there are."""
    total: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for _, op_type, decision, reason in found.nodes:
        total[op_type] += 1
        if decision != "quantize":
            reasons.setdefault(op_type, Counter())[reason] += 1
    rows = []
    for op_type, nodes in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        ranked = sorted(reasons.get(op_type, Counter()).items(), key=lambda item: (-item[1], item[0]))
        text = ranked[0][0] if ranked else ""
        if len(ranked) > 1:
            text += f" (and {len(ranked) - 1} other {'reason' if len(ranked) == 2 else 'reasons'})"
        rows.append([op_type, str(nodes), str(nodes - sum(count for _, count in ranked)), text])
    return rows


def _shape(shape: tuple[int | str | None, ...]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
