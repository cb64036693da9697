"""The command line as a whole: the app, its commands, and how the program ends.

Typer builds a validator for every option of every command of an app, a tenth of a second for all of ours. So a call of
one command gets an app that has no other, and imports no other.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from qtool.cli._args import spread
from qtool.cli._errors import describe, is_debugging
from qtool.cli._interrupt import was_interrupted
from qtool.cli._options import examples
from qtool.cli._output import Output, discard_rest, open_missing_streams
from qtool.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK

# Command -> its file here, and its function there; in the order of the help.
_COMMANDS = {
    "quantize": ("quantize", "quantize"),
    "calibrate": ("calibrate", "calibrate"),
    "eval": ("eval_", "evaluate"),
    "compare": ("compare", "compare"),
    "inspect": ("inspect", "inspect"),
    "prepare": ("prepare", "prepare"),
    "convert": ("convert", "convert"),
    "diff": ("diff", "diff"),
    "info": ("info", "info"),
}
_GROUPS = ("stats", "bench")  # files that have an app of their own


def build_app(commands: Collection[str] = (*_COMMANDS, *_GROUPS)) -> typer.Typer:
    """The app with some commands; by default all."""
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
    app.callback(invoke_without_command=True)(_main)
    for name, (file, function) in _COMMANDS.items():
        if name in commands:
            module = import_module(f"qtool.cli.{file}")
            app.command(name, epilog=module.EXAMPLES)(getattr(module, function))
    for name in _GROUPS:
        if name in commands:
            app.add_typer(import_module(f"qtool.cli.{name}").app, name=name)
    return app


def __getattr__(name: str) -> Any:
    if name == "app":
        return build_app()
    raise AttributeError(f"module 'qtool.cli.app' has no attribute {name!r}")


def _app_for(args: Sequence[str]) -> typer.Typer:
    """The app with all that these arguments may ask for."""
    if args and args[0] in (*_COMMANDS, *_GROUPS):
        return build_app(args[:1])
    return build_app(() if args == ["--version"] else (*_COMMANDS, *_GROUPS))


def _show_version(wanted: bool) -> None:
    if wanted:
        import qtool

        Output().data(f"qtool {qtool.__version__}")
        raise typer.Exit


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
    streams = sys.stdout, sys.stderr
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: out.warning(str(message))
        try:
            # not standalone: usage errors arrive here instead of in a box on the terminal
            given = spread(sys.argv[1:] if args is None else args)
            code = _app_for(given)(args=given, prog_name="qtool", standalone_mode=False)
            sys.stdout.flush()
        except SystemExit:  # what rich and typer make of a help whose reader (head, less) has seen enough
            sys.stdout, sys.stderr = streams
            discard_rest(sys.stdout)
            code = EXIT_OK
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
