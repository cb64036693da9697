"""Engines that run ONNX models, behind one small protocol.

To add an engine, write ``runtime/<name>.py`` with a class that fulfils :class:`Session` and add it to ``_ENGINES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from qtool.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

__all__ = ["Session", "TensorInfo", "create_session", "require_engine"]


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type and declared shape of a model's input or output.

    Attributes:
        name: Value name in the graph.
        dtype: numpy dtype (``ml_dtypes`` where numpy has none; ``str_`` for string tensors).
        shape: One entry per dimension: a size, a symbol, or ``None`` where the model says nothing.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


class Session(Protocol):
    """A loaded model."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Required inputs in graph order; initializers that are also listed as inputs are not among them."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Outputs that are arrays, in graph order."""

    @property
    def opaque_outputs(self) -> Mapping[str, str]:
        """The other outputs (sequences, optionals, types that numpy lacks): name -> type. They cannot be asked for."""

    def run(
        self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model once.

        Args:
            feeds: One array per input, of the declared dtype.
            outputs: Names of the wanted outputs; all arrays by default.

        Returns:
            Output name -> array, in the order asked for.
        """


def _ort(model: Any, **options: Any) -> Session:
    from qtool.runtime.ort import OrtSession

    return OrtSession(model, **options)


def _spec(model: Any, **options: Any) -> Session:
    from qtool.runtime.spec.session import SpecSession

    return SpecSession(model, **options)


def _spec_avx2(model: Any, **options: Any) -> Session:
    from qtool.runtime.spec.saturating import Saturating
    from qtool.runtime.spec.session import SpecSession

    return SpecSession(model, saturating=Saturating(), **options)


_ENGINES: dict[str, Callable[..., Session]] = {"ort": _ort, "spec": _spec, "spec-avx2": _spec_avx2}


def require_engine(name: str) -> None:
    """Check the name of an engine.

    Raises:
        ConfigError: If there is no such engine; the message lists those that there are.
    """
    if name not in _ENGINES:
        raise ConfigError(f"Unknown engine '{name}'; expected one of {', '.join(_ENGINES)}.")


def create_session(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    engine: str = "ort",
    optimize: bool = True,
    num_threads: int | None = None,
    base_dir: str | Path | None = None,
    shared_memory: bool = False,
) -> Session:
    """Load a model into an engine.

    Args:
        model: A file, serialized bytes, or a proto.
        engine: Name of the engine: ``ort`` is onnxruntime on the CPU, ``spec`` follows the ONNX documents for every
            element type, and is slower; ``spec-avx2`` is the same with the saturating products of a processor without
            VNNI.
        optimize: Whether the engine may rewrite the graph before it runs it.
        num_threads: Threads of one operator; the engine's own choice by default.
        base_dir: Folder that external data of a proto or of bytes is relative to.
        shared_memory: Whether the session takes its memory from a pool that it shares with others, where the engine
            has one: many small sessions that run in turn then need that of the largest.

    Raises:
        ConfigError: For an unknown engine.
        ModelError: If the engine refuses the model.
    """
    require_engine(engine)
    return _ENGINES[engine](
        model, optimize=optimize, num_threads=num_threads, base_dir=base_dir, shared_memory=shared_memory
    )
