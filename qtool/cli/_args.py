"""Several values after one option: ``--calib a.npz b.npz``, as a shell makes of ``--calib *.npz``.

The parser takes one value per option. A sample file or a ``NAME=FILE`` pair can be nothing else on the command line, so
that those which follow the first become values of the same option before it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

DATA_OPTIONS = ("--calib", "--data")
DATA_SUFFIXES = (".npz", ".npy")


def spread(args: Sequence[str]) -> list[str]:
    """The arguments with the option repeated before each of its values."""
    return list(_spread(args))


def _spread(args: Sequence[str]) -> Iterator[str]:
    option: str | None = None  # whose further values may follow
    awaited = False  # its first value comes next
    for index, arg in enumerate(args):
        if arg == "--":
            yield from args[index:]
            return
        name = arg.partition("=")[0]
        if awaited:
            awaited = False
        elif name in DATA_OPTIONS:
            option, awaited = name, arg == name
        elif option is not None and not arg.startswith("-") and arg.lower().endswith(DATA_SUFFIXES):
            yield option
        else:
            option = None
        yield arg
