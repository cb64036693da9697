"""What a user sees of an exception: one line, a hint, an exit code.

One row per kind of exception, first match wins. Whatever no row knows is a bug in qtool (exit code 70).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from qtool.errors import EXIT_INTERNAL, EXIT_USAGE, QtoolError

DEBUG_VARIABLE = "QTOOL_DEBUG"


@dataclass(frozen=True)
class Ending:
    """How the program ends: what is said on stderr, and the exit code."""

    message: str
    hint: str | None
    exit_code: int


def describe(error: Exception) -> Ending:
    """The ending that an exception means.

    Args:
        error: Anything that came out of a command.
    """
    return next(ending for row in _ROWS if (ending := row(error)) is not None)


def is_debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def _known(error: Exception) -> Ending | None:
    if not isinstance(error, QtoolError):
        return None
    return Ending(error.message, error.hint, error.exit_code)


def _usage(error: Exception) -> Ending | None:
    """A mistake in the command line, found by typer."""
    if not isinstance(error, typer.TyperException):
        return None
    message = error.format_message().rstrip(".")
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "qtool"
    near = sorted(getattr(error, "possibilities", None) or ())
    if near:
        message = error.message.rstrip(".")
        hint = f"Did you mean {' or '.join(near)}?"
    elif " Did you mean " in message:  # how typer words an unknown command
        message, _, names = message.partition(" Did you mean ")
        message, hint = message.rstrip("."), f"Did you mean {names.replace(chr(39), '')}"
    else:
        hint = f"Run '{command} --help' for the arguments and options."
    return Ending(f"{message}.", hint, EXIT_USAGE)


def _isa(error: Exception) -> Ending | None:
    """The compiled core reads QTOOL_ISA when it is imported, and may refuse it there."""
    if isinstance(error, (ValueError, RuntimeError, ImportError)) and "QTOOL_ISA" in str(error):
        return Ending(str(error), "Unset QTOOL_ISA to use the best instruction set of this machine.", EXIT_USAGE)
    return None


def _missing_module(error: Exception) -> Ending | None:
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    if error.name == "qtool._core":
        return Ending("The compiled core of qtool is not built.", "Run 'pip install .' in the source tree.", EXIT_USAGE)
    if error.name.partition(".")[0] == "qtool":
        return None
    return Ending(f"The Python package '{error.name}' is not installed.", "Reinstall qtool.", EXIT_USAGE)


def _system(error: Exception) -> Ending | None:
    """Disk full, no permission, no such folder, and what else the operating system refuses."""
    if isinstance(error, MemoryError):
        return Ending("Not enough memory.", "Try fewer samples, a smaller batch, or --threads 1.", EXIT_USAGE)
    if not isinstance(error, OSError):
        return None
    subject = f"'{os.fspath(error.filename)!s}': " if isinstance(error.filename, (str, os.PathLike)) else ""
    return Ending(f"{subject}{error.strerror or error}.", None, EXIT_USAGE)


def _bug(error: Exception) -> Ending | None:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = f"This is a bug in qtool. {DEBUG_VARIABLE}=1 shows the traceback; please report it with the command."
    return Ending(f"Internal error: {said}", hint, EXIT_INTERNAL)


_ROWS: tuple[Callable[[Exception], Ending | None], ...] = (_known, _usage, _isa, _missing_module, _system, _bug)
