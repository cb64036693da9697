"""The Python API: what the commands do. No terminal code; inputs are never changed.

A command uses one or two of these functions, so each is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.api._calibrate import calibrate as calibrate
    from qtool.api._compare import compare_models as compare_models
    from qtool.api._convert import ConvertResult as ConvertResult
    from qtool.api._convert import convert as convert
    from qtool.api._diff import diff as diff
    from qtool.api._evaluate import evaluate as evaluate
    from qtool.api._inspect import inspect as inspect
    from qtool.api._prepare import prepare as prepare
    from qtool.api._quantize import quantize as quantize
    from qtool.api._stats import compare_methods as compare_methods
    from qtool.api._stats import diff_stats as diff_stats
    from qtool.api._stats import load_stats as load_stats
    from qtool.api._stats import matching as matching
    from qtool.api._stats import merge_stats as merge_stats
    from qtool.api.results import Inspection as Inspection
    from qtool.api.results import PrepareResult as PrepareResult
    from qtool.api.results import QuantizeResult as QuantizeResult
    from qtool.api.settings import ModelLike as ModelLike
    from qtool.api.settings import Progress as Progress
    from qtool.api.settings import resolve_config as resolve_config
    from qtool.runtime.custom_ops import register_custom_ops as register_custom_ops

__all__ = [
    "ConvertResult",
    "Inspection",
    "ModelLike",
    "PrepareResult",
    "Progress",
    "QuantizeResult",
    "calibrate",
    "compare_methods",
    "compare_models",
    "convert",
    "diff",
    "diff_stats",
    "evaluate",
    "inspect",
    "load_stats",
    "matching",
    "merge_stats",
    "prepare",
    "quantize",
    "register_custom_ops",
    "resolve_config",
]

_HOMES = {
    "ConvertResult": "qtool.api._convert",
    "Inspection": "qtool.api.results",
    "ModelLike": "qtool.api.settings",
    "PrepareResult": "qtool.api.results",
    "Progress": "qtool.api.settings",
    "QuantizeResult": "qtool.api.results",
    "calibrate": "qtool.api._calibrate",
    "compare_methods": "qtool.api._stats",
    "compare_models": "qtool.api._compare",
    "convert": "qtool.api._convert",
    "diff": "qtool.api._diff",
    "diff_stats": "qtool.api._stats",
    "evaluate": "qtool.api._evaluate",
    "inspect": "qtool.api._inspect",
    "load_stats": "qtool.api._stats",
    "matching": "qtool.api._stats",
    "merge_stats": "qtool.api._stats",
    "prepare": "qtool.api._prepare",
    "quantize": "qtool.api._quantize",
    "register_custom_ops": "qtool.runtime.custom_ops",
    "resolve_config": "qtool.api.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qtool.api' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
