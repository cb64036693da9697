"""Libraries of operators that onnxruntime does not have itself; they count for every session of the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.errors import ConfigError

if TYPE_CHECKING:
    import onnxruntime

HINT = "Give the library that holds the operator: --custom-ops LIB, in Python qtool.register_custom_ops(LIB)."
_libraries: list[str] = []


def register_custom_ops(library: str | os.PathLike[str]) -> None:
    """Make the custom operators of a shared library known to onnxruntime, for all later calls of this process.

    Nodes of such operators stay in float; what stands around them is quantized.

    Args:
        library: A shared library that exports ``RegisterCustomOps``, as onnxruntime's documents describe it.

    Raises:
        ConfigError: If it does not exist, or onnxruntime cannot load it.
    """
    import onnxruntime as ort

    path = str(Path(library).absolute())
    if path in _libraries:
        return
    if not Path(path).is_file():
        raise ConfigError(f"Library of custom operators '{library}' does not exist.")
    try:
        ort.SessionOptions().register_custom_ops_library(path)
    except Exception as error:  # ORT's exceptions share no base class but this
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"Library of custom operators '{library}' cannot be loaded: {reason}") from error
    _libraries.append(path)


def custom_op_libraries() -> tuple[str, ...]:
    """Absolute paths of what is registered."""
    return tuple(_libraries)


def add_custom_ops(options: onnxruntime.SessionOptions) -> None:
    """Let a session know the operators of all registered libraries."""
    for path in _libraries:
        options.register_custom_ops_library(path)
