"""Imports that wait until they are used: what onnx_ir and onnx import for functions that qtool does not call.

onnx_ir imports sympy for arithmetic with symbolic dimensions. That is half of the time, and a quarter of the memory,
of a start of qtool, which compares such dimensions but never calculates with them. onnx imports what reads and writes
JSON and text, merges models and generates its own source. All that is loaded with ``importlib.util.LazyLoader``:
whoever does call it gets the whole of it then.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, ForwardRef

# Package -> what waits of all that it imports; it imports the last of them last.
_WAITING = {
    "onnx_ir": ("sympy", "onnx_ir._symbolic_shapes"),
    "onnx": (
        "google.protobuf.internal.python_message",  # the slow twin of the compiled one
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.utils",
    ),
}


class _Finder:
    """Stands before the other finders until a package has imported what shall wait, then goes.

    A program that imports the same itself, before or after, gets it as ever.

    Args:
        package: A key of the table above.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._importing = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is, if it is one that waits."""
        if fullname == self._package:
            self._importing = True
        waiting = _WAITING[self._package]
        if not self._importing or fullname not in waiting:
            return None
        if fullname == waiting[-1]:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Let onnx and onnx_ir start without what they do not need; nothing happens for one that is imported already."""
    for package in _WAITING:
        if package not in sys.modules:
            sys.meta_path.insert(0, _Finder(package))


def later(module: str, name: str) -> Any:
    """A type for annotations, from a module that is imported when somebody asks ``typing.get_type_hints`` for it.

    Type checkers get a plain import instead, below ``if TYPE_CHECKING:``; this is for its ``else:``.
    """
    return ForwardRef(f"__import__({module!r}, fromlist=['']).{name}")
