"""``qtool stats``: look into statistics files, merge them, compare them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target, human_bytes
from qtool.errors import EXIT_FAILED

if TYPE_CHECKING:
    from qtool.calibrate.methods.comparison import MethodRow
    from qtool.calibrate.saved import SavedStatistics

SHOW_EXAMPLES = opt.examples(
    "qtool stats show model.stats.npz",
    "qtool stats show model.stats.npz --method all --tensor '*attention*'",
    "qtool stats show model.stats.npz --method mse,percentile:99.99 --json -",
)
MERGE_EXAMPLES = opt.examples("qtool stats merge part*.npz -o model.stats.npz")
DIFF_EXAMPLES = opt.examples("qtool stats diff before.stats.npz after.stats.npz")
WHAT = "What to show"

app = typer.Typer(help="Show, merge and compare statistics files.", invoke_without_command=True)
Stats = Annotated[
    Path, typer.Argument(metavar="STATS", help="A statistics file of 'qtool calibrate'.", show_default=False)
]


@app.callback()
def _stats(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.get_help()  # prints it, in rich mode
        raise typer.Exit


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    stats: Stats,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="all|NAME,...",
            show_default=False,
            help="Show the range under these methods, what each clips, the signal to noise ratio it gives, and which "
            "one is chosen and why. Nothing is run.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    tensor: Annotated[
        str,
        typer.Option("--tensor", metavar="GLOB", help="Only tensors whose name matches.", rich_help_panel=WHAT),
    ] = "*",
    activations: Annotated[
        str,
        typer.Option("--activations", metavar="TYPE", help="Element type, with --method.", rich_help_panel=WHAT),
    ] = "uint8",
    symmetric: Annotated[
        bool,
        typer.Option("--symmetric/--asymmetric", help="Fix the zero point, with --method.", rich_help_panel=WHAT),
    ] = False,
    json_target: opt.JsonTarget = None,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Show what a statistics file holds.

    stdout gets a table with a row for each tensor, or for each tensor and method.
    """
    out = Output(quiet=quiet, color=color)
    from qtool import api

    check_json_target(json_target, stats)
    saved = api.load_stats(stats)
    names = api.matching(saved, tensor)
    rows: dict[str, Any] = {}
    if method is not None:
        rows = dict(
            api.compare_methods(
                saved,
                methods=[name.strip() for name in method.split(",")],
                tensors=tensor,
                activations=activations,
                symmetric=symmetric,
            )
        )
    if json_target is not None:
        out.json(_document(stats, saved, names, rows if method is not None else None), json_target)
    if json_target != STDOUT:
        if method is None:
            head = ["tensor", "values", "minimum", "maximum", "mean minimum", "mean maximum", "zeros", "NaN", "Inf"]
            out.table(head, _rows(saved, names), right=head[1:2] + head[6:])
        else:
            out.table(
                ["tensor", "method", "low", "high", "clipped", "SQNR dB", "chosen", "why"],
                [_method_row(name, row) for name in names for row in rows[name]],
                right=["clipped", "SQNR dB"],
            )
    out.say(f"{len(names)} of {len(saved.statistics)} tensors, {saved.samples} samples of {_origin(saved)}")
    out.say(f"model {saved.model.sha256}")


