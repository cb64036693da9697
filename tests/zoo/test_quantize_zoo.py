"""Real trained models, quantized with the defaults in both formats and compared with float on data they never saw."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest

from qtool import api
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
BATCHES = {"minilm_l6_v2": 8, "chargpt_llama": 8}


# the suite runs one process per core; more threads of onnxruntime spin while they wait for each other
THREADS = 1


@pytest.fixture(scope="module")
def quantized(zoo, tmp_path_factory):
    """(model, format) -> the model with the defaults, as a file; made once."""
    folder = tmp_path_factory.mktemp("quantized")

    @cache
    def made(name: str, form: str) -> api.QuantizeResult:
        source, data = zoo / f"{name}.onnx", zoo / f"{name}_calib.npz"
        return api.quantize(source, data, output=folder / f"{name}.{form}.onnx", format=form, num_threads=THREADS)

    return made


@pytest.mark.parametrize("form", ["qlinear", "qdq"])
@pytest.mark.parametrize("name", FLOORS)
def test_a_real_model_stays_close_to_float(name, form, zoo, quantized):
    result = quantized(name, form)
    assert result.model_path is not None
    for op_type, count in EXPECTED[name].items():
        assert result.by_op[op_type][0] >= count
    assert result.bytes_after < result.bytes_before
    check_fusion(result, result.model_path)
    report = api.evaluate(
        zoo / f"{name}.onnx",
        result.model_path,
        zoo / f"{name}_eval.npz",
        labels=LABELS.get(name),
        metrics=["sqnr", "top1"] if name in LABELS else ["sqnr"],
        latency=False,
        checks="none",
        num_threads=THREADS,
    )
    first = report.outputs[0]
    assert first.values["sqnr"] >= FLOORS[name]
    if name in LABELS:
        assert first.values["top1"] >= first.float_values["top1"] - TOP1_DROP


@pytest.mark.parametrize("name", ["digits_resnet_bn", "efficientnet_lite0"])
def test_a_cnn_is_integer_operators_of_the_default_domain(name, quantized):
    result = quantized(name, "qlinear")
    model = onnx.load(result.model_path)
    ops = [node.op_type for node in model.graph.node]
    assert {domain.domain for domain in model.opset_import} <= {"", "ai.onnx"}
    assert ops.count("QLinearConv") == EXPECTED[name]["Conv"]
    assert "Conv" not in ops
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(ops)
    # one QuantizeLinear for the image, and one behind each operator that ai.onnx has no integer form of
    assert ops.count("QuantizeLinear") == 1 + sum(ops.count(op) for op in ("Add", "GlobalAveragePool"))


def test_two_runs_write_the_same_bytes_whatever_the_threads(zoo, tmp_path):
    paths = []
    for threads in (1, 2):
        path = tmp_path / f"{threads}.onnx"
        api.quantize(
            zoo / "digits_resnet_bn.onnx", zoo / "digits_resnet_bn_calib.npz", output=path, num_threads=threads
        )
        paths.append(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_bit_for_bit_the_integer_convs_of_onnxruntime(zoo, quantized):
    """The kernels compute what onnxruntime computes, on a real model: every QLinearConv of it, from real codes."""
    from qtool import kernels

    result = quantized("digits_resnet_bn", "qlinear")
    model = onnx.load(result.model_path)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    convs = [node for node in model.graph.node if node.op_type == "QLinearConv"]
    for name in dict.fromkeys(n for node in convs for n in (node.input[0], node.output[0])):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with np.load(zoo / "digits_resnet_bn_eval.npz") as data:
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
