"""Paths as the C++ libraries take them."""

from __future__ import annotations

from pathlib import Path


def is_utf8(path: str | Path) -> bool:
    """Whether onnx and onnxruntime can open a path: they take it as UTF-8 text, and file names may be any bytes."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