@app.command("merge", epilog=MERGE_EXAMPLES)
def merge(
    stats: Annotated[
        list[Path],
        typer.Argument(metavar="STATS...", help="Statistics files of one model.", show_default=False),
    ],
    output: Annotated[
        Path,
        opt.output_file("OUT", "the sum goes"),
    ],
    force: opt.Overwrite = False,
    json_target: opt.JsonTarget = None,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Add up statistics of different samples of one model.

    The result is, byte for byte, the file of one run over all samples, in whatever order the files are given.
    stdout gets its path.
    """
    out = Output(quiet=quiet, color=color)
    from qtool import api

    check_json_target(json_target, output, *stats)
    merged = api.merge_stats(stats, output, force=force)
    if json_target is not None:
        head = {"schema_version": 1, "statistics": str(output), "merged": [str(path) for path in stats]}
        out.json(head | _summary(merged), json_target)
    out.say(f"{len(stats)} files merged: {len(merged.statistics)} tensors, {merged.samples} samples")
    out.say(f"{human_bytes(output.stat().st_size)} of statistics")
    if json_target != STDOUT:
        out.data(str(output))


@app.command("diff", epilog=DIFF_EXAMPLES)
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A statistics file.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    json_target: opt.JsonTarget = None,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Compare two statistics files: exit code 0 if model and statistics are equal, 1 if they differ.

    stdout gets a row for each tensor and thing that differs.
    """
    out = Output(quiet=quiet, color=color)
    from qtool import api

    check_json_target(json_target, first, second)
    found = api.diff_stats(first, second)
    if json_target is not None:
        out.json({"schema_version": 1, "first": str(first), "second": str(second)} | found.to_dict(), json_target)
    if json_target != STDOUT and found.tensors:
        cells = [[row.tensor, row.what, row.first, row.second] for row in found.tensors]
        out.table(["tensor", "what", "first", "second"], cells)
    if found.model is not None:
        out.say(f"the models differ: {found.model}")
    if found.samples[0] != found.samples[1]:
        out.say(f"samples: {found.samples[0]} and {found.samples[1]}")
    if not found.same_data:
        out.note("They are of different samples, or of the same ones in other files.")
    if found.equal:
        out.say("the statistics are equal")
    elif found.tensors:
        number = len({row.tensor for row in found.tensors})
        out.say("1 tensor differs" if number == 1 else f"{number} tensors differ")
    if not found.equal:
        raise typer.Exit(EXIT_FAILED)


def _summary(saved: SavedStatistics) -> dict[str, Any]:
    return {
        "samples": saved.samples,
        "model": saved.model.sha256,
        "sources": [use.to_dict() for use in saved.coverage],
    }


def _document(
    path: Path, saved: SavedStatistics, names: list[str], methods: dict[str, list[MethodRow]] | None
) -> dict[str, Any]:
    document = {"schema_version": 1, "statistics": str(path)} | _summary(saved)
    document["tensors"] = {name: saved.statistics[name].to_dict(histograms=False) for name in names}
    if methods is not None:
        document["methods"] = {
            name: [
                {
                    "method": row.name,
                    "low": row.lo,
                    "high": row.hi,
                    "clipped_fraction": row.clipped_fraction,
                    "sqnr_db": row.sqnr_db if math.isfinite(row.sqnr_db) else None,
                    "chosen": row.chosen,
                    "why": row.why,
                }
                for row in methods[name]
            ]
            for name in names
        }
    return document


def _rows(saved: SavedStatistics, names: list[str]) -> list[list[str]]:
    rows = []
    for name in names:
        one = saved.statistics[name]
        limits = [one.minimum, one.maximum, one.mean_minimum, one.mean_maximum]
        counts = [one.zeros, one.nan, one.pos_inf + one.neg_inf]
        rows.append([name, str(one.count), *(_number(x) if one.finite else "none" for x in limits), *map(str, counts)])
    return rows


def _method_row(name: str, row: MethodRow) -> list[str]:
    clipped = f"{100 * row.clipped_fraction:.4g} %"
    sqnr = f"{row.sqnr_db:.2f}" if math.isfinite(row.sqnr_db) else "exact"
    return [name, row.name, _number(row.lo), _number(row.hi), clipped, sqnr, "*" if row.chosen else "", row.why]


def _number(value: float) -> str:
    return f"{value:.6g}"


def _origin(saved: SavedStatistics) -> str:
    files = sum(use.held is not None for use in saved.coverage)
    parts = [f"{files} data file{'s' if files != 1 else ''}"] if files else []
    if files < len(saved.coverage):
        parts.append("data in memory")
    return " and ".join(parts) or "no data"
