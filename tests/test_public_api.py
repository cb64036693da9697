"""The names that qtool promises: each one there, documented, and where it says it is."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types

import pytest

import qtool

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
