"""Reading arrays in NumPy's format a few rows at a time.

``numpy.load`` reads a whole array into memory, or maps it, which kills the process if the file shrinks meanwhile. Here
an array is a stream: its header is parsed once, then rows are read in order, so that memory does not grow with the
number of samples. Nothing of the file is trusted: a header that claims more than there is is refused before anything
is allocated, pickles are never loaded, and whatever zipfile, zlib or NumPy raise on damaged bytes becomes one
``DataError``.
"""

from __future__ import annotations

import io
import tempfile
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from qtool.calibrate.selection import Range, pieces
from qtool.errors import DataError

MAGIC = npy_format.MAGIC_PREFIX
_CHUNK = 1 << 20  # zipfile copies what it returns; pieces of this size stay in cache
_TRANSPOSE_BYTES = 8 << 20  # memory for turning a Fortran-ordered array around
_MAX_COLUMN_BYTES = 64 << 20  # one element of every row of such an array
_MAX_HEADER_BYTES = 1 << 16
_MAX_ROW_BYTES = 2 << 30  # one sample, or labels as a whole; a protobuf message cannot be larger either
# What zipfile, zlib and numpy.lib.format raise on damaged files (zipfile.BadZipFile is an Exception of its own).
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    LookupError,
    TypeError,
    SyntaxError,
)
# UnicodeDecodeError is a ValueError, tokenize.TokenError only an Exception: headers catch Exception.


