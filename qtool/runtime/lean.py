"""Sessions that give memory back as soon as a tensor is dead, instead of keeping it for the next run.

onnxruntime's arena keeps what it ever took and grows by whole chunks: it is fast, and its size says little about what
is needed. Where a process has promised to stay below a limit, memory goes back to the system at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE_BYTES = 1 << 18  # blocks from this size on are mapped one by one, and unmapped when they are freed
_lean: ContextVar[bool] = ContextVar("lean", default=False)


def is_lean() -> bool:
    """Whether new sessions are to go without an arena."""
    return _lean.get()


@contextmanager
def lean_memory() -> Iterator[None]:
    """Sessions that are made in this block have no arena, and glibc gives freed memory back from now on."""
    allocator = _glibc()
    if allocator is not None:
        for parameter, value in (
            (_M_MMAP_THRESHOLD, _LARGE_BYTES),
            (_M_TRIM_THRESHOLD, _LARGE_BYTES),
            (_M_ARENA_MAX, 2),
        ):
            allocator.mallopt(parameter, value)
    token = _lean.set(True)
    try:
        yield
    finally:
        _lean.reset(token)


def release(*, cycles: bool = True) -> None:
    """Give back what is free: holes between blocks that are in use included.

    Args:
        cycles: Whether to look for objects that only refer to each other, which takes a twentieth of a second;
            sessions and protos are no such objects.
    """
    import gc

    if cycles:
        gc.collect()
    allocator = _glibc()
    if allocator is not None:
        allocator.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc; others have no such functions, and need none: they give memory back."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
