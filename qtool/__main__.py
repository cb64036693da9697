"""The command ``qtool``: runs the app and turns whatever ends it into one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from qtool.cli._interrupt import patient_interrupts
from qtool.errors import EXIT_INTERRUPTED

_NEW_OBJECTS = 100_000  # between two searches for cycles


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: The arguments after the program's name; ``sys.argv`` by default.

    Returns:
        The exit code: 0 done; 1 a gate failed or nothing was quantized; 2 usage, configuration or input error;
        70 internal error; 130 interrupted.
    """
    try:
        with _rare_collections(), patient_interrupts():
            from qtool.cli.app import run

            code = run(args)
    except KeyboardInterrupt:  # before run() could take over, or while it was reporting
        sys.stderr.write("error: interrupted, nothing was written\n")
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:
        # An interrupt that passed through exec() leaves a flag in CPython that turns our exit code into a death by
        # SIGINT, although the exception was handled. The next exec() takes it back.
        exec("pass")
    return code


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles seldom while a command runs: nearly all that it makes, modules and graphs, lives to its end.

    By Python's own thresholds the search is run hundreds of times, a tenth of the time of a short command. Behind the
    first command of a process the modules that it imported are no longer searched at all, not at the end either.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not gc.get_freeze_count():
            gc.freeze()


def command() -> NoReturn:
    """The program: run the command line of ``sys.argv``, then end the process.

    The interpreter is not taken down object by object: that takes a tenth of a second, a fifth of a short command, and
    does nothing that the end of the process does not do. What is registered for the end runs, and what is written
    arrives, or ends as it would have.
    """
    code = main()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # broken, closed or none: the interpreter knows what to do
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    command()
