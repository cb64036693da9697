"""The Python API: what the commands do. No terminal code; inputs are never changed."""

from qtool.api._calibrate import calibrate
from qtool.api._compare import compare_models
from qtool.api._convert import ConvertResult, convert
from qtool.api._diff import diff
from qtool.api._evaluate import evaluate
from qtool.api._inspect import inspect
from qtool.api._prepare import prepare
from qtool.api._quantize import quantize
from qtool.api._stats import compare_methods, diff_stats, load_stats, matching, merge_stats
from qtool.api.results import Inspection, PrepareResult, QuantizeResult
from qtool.api.settings import ModelLike, Progress, resolve_config
from qtool.runtime.custom_ops import register_custom_ops

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
