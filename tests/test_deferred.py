"""A start of qtool loads no sympy and not all of onnx, and whoever needs it gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "'sympy.core' in sys.modules"
TO_TEXT = "from google.protobuf import text_format; print(text_format.MessageToString(onnx.ModelProto(ir_version=8)))"

FROM_JSON = (
    "read = onnx.serialization.registry.get('json').deserialize_proto; "
    "print(read(b'{\"irVersion\": 8}', onnx.ModelProto()).ir_version)"
)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (f"import sys, qtool, onnx_ir; print({LOADED})", "False"),
        (f"import sys, qtool.api, qtool.plan, qtool.emit, qtool.publish, qtool.evaluate; print({LOADED})", "False"),
        ("import sys, qtool, onnx_ir; print(onnx_ir.SymbolicDim('n') + 1)", "n + 1"),
        ("import sys, qtool, onnx_ir; print((onnx_ir.SymbolicDim('2*n') - onnx_ir.SymbolicDim('n')).simplify())", "n"),
        ("import sys, qtool, onnx_ir; import sympy; print(sympy.simplify('2*n - n'))", "n"),
        ("import sys, qtool, onnx_ir; from sympy import Max; print(Max(2, 3))", "3"),
        ("import sys, qtool, onnx_ir; import sympy.core.numbers as n; print(n.Integer(2))", "2"),
        ("import sys, qtool, sympy, onnx_ir; print(sympy.Max(2, 3), onnx_ir.SymbolicDim('n') * 2)", "3 2*n"),
        ("import sys, sympy, onnx_ir, qtool; print(onnx_ir.SymbolicDim('n') * 2)", "2*n"),
        ("import sys; before = list(sys.meta_path); import qtool, onnx_ir; print(sys.meta_path == before)", "True"),
        ("import sys, qtool, onnx_ir; print(onnx_ir.Shape(['n', 2]) == onnx_ir.Shape(['n', 2]))", "True"),
        ("import sys, qtool, onnx; print('argparse' in sys.modules, 'tarfile' in sys.modules)", "False False"),
        (f"import sys, qtool, onnx; print(onnx.compose.merge_graphs.__name__, {LOADED})", "merge_graphs False"),
        ("import qtool, onnx; print(onnx.utils.Extractor.__name__)", "Extractor"),
        ("import qtool, onnx; from onnx.compose import add_prefix; print(add_prefix.__name__)", "add_prefix"),
        (f"import qtool, onnx; {TO_TEXT}", "ir_version: 8"),
        (f"import onnx, qtool; {TO_TEXT}", "ir_version: 8"),
        (f"import qtool, onnx; {FROM_JSON}", "8"),
        ("import google.protobuf.json_format as j, qtool, onnx; print(j.MessageToDict(onnx.ModelProto()))", "{}"),
    ],
)
def test_a_start_does_without_and_users_find_it(program: str, expected: str) -> None:
    found = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (found.stdout.strip(), found.stderr) == (expected, "")
