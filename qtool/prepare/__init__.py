"""Loading a model and bringing it into the one form that the later stages read: exact float graph surgery only.

Public names are resolved on first use: ``qtool.prepare.fingerprint`` alone needs no graph library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.prepare.load import ModelSource as ModelSource
    from qtool.prepare.load import describe_source as describe_source
    from qtool.prepare.load import load_model as load_model
    from qtool.prepare.prepare import Prepared as Prepared
    from qtool.prepare.prepare import SourceNode as SourceNode

__all__ = ["ModelSource", "Prepared", "SourceNode", "describe_source", "load_model"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        load = name in ("ModelSource", "describe_source", "load_model")
        return getattr(import_module(f"qtool.prepare.{'load' if load else 'prepare'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
