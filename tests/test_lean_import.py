"""``qtool --help`` must answer at once: what it imports is bounded here, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "ml_dtypes",
    "sympy",
    "google.protobuf",
    "qtool._core",
    "qtool.kernels",
}
PROGRAM = """
import json, sys
{code}
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_after(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(run.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import qtool",
        "import qtool.cli.app",
        "from qtool.__main__ import main; assert main(['--help']) == 0",
        "from qtool.__main__ import main; assert main(['quantize', '--help']) == 0",
        "from qtool.__main__ import main; assert main(['calibrate', '--help']) == 0",
        "from qtool.__main__ import main; assert main(['bench', 'kernels', '--help']) == 0",
        "from qtool.__main__ import main; assert main(['--version']) == 0",
        "from qtool.__main__ import main; assert main(['quantise']) == 2",
    ],
)
def test_nothing_heavy_is_imported(code: str):
    loaded = modules_after(code)
    assert loaded & HEAVY == set()


def test_a_command_loads_no_other():
    loaded = modules_after("from qtool.__main__ import main; assert main(['info', '--help']) == 0")
    assert "qtool.cli.info" in loaded
    assert loaded & {f"qtool.cli.{name}" for name in ("quantize", "calibrate", "eval_", "stats", "bench")} == set()


def test_a_function_of_the_api_loads_no_other():
    loaded = modules_after("import qtool; qtool.calibrate")
    assert "qtool.api._calibrate" in loaded
    assert loaded & {"qtool.api._quantize", "qtool.api._evaluate", "qtool.api.results"} == set()


def test_import_of_the_package_loads_no_terminal():
    assert modules_after("import qtool") & {"typer", "rich", "importlib.metadata"} == set()


def test_the_check_sees_a_heavy_import():
    assert "numpy" in modules_after("import qtool.dtypes")
