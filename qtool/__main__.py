"""The command ``qtool``: runs the app and turns whatever ends it into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130  # errors.EXIT_INTERRUPTED, wanted before anything is imported


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: The arguments after the program's name; ``sys.argv`` by default.

    Returns:
        The exit code: 0 done; 1 a gate failed or nothing was quantized; 2 usage, configuration or input error;
        70 internal error; 130 interrupted.
    """
    try:
        from qtool.cli.app import run

        return run(args)
    except KeyboardInterrupt:  # before run() could take over, or while it was reporting
        sys.stderr.write("interrupted, nothing was written\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
