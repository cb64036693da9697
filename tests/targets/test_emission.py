"""What each target gets: types, zero points, operators and constants of two small models."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import qtool
from qtool.targets import TARGETS
from tests.models import Checked, build, normal, quantize_and_check
from tests.targets.models import block, conv_net

# quantized tensors of the Conv net
CODES_BEHIND_CONVS = {"x", "r1", "c2", "r2", "p", "c3", "g", "f"}
ONLY_WHAT_IS_READ = {"x", "r1", "r2", "p", "g", "f"}
# target: quantized tensors, QuantizeLinear, DequantizeLinear, integer Convs, int32 biases, shape of scales of w3 and w4
CONV_NET = {
    "ort-x64": (CODES_BEHIND_CONVS, 3, 6, 3, 4, (40,), (5,)),
    "avx2": (CODES_BEHIND_CONVS, 3, 6, 3, 4, (40,), (5,)),
    "openvino": (ONLY_WHAT_IS_READ, 6, 14, 0, 4, (40,), (5,)),
    "ort-arm": (CODES_BEHIND_CONVS | {"c1", "s"}, 5, 8, 3, 4, (40,), (5,)),
    "portable": (CODES_BEHIND_CONVS, 8, 16, 0, 4, (40,), (5,)),
    "qnn": (CODES_BEHIND_CONVS, 8, 16, 0, 4, (40,), ()),
    "tensorrt": (ONLY_WHAT_IS_READ, 6, 10, 0, 0, (40,), (5,)),
}


def int32_constants(model: onnx.ModelProto) -> list[str]:
    return [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT32]


def checked(name: str, made: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> Checked:
    model, samples = made
    return quantize_and_check(model, samples, target=name)


@pytest.mark.parametrize("name", TARGETS)
def test_a_conv_net(name):
    quantized, quantizers, dequantizers, integer, biases, conv_scales, gemm_scales = CONV_NET[name]
    made = checked(name, conv_net())
    facts = TARGETS[name]
    assert set(made.result.plan.tensors) == quantized
    ops = made.ops
    assert (ops["QuantizeLinear"], ops["DequantizeLinear"], ops["QLinearConv"]) == (quantizers, dequantizers, integer)
    assert ops["Conv"] == 3 - integer
    assert len(int32_constants(made.model)) == biases
    assert {made.params(t).dtype.name for t in quantized} == {facts.activations[0]}
    zeros = {made.zero_point(t) for t in quantized}
    assert zeros == {0} if facts.symmetric_activations else 0 < made.zero_point("x") < 255
    assert made.weight("node_Conv_2").scale.shape == conv_scales
    assert made.weight("node_Gemm").scale.shape == gemm_scales
    assert {w.params.dtype.name for d in made.result.plan.decisions for w in d.weights if w.params} == {"int8"}
    assert {d.domain for d in made.model.opset_import} == {""}
    assert made.sqnr() > 38


@pytest.mark.parametrize("name", TARGETS)
def test_a_transformer_block(name):
    made = checked(name, block())
    facts = TARGETS[name]
    assert set(made.result.plan.tensors) == {
        "h",
        "c",
        "r",
        "e",
    }  # what products read; residual stream and scores: float
    assert made.ops["QuantizeLinear"] == 4
    assert made.ops["MatMul"] == 8
    assert len(int32_constants(made.model)) == (3 if facts.int32_bias else 0)
    for node in ("node_MatMul", "node_MatMul_5"):
        assert made.weight(node).scale.ndim == (0 if "MatMul" in facts.per_tensor_weights else 1)
    assert made.sqnr() > 30


def test_tensorrt_reads_its_skip_connection_quantized_and_the_conv_in_float():
    made = checked("tensorrt", conv_net())
    producers = {o: node for node in made.model.graph.node for o in node.output}
    add = next(node for node in made.model.graph.node if node.op_type == "Add")
    assert [producers[i].op_type for i in add.input] == ["Conv", "DequantizeLinear"]
    (decision,) = (d for d in made.result.plan.decisions if d.op_type == "Add")
    assert (decision.inputs, decision.outputs) == (((1, "r1"),), ())
    conv = next(node for node in made.model.graph.node if node.op_type == "Conv")
    assert [producers[i].op_type if i in producers else i for i in conv.input] == ["DequantizeLinear"] * 2 + ["b1"]


def test_tensorrt_adds_a_projected_skip_connection_to_the_later_conv():
    text = """g (float[N,8,6,6] x) => (float[N,8,6,6] y) {
        a = Conv <pads=[1,1,1,1]> (x, w1)
        b = Conv (x, w2)
        s = Add (a, b)
        r = Relu (s)
        y = Conv (r, w2)
    }"""
    model = build(text, {"w1": normal(8, 8, 3, 3, seed=1), "w2": normal(8, 8, 1, 1, seed=2)})
    made = quantize_and_check(model, {"x": normal(8, 8, 6, 6, seed=3)}, target="tensorrt")
    (decision,) = (d for d in made.result.plan.decisions if d.op_type == "Add")
    assert decision.inputs == ((0, "a"),)
    outputs = {d.node: d.outputs for d in made.result.plan.decisions}
    assert (outputs["node_Conv"], outputs["node_Conv_1"]) == (("a",), ())


def test_tensorrt_leaves_a_sum_that_broadcasts_and_one_that_is_excluded():
    text = """g (float[N,8,6,6] x, float[N,8,1,1] z) => (float[N,8,6,6] y) {
        a = Conv (x, w)
        y = Add (a, z)
    }"""
    model = build(text, {"w": normal(8, 8, 1, 1, seed=2)})
    samples = {"x": normal(8, 8, 6, 6, seed=3), "z": normal(8, 8, 1, 1, seed=4)}
    assert quantize_and_check(model, samples, target="tensorrt").ops["QuantizeLinear"] == 1
    model, samples = conv_net()
    made = quantize_and_check(model, samples, target="tensorrt", exclude=["op:Add"])
    assert "node_Add" not in made.quantized()


def test_tensorrt_leaves_conv_transpose_in_float():
    text = """g (float[N,4,5,5] x) => (float[N,3,6,6] y) {
        a = Conv (x, w)
        y = ConvTranspose (a, v)
    }"""
    model = build(text, {"w": normal(6, 4, 1, 1, seed=1), "v": normal(6, 3, 2, 2, seed=2)})
    samples = {"x": normal(8, 4, 5, 5, seed=3)}
    assert "wants its input quantized" in quantize_and_check(model, samples, target="tensorrt").reason(
        "node_ConvTranspose"
    )
    assert "node_ConvTranspose" in quantize_and_check(model, samples).quantized()


def test_openvino_quantizes_behind_a_conv_without_bias_that_several_nodes_read():
    text = """g (float[N,4,5,5] x) => (float[N,8,5,5] y) {
        a = Conv (x, w1)
        s = Mul (a, a)
        t = Add (a, s)
        y = Conv (t, w2)
    }"""
    arrays = {"w1": normal(8, 4, 3, 3, seed=1), "w2": normal(8, 8, 1, 1, seed=2)}
    text = text.replace("Conv (x", "Conv <pads=[1,1,1,1]> (x")
    samples = {"x": normal(8, 4, 5, 5, seed=3)}
    outputs = {}
    for bias in (None, np.zeros(8, np.float32), normal(8, seed=4)):
        with_bias = text if bias is None else text.replace("(x, w1)", "(x, w1, b)")
        model = build(with_bias, arrays if bias is None else arrays | {"b": bias})
        made = quantize_and_check(model, samples, target="openvino")
        outputs[None if bias is None else bool(bias.any())] = made.result.plan.decisions[0].outputs
    assert outputs == {None: ("a",), False: ("a",), True: ()}


@pytest.mark.parametrize(("opset", "expected"), [(11, 13), (13, 13), (17, 17), (20, 17)])
def test_portable_stays_within_opset_17(opset, expected):
    model, samples = conv_net()
    model.opset_import[0].version = opset
    result = qtool.quantize(model, samples, target="portable")
    assert result.model.opset_import[0].version == expected
    assert result.notes == []


def test_portable_says_when_an_operator_needs_a_higher_opset():
    model = build(
        "g (float[N,8] x) => (float[N,8] y) {\n m = MatMul (x, w)\n y = Gelu (m)\n}",
        {"w": normal(8, 8, seed=1)},
        opset=20,
        ir_version=9,
    )
    result = qtool.quantize(model, {"x": normal(8, 8, seed=2)}, target="portable")
    assert result.model.opset_import[0].version == 20
    (note,) = result.notes
    assert "the model keeps opset 20, although target portable asks for 17 at most: Gelu" in note


def test_types_that_are_asked_for_win():
    model, samples = conv_net()
    made = quantize_and_check(model, samples, target="qnn", weights="uint8", activations="uint8")
    assert made.weight("node_Conv").dtype.name == "uint8"
    made = quantize_and_check(model, samples, target="ort-arm", symmetric_activations=False, format="qdq")
    assert made.zero_point("r1") == -128
    assert Counter(made.ops)["QLinearConv"] == 0
