"""What ``--target openvino`` writes is run by OpenVINO: on integers, and as close to float as in onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import qtool
from qtool.api import QuantizeResult
from qtool.plan.plan import Form
from qtool.signal import sqnr_db
from tests.models import build, normal, quantize_and_check, run
from tests.targets.models import block, conv_net

openvino = pytest.importorskip("openvino", reason="openvino is not installed")

Arrays = Mapping[str, np.ndarray]
# what onnxruntime and OpenVINO may be apart; below that they computed the same
WITHIN_DB = 1.0
PRODUCTS = ("Convolution", "FullyConnected", "MatMul")


class Compiled:
    """A model as OpenVINO runs it, in float32 where it is not quantized (it would choose bfloat16 on some CPUs)."""

    def __init__(self, model: onnx.ModelProto | Path) -> None:
        core = openvino.Core()
        source = str(model) if isinstance(model, Path) else core.read_model(model.SerializeToString())
        # and with activations in float beside weights that are merely stored quantized
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 1,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self._model = core.compile_model(source, "CPU", options)

    def first_output(self, feeds: Arrays) -> np.ndarray:
        return np.array(self._model(dict(feeds))[self._model.outputs[0]])

    def products(self) -> Counter[str]:
        """How many products it computes in each precision, from its executable graph."""
        found: Counter[str] = Counter()
        for node in self._model.get_runtime_model().get_ops():
            info: dict[str, Any] = node.get_rt_info()
            if info["layerType"].astype(str) in PRODUCTS:
                found[info["runtimePrecision"].astype(str)] += 1
        return found


def planned_products(result: QuantizeResult) -> int:
    return sum(d.form is Form.OPERATOR for d in result.plan.decisions)


@pytest.mark.parametrize("make", [conv_net, block])
def test_openvino_computes_what_the_file_says(make):
    model, samples = make()
    made = quantize_and_check(model, samples, target="openvino")
    compiled = Compiled(made.model)
    got = compiled.first_output(samples)
    assert sqnr_db(made.got["y"], got) > 40  # a code here and there is rounded the other way
    assert sqnr_db(made.expected["y"], got) > made.sqnr() - 0.1
    # the two products of the block's attention are one float operator there
    assert compiled.products() == {"u8": planned_products(made.result)}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_signed_and_shifted_activations(dtype):
    text = "g (float[N,4,9,9] x) => (float[N,M,P,Q] y) { y = Conv <pads=[1,1,1,1]> (x, w, b) }"
    model = build(text, {"w": normal(8, 4, 3, 3, seed=1), "b": normal(8, seed=2)})
    samples = {"x": np.maximum(normal(8, 4, 9, 9, seed=3), np.float32(-0.4))}
    options = {"activations": dtype, "symmetric_activations": dtype == "int8"}
    made = quantize_and_check(model, samples, target="openvino", **options)
    compiled = Compiled(made.model)
    assert compiled.products() == {{"uint8": "u8", "int8": "i8"}[dtype]: 1}
    assert sqnr_db(made.got["y"], compiled.first_output(samples)) > 100


def test_a_conv_without_bias_that_is_read_twice():
    """openvino 2026.4 drops the scales of such a Conv unless a QuantizeLinear follows: 0 dB."""
    text = """g (float[N,16,8,8] x) => (float[N,24,8,8] y) {
        a = Conv (x, w1)
        s = Mul (a, a)
        t = Add (a, s)
        y = Conv (t, w2)
    }"""
    model = build(text, {"w1": normal(32, 16, 1, 1, seed=1, scale=0.4), "w2": normal(24, 32, 1, 1, seed=2)})
    samples = {"x": normal(8, 16, 8, 8, seed=3)}
    made = quantize_and_check(model, samples, target="openvino")
    assert sqnr_db(made.expected["y"], Compiled(made.model).first_output(samples)) > made.sqnr() - 0.1


@pytest.mark.parametrize("weights", ["int8", "uint8", "int4", "uint4"])
def test_weight_only_types(weights):
    model = build("g (float[N,64] x) => (float[N,48] y) { y = MatMul (x, w) }", {"w": normal(64, 48, seed=1)}, opset=21)
    model.ir_version = 10
    samples = {"x": normal(8, 64, seed=2)}
    quantized = qtool.quantize(model, target="openvino", weight_only=True, weights=weights).model
    assert quantized is not None
    expected = run(quantized, samples)["y"]
    assert sqnr_db(expected, Compiled(quantized).first_output(samples)) > 60


# calibration samples, evaluation samples
ZOO = {
    "mnist_cnn": (16, 8),
    "digits_resnet_bn": (16, 16),
    "digits_vit": (16, 8),
    "efficientnet_lite0": (4, 4),
    "magika": (16, 8),
    "minilm_l6_v2": (8, 4),
    "whisper_tiny_en_encoder": (1, 1),
    "chargpt_llama": (16, 8),
    "ppocr_cls": (8, 8),
    "ppocr_det": (2, 1),
}


@pytest.mark.zoo
@pytest.mark.parametrize("name", ZOO)
def test_a_real_model_is_as_good_as_in_onnxruntime(name, zoo, tmp_path):
    calibration, count = ZOO[name]
    source, path = zoo / f"{name}.onnx", tmp_path / "q.onnx"
    result = qtool.quantize(
        source, zoo / f"{name}_calib.npz", samples=calibration, output=path, target="openvino", num_threads=1
    )
    reference, quantized, compiled = session(source), session(path), Compiled(path)
    with np.load(zoo / f"{name}_eval.npz") as data:
        feeds = [{i.name: data[i.name][k : k + 1] for i in reference.get_inputs()} for k in range(count)]
    expected = np.concatenate([reference.run(None, one)[0].ravel() for one in feeds])
    ort = sqnr_db(expected, np.concatenate([quantized.run(None, one)[0].ravel() for one in feeds]))
    ours = sqnr_db(expected, np.concatenate([compiled.first_output(one).ravel() for one in feeds]))
    assert ours > ort - WITHIN_DB
    found = compiled.products()
    assert found["u8"] == planned_products(result), found


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
