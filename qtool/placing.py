"""A finished file goes where it was wanted, whole, and over another one only where that was asked for."""

from __future__ import annotations

import os
from pathlib import Path

from qtool.errors import ConfigError


def place_file(draft: Path, target: Path, *, replace: bool, called: str = "Output") -> None:
    """Put a file in place in one step. The draft may stay: it lies in a folder that goes.

    Args:
        draft: The file, on the file system of ``target``.
        target: Where it goes.
        replace: Whether another file may be there, a link to one included; the link itself is then replaced.
        called: What ``target`` is in the message.

    Raises:
        ConfigError: If something is there and must not be replaced. Nobody looks first: it may come at any time.
        OSError: If it cannot be done.
    """
    if replace:
        draft.replace(target)
        return
    try:
        os.link(draft, target)
    except FileExistsError as error:
        raise _taken(target, called) from error
    except OSError:  # a file system without hard links; between the look and the step there is a moment
        if os.path.lexists(target):
            raise _taken(target, called) from None
        draft.replace(target)


def _taken(target: Path, called: str) -> ConfigError:
    return ConfigError(
        f"{called} '{target}' was not there when the command began, and is now: it was left as it is.",
        hint="Overwrite it with --force, or choose another with -o.",
    )
