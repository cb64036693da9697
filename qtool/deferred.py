"""Imports that wait until they are used: sympy, behind onnx_ir.

onnx_ir imports sympy for arithmetic with symbolic dimensions. That is half of the time, and a quarter of the memory,
of a start of qtool, which compares such dimensions but never calculates with them. Both sympy and the module of
onnx_ir that uses it are loaded with ``importlib.util.LazyLoader``: whoever does calculate gets the whole of sympy then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_IMPORTER = "onnx_ir"
_WAITING = ("sympy", "onnx_ir._symbolic_shapes")


class _OnnxIrFinder(MetaPathFinder):
    """Stands before the other finders until onnx_ir has imported what shall wait, then goes.

    A program that imports sympy itself, before or after, gets it as ever.
    """

    def __init__(self) -> None:
        self._importing = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _IMPORTER:
            self._importing = True
        if not self._importing or fullname not in _WAITING:
            return None
        if fullname == _WAITING[-1]:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_sympy() -> None:
    """Let onnx_ir start without sympy; nothing happens if it is imported already."""
    if _IMPORTER not in sys.modules:
        sys.meta_path.insert(0, _OnnxIrFinder())
