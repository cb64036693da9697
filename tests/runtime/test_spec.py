"""The spec engine: whole models with exact semantics."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as shipped
import pytest
from onnx import helper, numpy_helper, parser

from qtool.runtime import create_session
from qtool.runtime.spec.operators import OPERATORS
from tests.kernels.elementwise import assert_same_bits

SPEC = {"engine": "spec"}
RELU = "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Relu(x) z = Neg(x) }"


def model(text: str, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> {text}')


def built(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, int],
    constants: dict[str, Any],
    *,
    opset: int,
    ir_version: int,
) -> onnx.ModelProto:
    """A model of any element types; constants as arrays, or as TensorProtos."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


# ---------------------------------------------------------------------------------------- the cases that onnx ships


PAGES = {"If": "if_"}  # a keyword of Python


def _collect() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op_type in [*OPERATORS, "Loop", "If"]:
            importlib.import_module(f"{shipped.__name__}.{PAGES.get(op_type, op_type.lower())}")
    wanted = {*OPERATORS, "Loop", "If"}
    cases = {c.name: c for c in shipped._NodeTestCases if any(n.op_type in wanted for n in c.model.graph.node)}
    # sequences and optionals are no arrays, and not what a session takes or gives
    return {
        name: case
        for name, case in cases.items()
        if all(v.type.HasField("tensor_type") for v in (*case.model.graph.input, *case.model.graph.output))
    }


CASES = _collect()
QUANTIZED = {name for name in OPERATORS if "Linear" in name or "Integer" in name}


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.parametrize("name", CASES)
def test_node_case(name):
    case = CASES[name]
    session = create_session(case.model, **SPEC)
    for inputs, expected in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        found = session.run(dict(zip(names, map(_array, inputs), strict=True)))
        for f, e in zip(found.values(), map(_array, expected), strict=True):
            if {n.op_type for n in case.model.graph.node} & QUANTIZED:
                assert_same_bits(f, e)
            else:
                assert f.dtype == e.dtype
                assert f.shape == e.shape
                np.testing.assert_allclose(f, e, rtol=case.rtol, atol=case.atol)


def test_there_is_a_case_of_every_operator():
    assert {n.op_type for c in CASES.values() for n in c.model.graph.node} >= {*OPERATORS, "Loop", "If"}
