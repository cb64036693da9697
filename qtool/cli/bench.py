"""``qtool bench kernels``: how fast and how exact the kernels are on this machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target
from qtool.errors import EXIT_FAILED, ConfigError

if TYPE_CHECKING:
    from qtool.bench.run import Result, Skipped

EXAMPLES = opt.examples(
    "qtool bench kernels",
    "qtool bench kernels --only 'gemv*' --threads 2",
    "qtool bench kernels --full --json kernels.json",
    "qtool bench kernels --check",
)
WHAT = "What to do"
ROUNDS_QUICK, ROUNDS_FULL = 5, 9
SECONDS_QUICK, SECONDS_FULL = 2.0, 20.0  # after which a case begins no new round

app = typer.Typer(help="Measure this machine.", invoke_without_command=True)


@app.callback()
def _bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.get_help()  # prints it, in rich mode
        raise typer.Exit


@app.command("kernels", epilog=EXAMPLES)
def kernels(
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="A short list within a minute, or everything.", rich_help_panel=WHAT)
    ] = True,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="GLOB",
            show_default=False,
            help="Only the benchmarks, short list or not, whose name matches.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate", help="Run what the floors need; exit 1 if a kernel falls short of one.", rich_help_panel=WHAT
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare each kernel with its reference, bit for bit, instead; exit 1 if one is wrong.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    comparisons: Annotated[
        int,
        typer.Option("--comparisons", metavar="N", min=1, help="Of each kernel, for --check.", rich_help_panel=WHAT),
    ] = 10_000,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            metavar="N",
            min=1,
            show_default=f"{ROUNDS_QUICK}, or {ROUNDS_FULL} with --full and --gate",
            help="Rounds in which the engines take turns; the median counts.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="Threads of all engines.", rich_help_panel=opt.RUN)
    ] = 1,
    json_target: opt.JsonTarget = None,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Measure the kernels against onnxruntime, oneDNN, NumPy and what this machine can do.

    The engines take turns, in rounds with pauses; a ratio is one of medians, and above 1 qtool is faster. oneDNN takes
    part where torch is installed.
    """
    out = Output(quiet=quiet, color=color)
    check_json_target(json_target)
    if check:
        if gate or only is not None:
            raise ConfigError("--check measures nothing; expected neither --gate nor --only with it.")
        _check(out, comparisons, json_target)
    else:
        full = gate or not quick
        seconds = SECONDS_FULL if full else SECONDS_QUICK
        _measure(
            out, only, full, gate, rounds or (ROUNDS_FULL if full else ROUNDS_QUICK), threads, seconds, json_target
        )


def _measure(
    out: Output,
    only: str | None,
    full: bool,
    gate: bool,
    rounds: int,
    threads: int,
    seconds: float,
    json_target: str | None,
) -> None:
    from qtool.bench import cases, machine, report
    from qtool.bench import gate as floors
    from qtool.bench.run import joined, run
    from qtool.kernels import isa_info

    chosen = cases.select(only, quick=not full)
    facts = machine.describe()
    for line in report.heading(facts):
        out.say(line)
    busy = machine.is_busy(facts)
    if busy:
        out.warning("this machine is busy: the figures will say little about the kernels")
    measure = partial(
        run, rounds=rounds, threads=threads, at_most=seconds, before=lambda case: out.say(f"  {case.name}")
    )
    results = measure(floors.needed(chosen) if gate else chosen)
    reason = floors.why_not_judged(isa_info(), threads)
    verdicts = floors.judge(_measured(results)) if reason is None else []
    short = floors.short_cases(verdicts) if gate else frozenset()
    if short:
        out.say(f"{floors.AGAIN} more times, for a ratio of theirs is short of its floor")
        results = joined(results, measure(one.case for one in results * floors.AGAIN if one.case.name in short))
        verdicts = floors.judge(_measured(results))
    if json_target is not None:
        out.json(report.to_dict(facts, results, verdicts, reason), json_target)
    if json_target != STDOUT:
        out.table(report.HEADERS, report.rows(results), right=report.RIGHT)
    _say_verdicts(out, verdicts, reason, gate=gate)
    if gate and any(verdict.status == "short" for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def _measured(results: list[Result | Skipped]) -> list[Result]:
    from qtool.bench.run import Result

    return [result for result in results if isinstance(result, Result)]


def _say_verdicts(out: Output, verdicts: list[Any], reason: str | None, *, gate: bool) -> None:
    if not gate:
        return
    if reason is not None:
        out.note(f"not judged: {reason}")
        return
    for verdict in verdicts:
        if verdict.status == "short":
            out.error(verdict.sentence())
        elif verdict.status == "floor":
            out.note(verdict.sentence())
    counts = {status: sum(v.status == status for v in verdicts) for status in ("goal", "floor", "short")}
    out.say(
        f"{len(verdicts)} ratios: {counts['goal']} at the goal, {counts['floor']} between floor and goal, "
        f"{counts['short']} short of the floor"
    )


def _check(out: Output, comparisons: int, json_target: str | None) -> None:
    from qtool.bench import check, machine

    outcomes = []
    for kernel in check.DRAWS:
        out.say(f"  {kernel}")
        outcomes.append(check.check(kernel, comparisons))
    if json_target is not None:
        out.json({"machine": machine.describe(), "checks": [outcome.__dict__ for outcome in outcomes]}, json_target)
    if json_target != STDOUT:
        rows = [[o.kernel, str(o.comparisons), str(o.wrong), o.first or ""] for o in outcomes]
        out.table(["kernel", "comparisons", "wrong", "first wrong"], rows, right=["comparisons", "wrong"])
    if any(outcome.wrong for outcome in outcomes):
        out.error("some results are not those of the reference")
        raise typer.Exit(EXIT_FAILED)
