"""Files that a command writes beside its result: checked before the work, and never seen half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from qtool.errors import ConfigError

STDOUT = "-"


def check_targets(targets: Mapping[str, str | None], *others: str | os.PathLike[str] | None) -> None:
    """Refuse files that cannot all be written before any work is done.

    Args:
        targets: What each is called in messages ("JSON file") -> the file, ``-`` for stdout, or None.
        others: Files that the command reads or writes otherwise.

    Raises:
        ConfigError: If a folder does not exist or is not writable, a target is a folder or one of ``others``, or two
            targets are one file or both stdout.
    """
    wanted = {kind: target for kind, target in targets.items() if target is not None}
    for (kind, target), (second, other) in combinations(wanted.items(), 2):
        if target == other == STDOUT:
            raise ConfigError(f"{kind} and {second} are both '-', which is stdout; expected one of them there.")
        if STDOUT not in (target, other) and is_same_file(Path(target), Path(other)):
            raise ConfigError(f"{kind} and {second} are both '{target}'; expected two names.")
    for kind, target in wanted.items():
        if target != STDOUT:
            _check_target(kind, Path(target), others)


def _check_target(kind: str, path: Path, others: tuple[str | os.PathLike[str] | None, ...]) -> None:
    if path.is_dir():
        raise ConfigError(f"{kind} '{path}' is a folder; expected the name of a file.")
    if not path.parent.is_dir():
        raise ConfigError(f"{kind} '{path}': there is no folder '{path.parent}'.", hint="Create it first.")
    for other in others:
        if other is not None and is_same_file(path, Path(other)):
            raise ConfigError(f"{kind} '{path}' is a file that the command needs itself; expected another name.")
    place = path.resolve()
    if (path.exists() and not os.access(path, os.W_OK)) or (
        not _is_special(path) and not os.access(place.parent, os.W_OK)
    ):
        raise ConfigError(f"{kind} '{path}' cannot be written: permission denied.")


def is_same_file(path: Path, other: Path) -> bool:
    """Whether two names are of one file, be it there or not."""
    return path.absolute() == other.absolute() or (path.exists() and other.exists() and path.samefile(other))


def write_text(text: str, target: str, kind: str) -> None:
    """Write a file that is whole or not there: a temporary file beside it takes its name at the end.

    A link keeps pointing to the file that it names; a device or a pipe is written to as it is. What UTF-8 cannot hold
    (the bytes of a file name) is shown by its escape.

    Args:
        text: The whole content.
        target: The file.
        kind: What it is called in messages.

    Raises:
        ConfigError: If it cannot be written.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        if _is_special(Path(target)):
            Path(target).write_bytes(data)
        else:
            _replace(Path(target).resolve(), data)
    except OSError as error:
        raise ConfigError(f"{kind} '{target}' cannot be written: {error.strerror}.") from error


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".qtool-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _umask() -> int:
    """Permissions that new files do not get; the system tells them only by setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _is_special(path: Path) -> bool:
    """Whether a name is of something that a rename must not replace."""
    return path.exists() and not path.is_file()
