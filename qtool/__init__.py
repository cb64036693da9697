"""qtool: quantize ONNX models, verify the result, and say what it cost.

    import qtool

    result = qtool.quantize("model.onnx", "calib.npz")
    report = qtool.evaluate("model.onnx", result.model_path, "eval.npz", labels="labels")

Public names are resolved on first use, so that ``import qtool`` costs nothing and ``qtool --help`` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qtool.deferred import defer_imports
from qtool.version import package_version

if TYPE_CHECKING:
    from qtool.api import calibrate as calibrate
    from qtool.api import compare_methods as compare_methods
    from qtool.api import compare_models as compare_models
    from qtool.api import convert as convert
    from qtool.api import diff as diff
    from qtool.api import diff_stats as diff_stats
    from qtool.api import evaluate as evaluate
    from qtool.api import inspect as inspect
    from qtool.api import load_stats as load_stats
    from qtool.api import merge_stats as merge_stats
    from qtool.api import prepare as prepare
    from qtool.api import quantize as quantize
    from qtool.api import register_custom_ops as register_custom_ops
    from qtool.config import QuantConfig as QuantConfig
    from qtool.errors import QtoolError as QtoolError

    __version__: str

__all__ = [
    "QtoolError",
    "QuantConfig",
    "__version__",
    "calibrate",
    "compare_methods",
    "compare_models",
    "convert",
    "diff",
    "diff_stats",
    "evaluate",
    "inspect",
    "load_stats",
    "merge_stats",
    "prepare",
    "quantize",
    "register_custom_ops",
]

_HOMES = {
    "QtoolError": "qtool.errors",
    "QuantConfig": "qtool.config",
    "calibrate": "qtool.api",
    "compare_methods": "qtool.api",
    "compare_models": "qtool.api",
    "convert": "qtool.api",
    "diff": "qtool.api",
    "diff_stats": "qtool.api",
    "evaluate": "qtool.api",
    "inspect": "qtool.api",
    "load_stats": "qtool.api",
    "merge_stats": "qtool.api",
    "prepare": "qtool.api",
    "quantize": "qtool.api",
    "register_custom_ops": "qtool.api",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return package_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'qtool' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The type of this module: public functions win over the stage packages of the same name.

    The first import of ``qtool.calibrate.samples`` makes Python bind the package ``qtool.calibrate`` here, after which
    ``qtool.calibrate(...)`` would call a module. ``from qtool.calibrate.samples import ...`` does not need the binding.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
defer_imports()
