"""Real trained models, quantized with the defaults in both formats and compared with float on data they never saw."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest

from qtool import api
from qtool.evaluate.report import Report
from tests.fusion import check_fusion

pytestmark = pytest.mark.zoo

# Least output SQNR in dB against float. Where onnxruntime's own static quantizer (uint8 activations, int8 per-channel
# weights, min-max) writes a file that loads, that is its figure on the same data, or the figure of its MatMul-only
# recipe for the transformers less 1 dB; elsewhere a floor that only a working model reaches.
FLOORS = {
    "mnist_cnn": 20.0,
    "digits_resnet_bn": 35.7,
    "digits_vit": 38.0,
    "efficientnet_lite0": 14.5,
    "ppocr_cls": 15.0,
    "ppocr_det": 8.0,
    "magika": 25.0,
    "minilm_l6_v2": 16.0,
    "whisper_tiny_en_encoder": 6.0,
    "chargpt_llama": 30.0,
}
# what the task metric may lose; tiny evaluation sets cannot tell more
TOP1_DROP = 0.015
LABELS = dict.fromkeys(("mnist_cnn", "digits_resnet_bn", "digits_vit", "ppocr_cls", "magika"), "labels")
# operators that must have become integer ones, of how many
EXPECTED = {
    "mnist_cnn": {"Conv": 2, "MatMul": 1},
    "digits_resnet_bn": {"Conv": 10, "Gemm": 1},
    "digits_vit": {"MatMul": 12, "Gemm": 1},
    "efficientnet_lite0": {"Conv": 49, "Gemm": 1},
    "ppocr_cls": {"Conv": 53, "MatMul": 1},
    "ppocr_det": {"Conv": 62},
    "magika": {"Conv": 1, "MatMul": 2},
    "minilm_l6_v2": {"MatMul": 36},
    "whisper_tiny_en_encoder": {"MatMul": 24, "Conv": 2},
    "chargpt_llama": {"MatMul": 29},
}
FORMS = ("qlinear", "qdq")


@pytest.fixture(scope="module")
def judged(real):
    """model -> by form, how close it is to float on the evaluation data; the float model runs once for both."""

    @cache
    def made(name: str) -> dict[str, Report]:
        compared = api.compare_models(
            real.model(name),
            [real.quantized(name, form).model_path for form in FORMS],
            real.eval(name),
            labels=LABELS.get(name),
            metrics=["sqnr", "top1"] if name in LABELS else ["sqnr"],
            latency=False,
            num_threads=1,
        )
        return dict(zip(FORMS, compared.reports, strict=True))

    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FLOORS)
def test_a_real_model_stays_close_to_float(name, form, real, judged):
    result = real.quantized(name, form)
    assert result.model_path is not None
    for op_type, count in EXPECTED[name].items():
        assert result.by_op[op_type][0] >= count
    assert result.bytes_after < result.bytes_before
    check_fusion(result, result.model_path)
    report = judged(name)[form]
    first = report.outputs[0]
    assert first.values["sqnr"] >= FLOORS[name]
    if name in LABELS:
        assert first.values["top1"] >= first.float_values["top1"] - TOP1_DROP


@pytest.mark.parametrize("name", ["digits_resnet_bn", "efficientnet_lite0"])
def test_a_cnn_is_integer_operators_of_the_default_domain(name, real):
    result = real.quantized(name, "qlinear")
    model = onnx.load(result.model_path)
    ops = [node.op_type for node in model.graph.node]
    assert {domain.domain for domain in model.opset_import} <= {"", "ai.onnx"}
    assert ops.count("QLinearConv") == EXPECTED[name]["Conv"]
    assert "Conv" not in ops
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(ops)
    # one QuantizeLinear for the image, and one behind each operator that ai.onnx has no integer form of
    assert ops.count("QuantizeLinear") == 1 + sum(ops.count(op) for op in ("Add", "GlobalAveragePool"))


@pytest.mark.parametrize("name", ["digits_resnet_bn", "digits_vit"])
def test_samples_and_their_statistics_make_the_same_bytes_whatever_the_threads(name, real, tmp_path):
    paths = [real.quantized(name, "qlinear").model_path]
    for threads in (1, 2):
        paths.append(tmp_path / f"{threads}.onnx")
        api.quantize(real.model(name), real.calib(name), output=paths[-1], format="qlinear", num_threads=threads)
    assert len({path.read_bytes() for path in paths}) == 1


def test_bit_for_bit_the_integer_convs_of_onnxruntime(real):
    """The kernels compute what onnxruntime computes, on a real model: every QLinearConv of it, from real codes."""
    from qtool import kernels

    result = real.quantized("digits_resnet_bn", "qlinear")
    model = onnx.load(result.model_path)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    convs = [node for node in model.graph.node if node.op_type == "QLinearConv"]
    for name in dict.fromkeys(n for node in convs for n in (node.input[0], node.output[0])):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with np.load(real.eval("digits_resnet_bn")) as data:
        image = data["image"][:32].astype(np.float32)
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run(names, {"image": image}), strict=True))
    for node in convs:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        attributes.pop("kernel_shape", None)
        if "auto_pad" in attributes:
            attributes["auto_pad"] = attributes["auto_pad"].decode()
        x, *rest = node.input
        found = kernels.qlinear_conv(values[x], *(constants[name] for name in rest), **attributes)
        np.testing.assert_array_equal(found, values[node.output[0]])
