"""Case 63 on whole models: pairs that saturate on a processor without VNNI, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qtool.evaluate.checks import saturation
from tests.evaluate.checks.subjects import f32, subject
from tests.models import build, uniform

FLOAT = "g (float[N,8] x) => (float[N,1] y) { y = MatMul(x, w) }"
CODES = """
g (float[N,8] x) => (float[N,1] y) {
  xq = QuantizeLinear(x, sx, zx)
  [product] yq = QLinearMatMul(xq, sx, zx, w, sw, zw, sy, zx)
  y = DequantizeLinear(yq, sy, zx)
}"""
QDQ = """
g (float[N,8] x) => (float[N,1] y) {
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear<axis=1>(w, sw, zw)
  [product] y = MatMul(xd, wd)
}"""


def quantized(text: str, code: int, **more: Any) -> onnx.ModelProto:
    arrays: dict[str, Any] = {
        "w": np.full((8, 1), code, np.int8),
        "sx": np.float32(1 / 255),
        "zx": np.uint8(0),
        "sw": f32(1 / code),
        "zw": np.zeros(1, np.int8),
    }
    if text is CODES:
        arrays |= {"sy": np.float32(8 / 255)}
    return build(text, arrays | more)


@pytest.mark.parametrize("text", [CODES, QDQ], ids=["qlinear", "qdq"])
def test_case_63(text: str) -> None:
    reference = build(FLOAT, {"w": np.ones((8, 1), np.float32)})
    x = np.ones((2, 8), np.float32)
    result = saturation.check(subject(reference, quantized(text, 127), x))
    assert (result.state, result.samples) == ("flagged", 2)
    (finding,) = result.findings
    assert (finding.subject, finding.text) == ("product", "8 of 8 pairs saturate (100.00%)")
    assert finding.suggestion == "--target avx2"
    assert result.values["saturated"] == result.values["pairs"] == 8
    assert (result.values["layers"], result.values["saturating_layers"]) == (1, 1)
    # 4 * 32767 / (255 * 127) = 4.047 instead of 8: half of the signal is noise, 6.1 dB
    sqnr = result.values["sqnr_without_vnni:y"]
    assert sqnr == pytest.approx(-20 * np.log10(1 - 4 * 32767 / (255 * 127 * 8)), abs=0.03)
    drop = result.values["drop_db"]
    assert isinstance(drop, float)
    assert drop > 60
    assert result.summary.startswith("8 of 8 pairs saturate, in 1 of 1 layer: SQNR of 'y' is ")

    model = quantized(text, 127)
    onnx.helper.set_model_props(model, {"qtool.config": '{"target": "avx2", "weights": "int8"}'})
    (finding,) = saturation.check(subject(reference, model, x)).findings
    assert finding.suggestion == "more --calib samples"

    seven = saturation.check(subject(reference, quantized(text, 64), x))
    assert (seven.state, seven.findings) == ("ok", ())
    assert seven.summary == "No pair of products saturates in 1 layer (2 samples)."


def test_saturation_that_costs_nothing_is_counted_and_not_flagged() -> None:
    reference = build(FLOAT, {"w": np.full((8, 1), 1.1, np.float32)})  # quantization loses more than saturation does
    x = uniform(50, 8, high=0.4, seed=3)[:8]
    x[0, :2] = 0.508  # 129.54 and 130 codes: 130 * 127 * 2 = 33020, 253 too many of 8 products
    result = saturation.check(subject(reference, quantized(QDQ, 127), x))
    assert (result.values["saturated"], result.values["pairs"]) == (1, 32)
    assert result.state == "ok"
    assert [f.subject for f in result.findings] == ["product"]


def test_other_signs_cannot_saturate() -> None:
    reference = build(FLOAT, {"w": np.ones((8, 1), np.float32)})
    model = quantized(CODES, 127, w=np.full((8, 1), 255, np.uint8), sw=f32(1 / 255), zw=np.zeros(1, np.uint8))
    result = saturation.check(subject(reference, model, np.ones((1, 8), np.float32)))
    assert (result.state, result.samples) == ("ok", 0)
    assert result.summary == "No product of uint8 and int8 is computed on codes: nothing can saturate."


def test_what_the_spec_engine_cannot_run_is_skipped() -> None:
    model = quantized(QDQ, 127)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    node = onnx.helper.make_node("Gelu", ["y"], ["z"], domain="com.microsoft")
    model.graph.node.append(node)
    model.graph.output[0].name = "z"
    reference = build(FLOAT.replace(" y)", " z)").replace("y =", "z ="), {"w": np.ones((8, 1), np.float32)})
    result = saturation.check(subject(reference, model, np.ones((1, 8), np.float32)))
    assert result.state == "skipped"
    assert result.summary.startswith("The spec engine cannot run the model: ")
