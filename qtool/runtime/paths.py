"""Paths as the C++ libraries and command lines take them."""

from __future__ import annotations

from pathlib import Path


def is_utf8(path: str | Path) -> bool:
    """Whether onnx and onnxruntime can open a path: they take it as UTF-8 text, and file names may be any bytes."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_argument(path: str | Path) -> str:
    """A path as a word of a command line: one that begins with a hyphen would be taken for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)
