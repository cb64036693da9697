"""The command ``qtool``: runs the app and turns whatever ends it into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qtool.cli._interrupt import patient_interrupts
from qtool.errors import EXIT_INTERRUPTED


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: The arguments after the program's name; ``sys.argv`` by default.

    Returns:
        The exit code: 0 done; 1 a gate failed or nothing was quantized; 2 usage, configuration or input error;
        70 internal error; 130 interrupted.
    """
    try:
        with patient_interrupts():
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


if __name__ == "__main__":
    sys.exit(main())
