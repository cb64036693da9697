"""Readers of sample files, one kind per module; a new file in this package is registered by being there.

A module defines ``READER``. What is given as data (files, folders, globs, ``name=path`` pairs) is sorted out here, and
each reader opens what is of its kind.
"""

from __future__ import annotations

import glob
import importlib
import os
import pkgutil
import stat
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from qtool.calibrate.layout import listed
from qtool.calibrate.readers._reader import Files, Reader
from qtool.calibrate.sources import FORMS, Source
from qtool.errors import DataError
from qtool.runtime import TensorInfo

__all__ = ["Files", "Reader", "files_of", "open_files", "readers", "supported"]


@cache
def readers() -> tuple[Reader, ...]:
    """Every reader of this package."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}").READER for name in modules)


def supported() -> str:
    """What can be given as data, for hints."""
    forms = sorted((reader.form for reader in readers()), key=lambda form: (not form.startswith("an .npz"), form))
    return f"Supported: {', '.join(forms)}, folders and globs of those, {FORMS}."


def open_files(
    items: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
    inputs: Sequence[TensorInfo],
    labels: Sequence[str],
) -> tuple[list[Source], list[str]]:
    """Open what is given as files.

    Args:
        items: Paths, globs, and ``name=path`` pairs; or a mapping of input names to paths.
        inputs: What the model wants.
        labels: Keys of labels that will be asked for.

    Returns:
        Sources, in the order of the items, and notes about what was ignored.

    Raises:
        DataError: If an item does not exist, cannot be read, is of no or of mixed kinds, or does not fit.
    """
    located, notes = _locate(items)
    return [source for reader, files in located for source in reader.open(files, inputs, labels)], notes


def files_of(*items: object) -> list[Path]:
    """The files that would be read, as far as they can be found; never raises."""
    found: list[Path] = []
    for item in items:
        many = [*item.values()] if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else [item]
        for one in many:
            if isinstance(one, (str, os.PathLike)):
                found += _files(one)
    return found


def _files(item: str | os.PathLike[str]) -> list[Path]:
    try:
        located, _ = _locate([item])
        return [
            file
            for reader, files in located
            for path in (*files.paths, *files.named.values())
            for file in reader.files(path)
        ]
    except DataError:
        return [Path(item)]


# ----------------------------------------------------------------------------------------------------- sorting them out

_Located = list[tuple[Reader, Files]]


def _locate(
    items: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
) -> tuple[_Located, list[str]]:
    located: _Located = []
    notes: list[str] = []
    if isinstance(items, Mapping):
        return _pairs([(name, Path(path)) for name, path in items.items()]), notes
    pairs: list[tuple[str, Path]] = []
    pairs_at = 0
    loose: dict[str, int] = {}  # kind -> where its files, given one by one, are
    for item in items:
        text = os.fspath(item)
        if not text:  # an unset variable of a shell; as a path it would be the current folder
            raise DataError("Sample data '' is an empty path; expected a file or a folder.")
        path, pair = Path(text), _as_pair(text)
        if pair is not None:
            pairs_at = pairs_at if pairs else len(located)
            pairs.append(pair)
        elif glob.has_magic(text) and not os.path.lexists(text):
            located += _glob(text, notes)
        elif path.is_dir():
            located.append(_folder(path, notes))
        else:
            reader, files = _single(path)
            at = loose.setdefault(reader.kind, len(located)) if reader.together else len(located)
            if at < len(located):
                paths = (*located[at][1].paths, path)
                located[at] = reader, Files(f"Sample data {listed(map(str, paths))}", paths)
            else:
                located.append((reader, files))
    located[pairs_at:pairs_at] = _pairs(pairs)
    return located, notes


def _as_pair(text: str) -> tuple[str, Path] | None:
    """``name=path``, unless there is a file of that very name."""
    name, equals, path = text.partition("=")
    named = tuple(reader.suffix for reader in readers() if reader.takes_names)
    if not equals or not name or not path.lower().endswith(named) or os.path.lexists(text):
        return None
    return name, Path(path)


def _pairs(pairs: Sequence[tuple[str, Path]]) -> _Located:
    groups: dict[str, dict[str, Path]] = {}
    for name, path in pairs:
        reader = _by_suffix(path) or _by_magic(path)
        if reader is None or not reader.takes_names:
            kinds = ", ".join(reader.kind for reader in readers() if reader.takes_names)
            raise DataError(f"Sample data '{path}' is given for input '{name}'; only {kinds} can be.", hint=supported())
        _require_file(path)
        group = groups.setdefault(reader.kind, {})
        if name in group:
            raise DataError(f"Input '{name}' is given twice: '{group[name]}' and '{path}'.")
        group[name] = path
    by_kind = {reader.kind: reader for reader in readers()}
    return [
        (by_kind[kind], Files(f"Sample data {listed(map(str, named.values()))}", named=named))
        for kind, named in groups.items()
    ]


def _single(path: Path) -> tuple[Reader, Files]:
    """A file that was given itself."""
    _require_file(path)
    reader = _by_suffix(path) or _by_magic(path)
    subject = f"Sample data '{path}'"
    if reader is None:
        raise DataError(f"{subject} is of no kind that holds samples.", hint=supported())
    if not reader.takes_files:
        raise DataError(f"{subject} is a file of {reader.kind}; expected the folder.", hint=supported())
    return reader, Files(subject, (path,))


def _folder(folder: Path, notes: list[str]) -> tuple[Reader, Files]:
    subject = f"Sample data '{folder}'"
    try:
        entries = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda path: path.name)
    except OSError as error:
        raise DataError(f"{subject} cannot be read: {error.strerror or error}.") from error
    found = {reader.kind: [folder] for reader in readers() if reader.folder(folder)}
    others = []
    for path in entries:
        reader = _by_suffix(path) if path.is_file() else None
        if reader is not None and reader.takes_files:
            found.setdefault(reader.kind, []).append(path)
        else:
            others.append(path)
    reader, paths = _one_kind(subject, found, [path.name for path in others])
    if others and paths != [folder]:
        notes.append(f"{subject}: ignored {listed(path.name for path in others)}: no {reader.kind}.")
    return reader, Files(subject, tuple(paths))


def _glob(pattern: str, notes: list[str]) -> _Located:
    subject = f"Sample data '{pattern}'"
    # leaves out hidden files, unless the pattern itself starts with a dot
    paths = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  may be absolute
    if not paths:
        raise DataError(f"{subject} matches no file.")
    folders = [_folder(path, notes) for path in paths if path.is_dir()]
    found: dict[str, list[Path]] = {}
    for reader, files in folders:
        found.setdefault(reader.kind, []).extend(files.paths)
    loose: list[Path] = []
    others = []
    for path in paths:
        by_suffix = None if path.is_dir() else _by_suffix(path)
        if by_suffix is not None and by_suffix.takes_files:
            found.setdefault(by_suffix.kind, []).append(path)
            loose.append(path)
        elif not path.is_dir():
            others.append(path.name)
    reader, _ = _one_kind(subject, found, others)
    if others:
        notes.append(f"{subject}: ignored {listed(others)}: no {reader.kind}.")
    return [*([(reader, Files(subject, tuple(loose)))] if loose else []), *folders]


def _one_kind(subject: str, found: Mapping[str, list[Path]], others: Sequence[str]) -> tuple[Reader, list[Path]]:
    if not found:
        held = f": found {listed(others)}" if others else ""
        raise DataError(f"{subject} holds no samples{held}.", hint=supported())
    if len(found) > 1:
        raise DataError(
            f"{subject} holds {' and '.join(sorted(found))}; expected files of one kind.",
            hint="Give those that are meant, such as 'FOLDER/*.npz'.",
        )
    ((kind, paths),) = found.items()
    return next(reader for reader in readers() if reader.kind == kind), paths


def _by_suffix(path: Path) -> Reader | None:
    return next((reader for reader in readers() if path.name.lower().endswith(reader.suffix)), None)


def _by_magic(path: Path) -> Reader | None:
    try:
        with path.open("rb") as stream:
            start = stream.read(max(len(reader.magic) for reader in readers()))
    except OSError:
        return None
    return next((reader for reader in readers() if reader.magic and start.startswith(reader.magic)), None)


def _require_file(path: Path) -> None:
    """Devices and pipes are refused: data are read several times.

    Raises:
        DataError: If there is no regular file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise DataError(f"Sample data '{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if not stat.S_ISREG(mode):
        raise DataError(
            f"Sample data '{path}' is a device or a pipe; expected a file, which can be read several times."
        )
