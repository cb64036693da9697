"""The predicted fusions beside the graph of onnxruntime; tests/zoo, test_plan and random graphs have more of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from tests.emit.test_random_graphs import Grower
from tests.fusion import check_fusion
from tests.models import FORMATS, build, normal

formats = pytest.mark.parametrize("form", FORMATS)
TYPES: dict[str, dict[str, Any]] = {
    "default": {},
    "int8": {"activations": "int8"},
    "symmetric": {"activations": "int8", "symmetric_activations": True},
    "uint8 weights": {"weights": "uint8"},
    "16 bits": {"activations": "int16"},
    "4-bit weights": {"weights": "int4"},
}


def check_in_memory(model: onnx.ModelProto, x: np.ndarray, **options: Any) -> qtool.api.QuantizeResult:
    result = qtool.quantize(model, {"x": x}, **options)
    assert result.model is not None
    check_fusion(result, result.model)
    return result


@pytest.mark.parametrize(
    ("types", "form"),
    [(t, f) for t in TYPES for f in FORMATS if f == "qdq" or t not in ("16 bits", "4-bit weights")],
)
def test_random_graphs(types, form):
    for seed in range(2, 5):
        model = Grower(seed).model(opset=(17, 21)[seed % 2])
        check_in_memory(model, normal(4, 4, 8, 8, seed=seed), format=form, **TYPES[types])


def test_a_conv_transpose_is_named():
    model = build(
        "m (float[N,4,6,6] x) => (float[N,4,a,b] y) { [c] y = ConvTranspose(x, w) }", {"w": normal(4, 4, 3, 3)}
    )
    result = check_in_memory(model, normal(2, 4, 6, 6))
    assert result.fusion is not None
    assert [(n.node, n.reason) for n in result.fusion.unfused] == [
        ("c", "no runtime computes it on integers; its weights are dequantized at every run")
    ]


MLP = """m (float[{dims}] x) => (float[{out}] y) {{
    [p] h = MatMul(x, w) [a] i = Add(h, b) [r] j = Relu(i) [q] y = MatMul(j, v)
}}"""


@formats
@pytest.mark.parametrize(
    ("dims", "out", "expected"),
    [("N,8", "N,4", "QGemm"), ("2,6,8", "2,6,4", "QGemm"), ("N,6,8", "N,6,4", "MatMulIntegerToFloat")],
)
@pytest.mark.parametrize("types", ["default", "int8"])
def test_a_product_and_its_bias(dims, out, expected, types, form):
    arrays = {"w": normal(8, 8), "b": normal(8, seed=1), "v": normal(8, 4, seed=2)}
    x = normal(*[2 if d == "N" else int(d) for d in dims.split(",")])
    result = check_in_memory(build(MLP.format(dims=dims, out=out), arrays), x, format=form, **TYPES[types])
    assert result.fusion is not None
    # one tensor is rewritten to uint8, and the other, which an integer operator reads, is not
    first = None if (types, form, dims) == ("int8", "qlinear", "N,8") else expected
    assert [n.runs_as for n in result.fusion.nodes] == [first, "QLinearMatMul"]


def test_what_does_not_fuse_is_named_with_the_reason():
    text = "m (float[N,4,6,6] x) => (float[N,4,4,4] y) { [c] h = Conv(x, w) [r] g = Relu(h) [d] y = Conv(g, v) }"
    model = build(text, {"w": normal(4, 4, 3, 3), "v": normal(4, 4, 1, 1)})
    x = normal(4, 4, 6, 6)
    result = check_in_memory(model, x, activations="int8", symmetric_activations=True)
    assert result.fusion is not None
    assert result.fusion.message() == "2 of 3 quantized nodes that compute fuse in onnxruntime"
    assert result.fusion.to_dict() == {
        "fused": 2,
        "total": 3,
        "operators": {"QLinearConv": 2},
        "unfused": [
            {
                "node": "r",
                "op_type": "Relu",
                "reason": "its zero point is not the lowest code, where saturation would clamp",
            }
        ],
    }
    assert result.to_dict()["fusion"] == result.fusion.to_dict()
    dry = qtool.quantize(model, dry_run=True)
    assert dry.fusion is not None
    assert (dry.fusion.fused, dry.fusion.total) == (2, 2)


def test_modes_without_calibration_predict_nothing():
    model = build("m (float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }", {"w": normal(4, 4)})
    assert qtool.quantize(model, dynamic=True).fusion is None
