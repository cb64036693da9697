"""The Python API: calibrate, quantize, evaluate, inspect. No terminal code; inputs are never changed."""

from qtool.api._calibrate import calibrate
from qtool.api._evaluate import evaluate
from qtool.api._inspect import inspect
from qtool.api._quantize import quantize
from qtool.api.results import Inspection, QuantizeResult
from qtool.api.settings import ModelLike, Progress, resolve_config

__all__ = [
    "Inspection",
    "ModelLike",
    "Progress",
    "QuantizeResult",
    "calibrate",
    "evaluate",
    "inspect",
    "quantize",
    "resolve_config",
]
