"""Real trained models: prepared, they still compute the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from qtool.prepare import load_model
from qtool.prepare.prepare import prepare
from tests.conftest import zoo_folder

ZOO = zoo_folder()
pytestmark = pytest.mark.zoo

# What must be left, or gone, of the operators that the passes are about.
EXPECTED = {
    "chargpt_llama": {"MatMul": 37},
    "digits_resnet_bn": {"Conv": 10, "Gemm": 1, "BatchNormalization": 0, "Identity": 0, "Constant": 0, "Cast": 0},
    "digits_vit": {"MatMul": 18, "Gemm": 1, "Constant": 0},
    "efficientnet_lite0": {"Conv": 49, "Clip": 33, "Pad": 0, "Gemm": 1, "Transpose": 0, "Slice": 0},
    "magika": {"Conv": 1, "MatMul": 2},
    "minilm_l6_v2": {"MatMul": 48},
    "mnist_cnn": {"Conv": 2, "MatMul": 1, "Add": 1, "Reshape": 1},
    "ppocr_cls": {"Conv": 53, "BatchNormalization": 0, "Constant": 0, "Clip": 18},
    "ppocr_det": {"Conv": 62, "ConvTranspose": 2, "BatchNormalization": 0, "Constant": 0, "Clip": 24},
    "silero_vad": {"If": 1},
    "whisper_tiny_en_encoder": {"Conv": 2, "MatMul": 32},
}
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds_of(session, name):
    feeds = {}
    with np.load(ZOO / f"{name}_eval.npz") as data:
        for info in session.get_inputs():
            array = data[info.name][:1].astype(TYPES[info.type])
            feeds[info.name] = np.asarray(array[0] if array.ndim > len(info.shape) else array)
    return feeds


@pytest.mark.parametrize("min_opset", [13, 21])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_model_computes_the_same(name, min_opset):
    path = ZOO / f"{name}.onnx"
    result = prepare(load_model(path), min_opset=min_opset, min_ir=7)
    proto = ir.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    found = Counter(node.op_type for node in result.model.graph)
    assert {op: found[op] for op in EXPECTED[name]} == EXPECTED[name]
    old, new = session_of(str(path)), session_of(proto.SerializeToString())
    assert [(i.name, i.type, i.shape) for i in old.get_inputs()] == [
        (i.name, i.type, i.shape) for i in new.get_inputs()
    ]
    assert [(o.name, o.type) for o in old.get_outputs()] == [(o.name, o.type) for o in new.get_outputs()]
    feeds = feeds_of(old, name)
    for before, after in zip(old.run(None, feeds), new.run(None, feeds), strict=True):
        noise = np.square(before.astype(np.float64) - after).sum()
        assert noise <= np.square(before.astype(np.float64)).sum() * 1e-9  # 90 dB


def test_mnist_goes_from_opset_8_and_ir_3_with_its_weights_off_the_inputs():
    result = prepare(load_model(ZOO / "mnist_cnn.onnx"), min_opset=13, min_ir=7)
    assert [v.name for v in result.model.graph.inputs] == ["Input3"]
    assert [v.name for v in result.model.graph.outputs] == ["Plus214_Output_0"]
    assert (dict(result.model.opset_imports), result.model.ir_version) == ({"": 13}, 7)
    assert result.actions == (
        "took 8 initializers off the graph inputs",
        "raised the opset from 8 to 13",
        "evaluated 1 node with constant inputs",
        "folded 2 Add of a constant into convolution biases",
    )


def test_silero_bodies_are_listed_and_untouched():
    model = load_model(ZOO / "silero_vad.onnx")
    result = prepare(model, min_opset=13, min_ir=7)
    scopes = Counter(node.scope.count("/") for node in result.source_nodes)
    assert scopes[0] == 5  # the top graph; every other node is inside a branch
    assert sum(node.op_type == "If" for node in result.source_nodes) == 25

    def inner(m):
        branch = next(n for n in m.graph if n.op_type == "If")
        return [len(a.as_graph()) for a in branch.attributes.values()]

    assert inner(result.model) == inner(model)
