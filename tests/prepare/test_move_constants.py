"""What NumPy moves by itself is what ``onnx.reference`` gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.prepare import evaluate_constants
from qtool.prepare.move_constants import move

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INTS = np.array([3, -1, 0, 7], np.int64)


def i(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def node_of(op_type: str, arrays: list, attributes: dict) -> ir.Node:
    names = ["" if a is None else f"i{n}" for n, a in enumerate(arrays)]
    return ir.serde.deserialize_node(onnx.helper.make_node(op_type, names, ["y"], **attributes))


MOVED = [
    ("Identity", [X], {}),
    ("Reshape", [X, i(4, -1)], {}),
    ("Reshape", [X, i(0, 12)], {}),
    ("Reshape", [X, i(0, 0, 2, -1)], {}),
    ("Reshape", [X[:1, :1, :1], np.zeros(0, np.int64)], {}),
    ("Transpose", [X], {}),
    ("Transpose", [X], {"perm": [1, 2, 0]}),
    ("Unsqueeze", [X, i(0, 2)], {}),
    ("Unsqueeze", [X, i(-1, 0)], {}),
    ("Unsqueeze", [np.asarray(5), i(0)], {}),
    ("Concat", [X, X[:, :1]], {"axis": 1}),
    ("Concat", [X, X], {"axis": -1}),
    ("Slice", [X, i(1), i(2), i(1)], {}),
    ("Slice", [X, i(-1, 3), i(-100, 0), i(1, 2), i(-1, -2)], {}),
    ("Slice", [X, i(-1), i(-(2**63)), i(-1), i(-1)], {}),
    ("Slice", [X, i(1), i(2**63 - 1), i(-2)], {}),
    ("Slice", [X, i(2), i(1), i(2)], {}),
    ("ConstantOfShape", [i(2, 3)], {}),
    ("ConstantOfShape", [i(4)], {"value": onnx.numpy_helper.from_array(i(7))}),
    ("ConstantOfShape", [np.zeros(0, np.int64)], {"value": onnx.numpy_helper.from_array(np.array([2.5], np.float16))}),
    ("Cast", [INTS], {"to": onnx.TensorProto.FLOAT}),
    ("Cast", [X - 5], {"to": onnx.TensorProto.BOOL}),
    ("Cast", [X * 1e4], {"to": onnx.TensorProto.FLOAT16}),
    ("Cast", [INTS > 0], {"to": onnx.TensorProto.INT32}),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes"), MOVED)
def test_what_is_moved_equals_the_reference(op_type, arrays, attributes):
    node = node_of(op_type, arrays, attributes)
    with np.errstate(over="ignore"):
        moved = move(node, arrays)
        (expected,) = evaluate_constants._run(node, arrays, 17)
    assert moved is not None
    assert (moved[0].dtype, moved[0].shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(moved[0], expected)


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes"),
    [
        ("Add", [X, X], {}),
        ("Reshape", [np.zeros((0, 2), np.float32), i(0, 5)], {"allowzero": 1}),
        ("Reshape", [X], {"shape": [4, 6]}),
        ("Unsqueeze", [X], {"axes": [0]}),
        ("Slice", [X, i(1), i(2)], {}),
        ("Slice", [X], {"starts": [1], "ends": [2]}),
        ("Concat", [X, None], {"axis": 0}),
        ("Cast", [X], {"to": onnx.TensorProto.BFLOAT16}),
        ("Identity", [None], {}),
    ],
)
def test_rare_forms_are_left_to_the_reference(op_type, arrays, attributes):
    assert move(node_of(op_type, arrays, attributes), arrays) is None


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes"),
    [
        ("Reshape", [X, i(5, 5)], {}),
        ("Reshape", [X, i(2, 3, 4, 0)], {}),
        ("Transpose", [X], {"perm": [0, 0, 1]}),
        ("Unsqueeze", [X, i(0, 0)], {}),
        ("Concat", [X, X[0]], {"axis": 0}),
        ("Slice", [X, i(0), i(1), i(3)], {}),
        ("ConstantOfShape", [i(-1)], {}),
    ],
)
def test_what_is_not_valid_stays_a_node(op_type, arrays, attributes):
    assert evaluate_constants.evaluate_node(node_of(op_type, arrays, attributes), arrays, 17) is None
