"""Arguments of the public functions whose type is wrong: said at once and in one line, before they are used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, ParamSpec, TypeVar

from qtool.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = frozenset(
    ("samples", "shuffle", "batch", "num_threads", "random_calib", "max_memory", "checkpoint", "layer_samples", "opset")
)
_LISTS = {"metrics": "names", "outputs": "names", "tensors": "names", "candidates": "models"}
_FILES = frozenset(("stats", "output"))
_ON_NAN = ("raise", "skip")


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses arguments of a wrong type.

    Whole numbers must be ones (of Python or NumPy), lists no single string or path, files a string or a path. None is
    "not given" for all of them.
    """
    shape = signature(function)

    @wraps(function)
    def checked_function(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in shape.bind(*args, **kwargs).arguments.items():
            expected = None if value is None else _fault(name, value)
            if expected is not None:
                hint = "qtool.calibrate(model, data, output=FILE) writes one." if name == "stats" else None
                raise ConfigError(f"Argument '{name}' is {_shown(value)}; expected {expected}.", hint=hint)
        return function(*args, **kwargs)

    return checked_function


def _fault(name: str, value: Any) -> str | None:
    """What was expected, if the value is something else."""
    if name in _NUMBERS and not _is_whole(value):
        return "a whole number of bytes" if name == "max_memory" else "a whole number"
    if name in _LISTS and isinstance(value, str | os.PathLike):
        return f"a list of {_LISTS[name]}"
    if name in _FILES and not isinstance(value, str | os.PathLike):
        return "the path of a file"
    if name == "on_nan" and value not in _ON_NAN:
        return " or ".join(_ON_NAN)
    return None


def _is_whole(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A short value as it is, of a large object the type."""
    return repr(value) if isinstance(value, str | int | float | os.PathLike) else f"of type {type(value).__name__}"