@dataclass(frozen=True)
class Member:
    """One array of an archive.

    Attributes:
        name: Key, without ``.npy``.
        shape: Shape of the whole array.
        dtype: Element type as stored, possibly of foreign byte order.
        fortran_order: Whether the first axis is the fastest one in the file.
        offset: Bytes before the data inside the member.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the leading axis."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return prod(self.shape) * self.dtype.itemsize


class ArrayFile(ABC):
    """Arrays that are read by rows. Use as a context manager.

    Args:
        subject: Start of error messages.
        verified: Names of arrays that were read to their end when the file was open before, and found to be whole.
    """

    holder = "file"

    def __init__(self, subject: str, verified: set[str] | None = None) -> None:
        self.subject = subject
        self._verified = set() if verified is None else verified
        self._spools: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open and drop temporary files."""
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Keys of the arrays, in the order of the file."""

    @abstractmethod
    def member(self, name: str) -> Member:
        """Shape and type of one array, from its header alone.

        Raises:
            DataError: If the array is damaged, pickled or structured, or claims more bytes than there are.
        """

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]:
        """The bytes of an array, header and all."""

    def _where(self, name: str) -> str:
        return f"{self.subject}: array '{name}'"

    def _skip(self, stream: IO[bytes], nbytes: int, name: str) -> None:
        """Read past bytes."""
        with self._reported(name):
            while nbytes:
                data = stream.read(min(_CHUNK, nbytes))
                if not data:
                    raise EOFError("no more bytes")
                nbytes -= len(data)

    def rows(
        self, member: Member, size: int, ranges: Sequence[Range] | None = None
    ) -> Generator[npt.NDArray[Any], None, None]:
        """Read an array front to back.

        Args:
            member: What :meth:`member` returned for it; its rank is at least 1.
            size: Rows of one piece; the last one of a range may be shorter.
            ranges: Which rows, ascending (first, one past the last); ``None``: all. What lies before and between them
                is read and dropped, and so is the rest of the member, once, for its checksum.

        Yields:
            Arrays of shape ``(size, *member.shape[1:])``, native byte order, freshly allocated.

        Raises:
            DataError: If the stored bytes end early or do not match their checksum.
        """
        count = member.shape[0]
        ranges = [(0, count)] if ranges is None else ranges
        wanted = pieces(ranges, size)
        if member.row_bytes == 0:
            for start, stop in wanted:
                yield np.empty((stop - start, *member.shape[1:]), member.dtype.newbyteorder("="))
            return
        stream: IO[bytes]
        transposed = member.fortran_order and len(member.shape) > 1
        stream = self._c_ordered(member) if transposed else self._open_data(member)
        position = 0
        try:
            for start, stop in wanted:
                if transposed:
                    stream.seek(start * member.row_bytes)
                else:
                    self._skip(stream, (start - position) * member.row_bytes, member.name)
                piece = self._empty((stop - start, *member.shape[1:]), member)
                self._fill(stream, piece, member.name)
                position = stop
                if stop == ranges[-1][1] and not transposed and (stop == count or member.name not in self._verified):
                    self._skip(stream, (count - stop) * member.row_bytes, member.name)
                    self._expect_end(stream, member.name)
                    self._verified.add(member.name)
                    position = count
                if transposed:  # rows of the spool are themselves in Fortran order
                    piece = np.ascontiguousarray(
                        piece.reshape(piece.shape[0], *member.shape[:0:-1]).transpose(0, *range(piece.ndim - 1, 0, -1))
                    )
                yield piece.astype(piece.dtype.newbyteorder("="), copy=False)
        finally:
            if not transposed:
                stream.close()

    def read(self, member: Member) -> npt.NDArray[Any]:
        """The whole array in memory.

        Raises:
            DataError: As :meth:`rows`.
        """
        if member.nbytes > _MAX_ROW_BYTES:
            raise DataError(
                f"{self._where(member.name)} of shape {list(member.shape)} takes {member.nbytes} bytes; "
                f"expected at most {_MAX_ROW_BYTES}."
            )
        if member.shape and member.shape[0] == 0:
            return np.empty(member.shape, member.dtype.newbyteorder("="))
        if member.shape:
            return next(self.rows(member, member.shape[0]))
        scalar = np.empty(1, member.dtype)
        with self._open_data(member) as stream:
            self._fill(stream, scalar, member.name)
            self._expect_end(stream, member.name)
        return scalar.reshape(()).astype(member.dtype.newbyteorder("="), copy=False)

    def _header(self, name: str, stream: IO[bytes], held: int) -> Member:
        readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
        head = io.BytesIO(stream.read(_MAX_HEADER_BYTES))  # NumPy reads what the header's length field says, up to 4 GB
        try:
            version = npy_format.read_magic(head)
            with warnings.catch_warnings():  # NumPy warns about headers that Python 2 wrote, and reads them
                warnings.simplefilter("ignore", UserWarning)
                shape, fortran_order, dtype = readers[version](head)
            if any(size < 0 for size in shape):
                raise ValueError("negative size")
        except Exception as error:  # a damaged header raises whatever its bytes happen to parse to
            raise DataError(f"{self._where(name)} has a damaged header.") from error
        member = Member(name, tuple(shape), dtype, fortran_order, head.tell())
        if dtype.hasobject:
            raise DataError(
                f"{self._where(name)} holds Python objects (a pickle), which is never loaded.",
                hint="Save numeric arrays: samples of different sizes are given as an iterable of mappings.",
            )
        if dtype.names is not None or dtype.subdtype is not None:
            raise DataError(f"{self._where(name)} is a structured array; expected plain numbers.")
        if member.offset + member.nbytes != held:
            raise DataError(
                f"{self._where(name)} is damaged: its header describes {member.nbytes} bytes, which the {self.holder} "
                "does not hold."
            )
        if member.row_bytes > _MAX_ROW_BYTES:
            raise DataError(
                f"{self._where(name)} of shape {list(member.shape)} takes {member.row_bytes} bytes for each sample; "
                f"expected at most {_MAX_ROW_BYTES}."
            )
        if fortran_order and len(shape) > 1 and shape[0] * dtype.itemsize > _MAX_COLUMN_BYTES:
            raise DataError(
                f"{self._where(name)} is in Fortran order, in which {shape[0]} samples are interleaved.",
                hint="Save it in C order: numpy.ascontiguousarray(array).",
            )
        return member

    def _open_data(self, member: Member) -> IO[bytes]:
        with self._reported(member.name):
            stream = self._open(member.name)
            stream.read(member.offset)
            return stream

    def _empty(self, shape: tuple[int, ...], member: Member) -> npt.NDArray[Any]:
        try:
            return np.empty(shape, member.dtype)
        except MemoryError as error:
            raise DataError(
                f"{self._where(member.name)} does not fit into memory: {shape[0]} samples take "
                f"{shape[0] * member.row_bytes} bytes."
            ) from error

    def _fill(self, stream: IO[bytes], out: npt.NDArray[Any], name: str) -> None:
        """Read exactly ``out.nbytes`` bytes into a C-contiguous array."""
        target = out.reshape(-1).view(np.uint8).data
        done = 0
        with self._reported(name):
            while done < len(target):
                data = stream.read(min(_CHUNK, len(target) - done))
                if not data:
                    raise EOFError("no more bytes")
                target[done : done + len(data)] = data
                done += len(data)

    def _expect_end(self, stream: IO[bytes], name: str) -> None:
        """Read on after the last row: zipfile compares the checksum only when it meets the end."""
        with self._reported(name):
            if stream.read(1):
                raise ValueError("more bytes than the header says")

    def _c_ordered(self, member: Member) -> IO[bytes]:
        """A temporary file in which each row is contiguous (and in Fortran order inside), positioned at its start.

        In a Fortran-ordered member the rows are interleaved element by element: it is the C-ordered matrix
        (elements of a row, rows). It is read in horizontal strips; each strip gives every row a few more elements.
        """
        if member.name not in self._spools:
            count, itemsize = member.shape[0], member.dtype.itemsize
            elements = member.row_bytes // itemsize
            strip = max(1, _TRANSPOSE_BYTES // (count * itemsize))
            spool = tempfile.SpooledTemporaryFile(max_size=_TRANSPOSE_BYTES)  # noqa: SIM115  closed by close()
            self._spools[member.name] = spool
            with self._open_data(member) as stream, self._reported(member.name):  # the disk may be full
                for start in range(0, elements, strip):
                    block = np.empty((min(strip, elements - start), count), member.dtype)
                    self._fill(stream, block, member.name)
                    for row, values in enumerate(np.ascontiguousarray(block.T)):
                        spool.seek(row * member.row_bytes + start * itemsize)
                        spool.write(values.tobytes())
                self._expect_end(stream, member.name)
        spooled = self._spools[member.name]
        spooled.seek(0)
        return spooled

    @contextmanager
    def _reported(self, name: str | None = None) -> Iterator[None]:
        where = self.subject if name is None else self._where(name)
        try:
            yield
        except OSError as error:
            raise DataError(f"{where} cannot be read: {error.strerror or error}.") from error
        except MemoryError as error:
            raise DataError(f"{where} does not fit into memory.") from error
        except _BROKEN as error:
            raise DataError(f"{where} is damaged or truncated: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text[:160] or type(error).__name__


class NpyFiles(ArrayFile):
    """``.npy`` files, each under a name of its own.

    Args:
        paths: Name -> file.
        subject: Start of error messages that concern all of them.
    """

    def __init__(self, paths: Mapping[str, Path], subject: str) -> None:
        super().__init__(subject)
        self._paths = dict(paths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names, as they were given."""
        return tuple(self._paths)

    def member(self, name: str) -> Member:
        """See :meth:`ArrayFile.member`."""
        with self._reported(name), self._paths[name].open("rb") as stream:
            held = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            if stream.read(len(MAGIC)) != MAGIC:
                raise DataError(f"{self._where(name)} is not a .npy file.", hint="numpy.save(path, array) writes one.")
            stream.seek(0)
            return self._header(name, stream, held)

    def _open(self, name: str) -> IO[bytes]:
        return self._paths[name].open("rb")

    def _where(self, name: str) -> str:
        return f"Sample data '{self._paths[name]}'"

    def _skip(self, stream: IO[bytes], nbytes: int, name: str) -> None:
        """No checksum is lost by a seek; rows that are missing are missed when they are read."""
        with self._reported(name):
            stream.seek(nbytes, io.SEEK_CUR)
