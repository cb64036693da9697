"""What a reader of sample files is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from qtool.calibrate.sources import Source
from qtool.runtime import TensorInfo


@dataclass(frozen=True)
class Files:
    """Files of one kind that belong together: one given file, what a folder or a glob holds, or pairs.

    Attributes:
        subject: Start of error messages, such as ``Sample data 'calib'``.
        paths: Files, or a folder that the reader claimed as a whole, sorted by name.
        named: Input name -> file, where the names were given.
    """

    subject: str
    paths: tuple[Path, ...] = ()
    named: Mapping[str, Path] = field(default_factory=dict)


Open: TypeAlias = Callable[[Files, Sequence[TensorInfo], Sequence[str]], Sequence[Source]]


@dataclass(frozen=True)
class Reader:
    """One kind of file that holds samples.

    Attributes:
        kind: What such files are called, in the plural.
        form: How the kind is described where the supported ones are listed.
        suffix: End of a file's name by which it is known, lower case.
        magic: First bytes of a file by which it is known if its name says nothing; empty if there are none.
        open: Sources of the files for a model's inputs and the labels that will be asked for. Checks everything that
            shapes and types can tell; raises DataError.
        folder: Whether a folder as a whole is of this kind.
        files: The files that are read, of a file or folder.
        together: Whether files that are given one by one belong together.
        takes_names: Whether files can be given as ``name=path``.
        takes_files: Whether a file alone can be given, or only a folder.
    """

    kind: str
    form: str
    suffix: str
    magic: bytes
    open: Open
    folder: Callable[[Path], bool] = lambda _: False
    files: Callable[[Path], Sequence[Path]] = lambda path: (path,)
    together: bool = False
    takes_names: bool = False
    takes_files: bool = True
