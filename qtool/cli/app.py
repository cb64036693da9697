"""The command line as a whole: the app, its commands, and how the program ends."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from qtool.cli import bench, calibrate, compare, convert, diff, eval_, info, inspect, prepare, quantize, stats
from qtool.cli._args import spread
from qtool.cli._errors import describe, is_debugging
from qtool.cli._interrupt import was_interrupted
from qtool.cli._options import examples
from qtool.cli._output import Output, open_missing_streams
from qtool.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK

app = typer.Typer(
    name="qtool",
    help="Quantize ONNX models, verify the result, and say what it cost.",
    epilog=examples(
        "qtool quantize model.onnx --calib calib.npz",
        "qtool eval model.onnx model.int8.onnx --data eval.npz --labels labels",
        "qtool inspect model.onnx",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # run() says what happened
)
app.command("quantize", epilog=quantize.EXAMPLES)(quantize.quantize)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command("eval", epilog=eval_.EXAMPLES)(eval_.evaluate)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("prepare", epilog=prepare.EXAMPLES)(prepare.prepare)
app.command("convert", epilog=convert.EXAMPLES)(convert.convert)
app.command("diff", epilog=diff.EXAMPLES)(diff.diff)
app.command("info", epilog=info.EXAMPLES)(info.info)
app.add_typer(stats.app, name="stats")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        import qtool

        Output().data(f"qtool {qtool.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        context.get_help()  # prints it, in rich mode
        raise typer.Exit


def run(args: Sequence[str] | None = None) -> int:
    """Run the app; every ending becomes at most one error line and a hint on stderr.

    Args:
        args: The arguments after the program's name; ``sys.argv`` by default.

    Returns:
        The exit code.
    """
    open_missing_streams()
    if os.environ.get("COLUMNS") == "0":  # what a terminal without a size says; rich would fill no column with its help
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a name gets its escape, not a crash
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # what it warns of is an error of ours, or no matter
    out = Output()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: out.warning(str(message))
        try:
            # not standalone: usage errors arrive here instead of in a box on the terminal
            given = spread(sys.argv[1:] if args is None else args)
            code = app(args=given, prog_name="qtool", standalone_mode=False)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            code = EXIT_INTERRUPTED
        except Exception as error:
            if is_debugging():
                traceback.print_exc()
            ending = describe(error)
            if ending.exit_code != EXIT_INTERNAL or not was_interrupted():
                out.error(ending.message, hint=ending.hint)
                return ending.exit_code
            code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:  # also what typer makes of Ctrl-C inside a command
        out.error("interrupted, nothing was written")
    return code if isinstance(code, int) else EXIT_OK
