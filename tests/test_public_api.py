"""The names that qtool promises: each one there, documented, and where it says it is."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import types
import typing

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool.api import QuantizeResult
from qtool.calibrate.samples import Data
from qtool.calibrate.saved import SavedStatistics
from qtool.calibrate.statistics import Statistics
from qtool.evaluate.candidates import Comparison

PROMISED = {
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
}


def test_all_is_what_is_promised():
    assert set(qtool.__all__) == PROMISED
    assert set(dir(qtool)) >= PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED - {"__version__"}))
def test_a_public_name_is_documented(name: str):
    value = getattr(qtool, name)
    assert callable(value)
    assert (value.__doc__ or "").strip()
    assert value.__module__.startswith("qtool.")


@pytest.mark.parametrize("name", sorted(PROMISED - {"__version__", "QtoolError", "QuantConfig"}))
def test_a_public_function_says_what_it_takes_and_gives(name: str):
    function = getattr(qtool, name)
    told = inspect.signature(function)
    assert told.return_annotation is not told.empty
    assert all(parameter.annotation is not told.empty for parameter in told.parameters.values())
    assert "Raises:" in function.__doc__
    assert "Returns:" in function.__doc__ or told.return_annotation == "None"
    if len(told.parameters) > 2:
        missing = [p for p in told.parameters if f"\n        {p}: " not in function.__doc__]
        assert not missing


@pytest.mark.parametrize("name", sorted(PROMISED - {"__version__"}))
def test_types_of_a_public_name_can_be_asked_for(name: str):
    """As documentation and validation do: also of types whose modules nobody has imported."""
    value = getattr(qtool, name)
    for asked in [value, *(f for f in vars(value).values() if isinstance(f, types.FunctionType))]:
        hints = typing.get_type_hints(asked)
        assert not {hint for hint in hints.values() if isinstance(hint, (str, typing.ForwardRef))}
        if isinstance(asked, types.FunctionType):
            assert hints.keys() == asked.__annotations__.keys()


def test_types_are_those_that_type_checkers_see():
    hints = typing.get_type_hints(qtool.quantize)
    assert set(typing.get_args(hints["model"])) == {str, os.PathLike[str], onnx.ModelProto, ir.Model}
    assert hints["calib"] == Data | None
    assert hints["return"] is QuantizeResult
    hints = typing.get_type_hints(qtool.compare_models)
    model = typing.get_args(hints["candidates"])[0]
    assert set(typing.get_args(model)) == {str, os.PathLike[str], onnx.ModelProto, ir.Model, bytes}
    assert hints["return"] is Comparison
    assert typing.get_type_hints(qtool.calibrate)["return"] is Statistics
    assert typing.get_type_hints(qtool.load_stats)["return"] is SavedStatistics


def test_they_are_imported_when_they_are_asked_for():
    code = (
        "import sys, typing, qtool\n"
        "asked = qtool.evaluate\n"
        "assert 'onnx_ir' not in sys.modules and 'qtool.evaluate.report' not in sys.modules\n"
        "assert typing.get_type_hints(asked)['return'] is sys.modules['qtool.evaluate.report'].Report\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: qtool.quantize("m", stats=Statistics({}, 0)), "'stats' is of type Statistics; expected the path of a"),
        (lambda: qtool.quantize("m", {}, samples=2.5), "'samples' is 2.5; expected a whole number."),
        (lambda: qtool.quantize("m", {}, shuffle=True), "'shuffle' is True; expected a whole number."),
        (lambda: qtool.quantize("m", {}, batch="auto"), "'batch' is 'auto'; expected a whole number."),
        (lambda: qtool.quantize("m", {}, max_memory="2G"), "'max_memory' is '2G'; expected a whole number of bytes."),
        (lambda: qtool.quantize("m", {}, on_nan="stop"), "'on_nan' is 'stop'; expected raise or skip."),
        (lambda: qtool.quantize("m", {}, output=3), "'output' is 3; expected the path of a file."),
        (lambda: qtool.calibrate("m", {}, tensors="y"), "'tensors' is 'y'; expected a list of names."),
        (lambda: qtool.evaluate("m", "q", {}, metrics="sqnr"), "'metrics' is 'sqnr'; expected a list of names."),
        (lambda: qtool.evaluate("m", "q", {}, outputs="y"), "'outputs' is 'y'; expected a list of names."),
        (lambda: qtool.compare_models("m", "q", {}), "'candidates' is 'q'; expected a list of models."),
        (lambda: qtool.prepare("m", opset="17"), "'opset' is '17'; expected a whole number."),
        (lambda: qtool.convert("m", "qdq", samples=[3]), "'samples' is of type list; expected a whole number."),
    ],
)
def test_an_argument_of_a_wrong_type_is_an_error_of_ours(call, said: str):
    with pytest.raises(qtool.QtoolError) as caught:
        call()
    assert caught.value.message.startswith(f"Argument {said}")


def test_numbers_of_numpy_are_numbers():
    with pytest.raises(qtool.QtoolError, match=r"'gone\.onnx' does not exist"):
        qtool.quantize("gone.onnx", {}, samples=np.int64(3), output=None)


def test_version():
    assert isinstance(qtool.__version__, str)
    assert qtool.__version__[0].isdigit()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = qtool.quantise


@pytest.mark.parametrize("name", ["calibrate", "convert", "evaluate", "prepare"])
def test_a_stage_package_does_not_hide_the_function_of_its_name(name: str):
    stage = importlib.import_module(f"qtool.{name}")
    assert isinstance(stage, types.ModuleType)
    assert isinstance(getattr(qtool, name), types.FunctionType)


def test_functions_stay_functions_in_a_fresh_process():
    code = (
        "import qtool.calibrate, qtool.convert, qtool.evaluate, qtool\n"
        "assert callable(qtool.calibrate) and callable(qtool.convert) and callable(qtool.evaluate)\n"
        "from qtool import calibrate, evaluate\n"
        "assert callable(calibrate) and callable(evaluate)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
