"""Reading the arrays of an ``.npz`` archive a few rows at a time.

Members are inflated as they are read, never the whole archive; zipfile checks their checksum at their end.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

from qtool.calibrate.npy import MAGIC, ArrayFile, Member
from qtool.errors import DataError

_SEPARATOR = re.compile(r"[/\\]")
_DRIVE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_MAX_DEFLATE_RATIO = 1040  # deflate cannot do better than 1032:1
# One sample of this size that is next to nothing in the archive is not data.
_BOMB_BYTES = 256 << 20
_BOMB_RATIO = 500


class NpzFile(ArrayFile):
    """An open ``.npz`` archive whose members are read by rows.

    Args:
        path: The file.
        subject: Start of error messages; says that it is sample data by default.
        supported: Hint where the file is of another kind.
        verified: Names of members whose checksum was compared when the file was open before.
        keys: Names that are looked for. Others must not look like paths that lead out of the archive.

    Raises:
        DataError: If the file is missing, is no readable zip archive, or holds what numpy.savez does not write.
    """

    holder = "archive"

    def __init__(
        self,
        path: str | Path,
        *,
        subject: str | None = None,
        supported: str = "numpy.savez(path, INPUT_NAME=array) writes one.",
        verified: set[str] | None = None,
        keys: Collection[str] = (),
    ) -> None:
        super().__init__(subject or f"Sample data '{path}'", verified)
        self.path = Path(path)
        try:
            with self.path.open("rb") as stream:
                magic = stream.read(len(MAGIC))
        except OSError as error:
            raise DataError(f"{self.subject} cannot be read: {error.strerror or error}.") from error
        if magic == MAGIC:
            raise DataError(
                f"{self.subject} is a .npy file; expected an .npz file, which names the input of each array.",
                hint=supported,
            )
        if magic[:2] != b"PK":
            raise DataError(f"{self.subject} is not an .npz file (no zip archive).", hint=supported)
        with self._reported():
            self._zip = zipfile.ZipFile(self.path)
        try:
            self._infos = self._listed(keys)
        except BaseException:
            self._zip.close()
            raise

    def _listed(self, keys: Collection[str]) -> dict[str, zipfile.ZipInfo]:
        """Key -> member. Nothing is ever unpacked to where a name says; such names only tell of a forged archive."""
        infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = info.filename.removesuffix(".npy")
            if info.is_dir():
                raise DataError(
                    f"{self.subject} holds a folder, '{info.filename}'; expected arrays alone, as numpy.savez writes "
                    "them."
                )
            if name not in keys and (_DRIVE.match(name) or ".." in _SEPARATOR.split(name)):
                raise DataError(
                    f"{self.subject}: the name of the member '{info.filename}' is a path out of the archive; expected "
                    "names of inputs."
                )
            if not info.filename.endswith(".npy"):
                continue
            if name in infos:
                raise DataError(f"{self.subject} holds the array '{name}' twice; expected it once.")
            infos[name] = info
        return infos

    def close(self) -> None:
        """Close the archive and drop temporary files."""
        super().close()
        self._zip.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Keys of the arrays, in archive order."""
        return tuple(self._infos)

    @property
    def strangers(self) -> tuple[str, ...]:
        """File names of members that are no arrays, in archive order; they are never opened."""
        return tuple(info.filename for info in self._zip.infolist() if not info.filename.endswith(".npy"))

    def member(self, name: str) -> Member:
        """Shape and type of one array, from its header alone.

        Raises:
            DataError: If the array is damaged, pickled or structured, or claims more bytes than the archive holds.
        """
        info = self._infos[name]
        if info.flag_bits & 1:
            raise DataError(f"{self.subject}: array '{name}' is encrypted; expected a plain archive.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{self.subject}: array '{name}' uses zip compression method {info.compress_type}; "
                "expected stored or deflated (numpy.savez, numpy.savez_compressed)."
            )
        held = info.file_size
        with self._reported(name), self._zip.open(info) as stream:
            member = self._header(name, stream, held)
        ratio = held / max(info.compress_size, 1)
        if held > info.compress_size * _MAX_DEFLATE_RATIO + _MAX_DEFLATE_RATIO:
            raise DataError(
                f"{self.subject}: array '{name}' is damaged: its header describes {member.nbytes} bytes, "
                f"which the archive does not hold."
            )
        if member.row_bytes > _BOMB_BYTES and ratio > _BOMB_RATIO:
            raise DataError(
                f"{self.subject}: array '{name}' of shape {list(member.shape)} inflates to {ratio:.0f} times its size "
                f"in the archive, {member.row_bytes} bytes for each sample; that is refused as a zip bomb."
            )
        return member

    def _open(self, name: str) -> IO[bytes]:
        return self._zip.open(self._infos[name])
