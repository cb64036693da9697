"""Products inside the bodies of If, Loop and Scan, with weights wherever they can be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool import api
from qtool.signal import sqnr_db
from tests.dynamic.support import dynamic
from tests.models import build, normal, run

# the weight of then_branch is a Constant node, that of else_branch is captured; a name stands for two nodes
IF = """m (bool c, float[4,8] x) => (float[4,6] y) {
    [if] y = If(c) <
        then_branch = t () => (float[4,6] a) { [product] h = MatMul(x, u) a = Add(h, b) },
        else_branch = e () => (float[4,6] d) { [product] g = MatMul(x, w) d = Relu(g) }
    >
}"""


def model_with_if() -> onnx.ModelProto:
    model = build(IF, {"u": normal(8, 6), "w": normal(8, 6, seed=1), "b": normal(6, seed=2)})
    branch = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    tensor = next(t for t in model.graph.initializer if t.name == "u")
    constant = onnx.helper.make_node("Constant", [], ["u"], value=tensor)
    branch.node.insert(0, constant)
    model.graph.initializer.remove(tensor)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches(condition):
    done = dynamic(model_with_if(), {"c": np.asarray(condition), "x": normal(4, 8, seed=3)})
    assert done.ops["MatMulInteger"] == 2
    assert done.ops["DynamicQuantizeLinear"] == 2  # one for each branch: only one of them runs
    assert done.sqnr() > 35
    assert done.quantized() == ["product", "product_1"]
    assert [t.name for t in done.model.graph.initializer if t.name.startswith("w_")] == [
        "w_quantized", "w_scale", "w_zero_point",
    ]  # fmt: skip
    assert done.reason("if") == "the nodes inside its subgraphs are decided one by one"


def test_nodes_of_bodies_are_selected_by_the_name_in_the_plan():
    done = dynamic(model_with_if(), {"c": np.asarray(True), "x": normal(4, 8)}, exclude=["product_1"])
    assert done.quantized() == ["product"]
    assert done.reason("product_1") == "excluded by 'product_1'"


def test_inspect_lists_the_nodes_of_bodies():
    found = api.inspect(model_with_if(), dynamic=True)
    assert (found.quantized, found.total) == (2, 5)
    assert len(found.nodes) == 5
    assert [row[0] for row in found.nodes if row[2] == "quantize"] == ["product", "product_1"]


def test_loop_and_scan():
    """A product of the value that a Loop carries, and one of a row that a Scan takes; a Gemm among them."""
    text = """m (int64 n, float[4,8] x) => (float[4,8] y, float[4,6] z) {
        t = Constant<value = bool {1}>()
        y = Loop(n, t, x) <body = l (int64 i, bool go, float[4,8] s) => (bool go_on, float[4,8] next) {
            go_on = Identity(go)
            h = Gemm<transB=1>(s, v, q)
            next = Tanh(h)
        }>
        z = Scan<num_scan_inputs=1, body = r (float[8] row) => (float[6] out) { out = MatMul(row, w) }>(x)
    }"""
    arrays = {"v": normal(8, 8, scale=0.4), "w": normal(8, 6, seed=1), "q": normal(8, seed=2)}
    feeds = {"n": np.asarray(3), "x": normal(4, 8, seed=3)}
    done = dynamic(build(text, arrays), feeds)
    assert done.ops["MatMulInteger"] == 2
    assert min(done.sqnr("y"), done.sqnr("z")) > 30


def test_a_weight_that_a_body_computes_from_constants():
    """Transposed, as exporters leave it: folded, then quantized; nothing unread stays behind."""
    text = """m (bool c, float[4,8] x) => (float[4,6] y) {
        y = If(c) <
            then_branch = t () => (float[4,6] a) { [tr] k = Transpose(w) a = MatMul(x, k) },
            else_branch = e () => (float[4,6] d) { d = MatMul(x, v) }
        >
    }"""
    done = dynamic(build(text, {"w": normal(6, 8), "v": normal(8, 6)}), {"c": np.asarray(True), "x": normal(4, 8)})
    assert done.ops["MatMulInteger"] == 2
    assert not done.ops["Transpose"]


@pytest.mark.skipif(not os.environ.get("QTOOL_ZOO"), reason="no model zoo (set QTOOL_ZOO)")
@pytest.mark.parametrize("include", [None, ["op:Conv", "op:LSTM"]])
def test_silero_vad_under_both_conditions(include, tmp_path):
    """All of its weights lie in the branches of nested Ifs; the sampling rate chooses."""
    source = Path(os.environ["QTOOL_ZOO"]) / "silero_vad.onnx"
    done = qtool.quantize(source, dynamic=True, include=include, output=tmp_path / "q.onnx")
    assert done.quantized == (4 if include is None else 16)
    assert done.bytes_after < (0.8 if include is None else 0.45) * done.bytes_before
    before, after = onnx.load(source), onnx.load(done.model_path)
    for rate, size in ((16000, 576), (8000, 288)):
        x = (0.1 * np.sin(np.arange(size) * 0.3)).astype(np.float32).reshape(1, size) + normal(1, size, scale=0.02)
        feeds = {"input": x, "state": normal(2, 1, 128, scale=0.3), "sr": np.asarray(rate)}
        want, got = run(before, feeds), run(after, feeds, optimize=True)
        assert abs(got["output"] - want["output"]).max() < 0.03, f"probability at {rate} Hz"
        assert sqnr_db(want["stateN"], got["stateN"]) > 25, f"state at {rate} Hz"
