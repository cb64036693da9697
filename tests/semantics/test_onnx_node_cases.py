"""The quantization node cases that the onnx package ships, bit for bit, through the kernels and through the oracle."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.backend.test.case.node as shipped
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from qtool import kernels, reference
from tests.kernels.elementwise import assert_same_bits
from tests.semantics.elementwise_runners import RUNNERS as ELEMENTWISE
from tests.semantics.integer_runners import RUNNERS as INTEGER

if TYPE_CHECKING:
    from types import ModuleType

RUNNERS = ELEMENTWISE | INTEGER
OP_TYPES = {
    "QuantizeLinear",
    "DequantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
    "DynamicQuantizeLinear",
}


def _collect() -> dict[str, Any]:
    """Cases by name. Importing a page registers its cases; collect_testcases imports all pages, which takes 10 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op_type in sorted(OP_TYPES):  # the order of the cases must not depend on the hash seed
            importlib.import_module(f"{shipped.__name__}.{op_type.lower()}")
    cases = shipped._NodeTestCases
    return {c.name: c for c in cases if any(n.op_type in OP_TYPES for n in c.model.graph.node)}


CASES = _collect()


def _arrays(values: list[Any]) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]


def _run(module: ModuleType, model: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    if len(model.graph.node) == 1:
        (node,) = model.graph.node
        return RUNNERS[node.op_type](module, node, inputs)

    # An expanded function (DynamicQuantizeLinear): its plain operators by onnx, QuantizeLinear by qtool.
    class QuantizeLinear(OpRun):
        op_domain = ""

        def _run(self, *arrays: Any, **_: Any) -> tuple[Any, ...]:
            return tuple(ELEMENTWISE["QuantizeLinear"](module, self.onnx_node, list(arrays)))

    names = [i.name for i in model.graph.input]
    evaluator = ReferenceEvaluator(model, new_ops=[QuantizeLinear])
    return list(evaluator.run(None, dict(zip(names, inputs, strict=True))))


def test_no_case_is_missing():
    assert len(CASES) >= 45
    assert {n.op_type for c in CASES.values() for n in c.model.graph.node} >= OP_TYPES


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_node_case(name, module):
    case = CASES[name]
    for inputs, expected in case.data_sets:
        found = _run(module, case.model, _arrays(inputs))
        for f, e in zip(found, _arrays(expected), strict=True):
            assert_same_bits(np.asarray(f), e)
