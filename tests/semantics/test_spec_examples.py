"""The sixteen worked examples of the QuantizeLinear-25 document, its numbers typed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from qtool import kernels, reference
from qtool.dtypes import BY_ONNX, QDTYPES


@dataclass(frozen=True)
class Example:
    """One example; ``target`` is the type of ``y`` and of the zero point."""

    name: str
    target: str
    x: Any
    scale: Any
    zero_point: Any
    y: Any
    attributes: dict[str, int] = field(default_factory=dict)


SIX = [0, 2, 3, 1000, -254, -1000]
FIVE = [0, 1, 2, 1e5, 2e2]
BLOCKED_SCALE = [[1.5, 2.5], [3.0, 4.9], [5.1, 6.9]]
EXAMPLES = [
    Example("cc_quantizelinear", "uint8", SIX, 2, None, [0, 1, 2, 255, 0, 0]),
    Example("cc_quantizelinear_int8", "int8", SIX, 2, -10, [-10, -9, -8, 127, -128, -128]),
    Example("quantizelinear", "uint8", SIX, 2, 128, [128, 129, 130, 255, 1, 0]),
    Example(
        "quantizelinear_axis",
        "uint8",
        [
            [
                [[-162, 10], [-100, 232], [-20, -50]],
                [[-76, 0], [0, 252], [32, -44]],
                [[245, -485], [-960, -270], [-375, -470]],
            ]
        ],
        [2, 4, 5],
        [84, 24, 196],
        [[[[3, 89], [34, 200], [74, 59]], [[5, 24], [24, 87], [32, 13]], [[245, 99], [4, 142], [121, 102]]]],
        {"axis": 1},
    ),
    Example(
        "quantizelinear_blocked_asymmetric",
        "uint8",
        [[6, 12, 50, 5], [1, 8, 4, 5], [0, 20, 10, 4]],
        BLOCKED_SCALE,
        [[0, 1], [1, 0], [2, 3]],
        [[4, 8, 21, 3], [1, 4, 1, 1], [2, 6, 4, 4]],
        {"axis": 1, "block_size": 2},
    ),
    Example(
        "quantizelinear_blocked_symmetric",
        "int16",
        [[6, -8, -10, 5], [1, 8, 4, 5], [0, 20, 10, 4]],
        BLOCKED_SCALE,
        None,
        [[4, -5, -4, 2], [0, 3, 1, 1], [0, 4, 1, 1]],
        {"axis": 1, "block_size": 2, "output_dtype": 5},
    ),
    Example("quantizelinear_e4m3fn", "float8e4m3fn", FIVE, 2, [0], [0, 0.5, 1, 448, 96]),
    Example("quantizelinear_e5m2", "float8e5m2", FIVE, 2, [0], [0, 0.5, 1, 49152, 96]),
    Example(
        "quantizelinear_float4e2m1",
        "float4e2m1",
        [[0, 2.5, 4.8, 8.6], [-30, -20, 6, 9], [-0.0, -2.5, -4.8, -8.6]],
        [2, 3, 4],
        [0, 0, 0],
        [[0, 1, 2, 4], [-6, -6, 2, 3], [0, -0.5, -1, -2]],
        {"axis": 0},
    ),
    Example("quantizelinear_float4e2m1_signed_zero", "float4e2m1", [-0.0, 0], 1, None, [-0.0, 0], {"output_dtype": 23}),
    Example("quantizelinear_int16", "int16", [0, 2, 3, -1e5], 2, -1024, [-1024, -1023, -1022, -32768]),
    Example(
        "quantizelinear_int2",
        "int2",
        [[0, 2.5, 4.8, 8.6], [-4, -3, 1, 2], [-0.0, -2.5, -4.8, -8.6]],
        [2, 3, 4],
        [0, 0, 0],
        [[0, 1, 1, 1], [-1, -1, 0, 1], [0, -1, -1, -2]],
        {"axis": 0},
    ),
    Example(
        "quantizelinear_int4",
        "int4",
        [[0, 2.5, 4.8, 8.6], [-30, -20, 6, 9], [12, 15, 16, 40]],
        [2, 3, 4],
        [1, 1, 1],
        [[1, 2, 3, 5], [-8, -6, 3, 4], [4, 5, 5, 7]],
        {"axis": 0},
    ),
    Example("quantizelinear_uint16", "uint16", [0, 2, 3, 2e5], 2, 32767, [32767, 32768, 32769, 65535]),
    Example(
        "quantizelinear_uint2",
        "uint2",
        [[0, 2.5, 4.8, 8.6], [-2, -1, 1, 3], [4, 5, 6, 7]],
        [2, 3, 4],
        [0, 0, 0],
        [[0, 1, 2, 3], [0, 0, 0, 1], [1, 1, 2, 2]],
        {"axis": 0},
    ),
    Example(
        "quantizelinear_uint4",
        "uint4",
        [[0, 2.5, 4.8, 8.6], [-30, -20, 6, 9], [12, 15, 16, 40]],
        [2, 3, 4],
        [1, 1, 1],
        [[1, 2, 3, 5], [0, 0, 3, 4], [4, 5, 5, 11]],
        {"axis": 0},
    ),
]


def test_there_are_sixteen():
    assert len({e.name for e in EXAMPLES}) == 16


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
@pytest.mark.parametrize("quantize", [kernels.quantize, reference.quantize_linear], ids=["kernels", "reference"])
def test_example(quantize, example):
    dtype = QDTYPES[example.target]
    zero_point = None if example.zero_point is None else np.array(example.zero_point).astype(dtype.numpy)
    attributes: dict[str, Any] = dict(example.attributes)
    if "output_dtype" in attributes:
        attributes["output_dtype"] = BY_ONNX[attributes["output_dtype"]]
    y = quantize(np.array(example.x, np.float32), np.array(example.scale, np.float32), zero_point, **attributes)
    assert y.dtype == dtype.numpy
    found, expected = reference.decode(y, dtype), np.array(example.y, np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
