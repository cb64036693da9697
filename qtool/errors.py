"""Errors that a user can cause, each with the exit code and the way out.

An error states subject, what was found, what was expected and what to do. The command line prints ``message`` on one
line and ``hint`` on a second one that starts with ``hint:``; nothing else is ever shown for a user's mistake.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # finished, but a gate failed or nothing was quantized
EXIT_USAGE = 2  # usage, configuration or input error
EXIT_INTERNAL = 70  # a bug in qtool
EXIT_INTERRUPTED = 130


class QtoolError(Exception):
    """Base of all errors that qtool raises on purpose.

    Args:
        message: One line: subject, what was found, what was expected.
        hint: One line: what to do about it.
    """

    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(QtoolError):
    """An option, or a combination of options, that cannot be carried out."""


class ModelError(QtoolError):
    """A model that cannot be read, is not valid, or is not one that qtool takes."""


class DataError(QtoolError):
    """Samples that do not fit the model, or cannot be read."""


class KernelError(QtoolError):
    """An array whose shape, type or value a kernel does not take."""


class VerificationError(QtoolError):
    """The written model does not check, load, run or agree. Nothing was put in place."""

    exit_code = EXIT_FAILED


class InterruptedRun(QtoolError):  # noqa: N818 - no mistake, but an ending like the others
    """The user ended a run that can go on later."""

    exit_code = EXIT_INTERRUPTED


class NothingToQuantizeError(QtoolError):
    """No node was quantized and ``allow_empty`` was not set."""

    exit_code = EXIT_FAILED
