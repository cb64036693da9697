"""Operators that do not fit the rows of test_plan.py: what they become, and that the result is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool.runtime.optimized import optimized_ops
from tests.models import FORMATS, build, normal, product_bound, quantize_and_check, run, uniform

formats = pytest.mark.parametrize("form", FORMATS)


# ------------------------------------------------------------------------------------------------------------- ArgMax


@formats
def test_an_argmax_behind_a_conv_reads_codes_and_gives_the_same_index(form):
    """The pixels between are moved as codes; which class is largest is the question the codes answer, ties included."""
    text = """m (float[N,4,6,6] x) => (int64[N,1,b,c] y) {
        [c] a = Conv<pads=[1,1,1,1]>(x, w) [r] b = Resize<mode="nearest">(a, , k) [m] y = ArgMax<axis=1>(b)
    }"""
    arrays = {"w": normal(8, 4, 3, 3), "k": np.array([1, 1, 2, 2], np.float32)}
    model, x = build(text, arrays), normal(4, 4, 6, 6, seed=1)
    result = qtool.quantize(model, {"x": x}, format=form)
    assert [d.node for d in result.plan.decisions] == ["c", "r", "m"]
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    assert optimized_ops(result.model) == {"QuantizeLinear": 1, "QLinearConv": 1, "Resize": 1, "ArgMax": 1}
    slow, fast = (run(result.model, {"x": x}, optimize=on)["y"] for on in (False, True))
    assert np.array_equal(slow, fast)
    assert (slow == run(model, {"x": x})["y"]).mean() > 0.98


def test_an_argmax_of_floats_stays_float():
    text = "m (float[N,4] x) => (int64[N,1] y) { [a] h = MatMul(x, w) [s] p = Softmax(h) [m] y = ArgMax<axis=1>(p) }"
    result = qtool.quantize(build(text, {"w": normal(4, 4)}), {"x": normal(8, 4)})
    reason = next(s for s in result.skips if s.node == "m")
    assert (reason.reason, reason.expected) == (
        "its input exists in float; quantizing it could make another index",
        True,
    )


# ------------------------------------------------------------------------------------------- products of activations


@formats
@pytest.mark.parametrize(
    ("first", "second", "out"),
    [
        ("N,6,5", "N,5,4", "N,6,4"),
        ("N,2,6,5", "N,2,5,4", "N,2,6,4"),
        ("N,6,5", "5,4", "N,6,4"),
        ("N,6,5", "5", "N,6"),
        ("5", "N,5,4", "N,4"),
        ("N,1,6,5", "3,5,4", "N,3,6,4"),
    ],
)
def test_products_of_two_activations_of_any_rank(form, first, second, out, tmp_path):
    model = build(f"m (float[{first}] a, float[{second}] b) => (float[{out}] y) {{ [p] y = MatMul(a, b) }}")
    a, b = (normal(*[8 if d == "N" else int(d) for d in s.split(",")], seed=i) for i, s in enumerate((first, second)))
    feeds = {"a": a, "b": b}
    checked = quantize_and_check(model, [feeds], feeds=feeds, format=form)
    assert checked.quantized() == ["p"]
    bound = product_bound(np.matmul, a, b, checked.scale("a"), np.asarray(checked.scale("b")), checked.scale("y"))
    assert (checked.error() <= bound).all()
    assert optimized_ops(checked.model)["QLinearMatMul"] == 1


@formats
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(("dims", "kernel", "group"), [("8,9", "6,8,3", 1), ("8,6,6", "8,1,3,3", 8)])
def test_a_conv_whose_weight_the_caller_gives(form, activations, dims, kernel, group):
    rank = ",".join("abcde"[: dims.count(",") + 2])
    text = f"m (float[N,{dims}] x, float[{kernel}] w) => (float[{rank}] y) {{ [c] y = Conv<group={group}>(x, w) }}"
    x, w = normal(4, *map(int, dims.split(",")), seed=1), normal(*map(int, kernel.split(",")), seed=2)
    feeds = {"x": x, "w": w}
    checked = quantize_and_check(build(text), [feeds], feeds=feeds, format=form, activations=activations)
    assert checked.quantized() == ["c"]
    assert optimized_ops(checked.model)["QLinearConv"] == 1
    assert checked.sqnr() >= 34


def test_a_computed_weight_of_unknown_rank_or_with_a_bias_stays_float():
    text = "m (float[N,4,6,6] x, float[4,4,3,3] w) => (float[N,4,4,4] y) { [c] y = Conv(x, w, b) }"
    result = qtool.quantize(build(text, {"b": normal(4)}), dry_run=True, allow_empty=True)
    assert [s.reason for s in result.skips] == ["its weight is not constant, and it has a bias"]


ATTENTION = """m (float[N,6,16] q, float[N,6,16] k, float[N,6,16] v) => (float[N,6,16] y) {
    t = Transpose<perm=[0,2,1]>(k) [scores] s = MatMul(q, t) u = Mul(s, scale) i = Add(u, mask) p = Softmax<axis=-1>(i)
    [values] y = MatMul(p, v)
}"""
MASK = np.triu(np.full((6, 6), -np.inf, np.float32), 1)


@formats
def test_attention_alone_is_quantized_and_its_mask_is_never_part_of_a_range(form):
    """Nothing else is there to quantize; a -inf that became part of a range would make the output all zeros."""
    model = build(ATTENTION, {"scale": np.float32(0.25), "mask": MASK})
    feeds = {name: normal(4, 6, 16, seed=i) for i, name in enumerate("qkv")}
    checked = quantize_and_check(model, [feeds], feeds=feeds, format=form)
    assert [d.node for d in checked.result.plan.decisions if d.op_type == "MatMul"] == ["scores", "values"]
    assert checked.scale("p") == 1 / 256
    assert "i" not in checked.result.plan.tensors
    assert checked.sqnr() >= 35


def test_attention_beside_a_product_with_weights_stays_float():
    """There it would cost most of the accuracy and gain least."""
    text = ATTENTION.replace("[values] y = MatMul(p, v)", "[values] o = MatMul(p, v) [out] y = MatMul(o, w)")
    model = build(text, {"scale": np.float32(0.25), "mask": MASK, "w": normal(16, 16)})
    result = qtool.quantize(model, dry_run=True)
    assert [d.node for d in result.plan.decisions] == ["out"]
    assert {s.node: s.reason for s in result.skips if s.op_type == "MatMul"} == dict.fromkeys(
        ("scores", "values"), "attention scores stay float"
    )


def test_a_hidden_value_of_any_size_does_not_starve_the_others():
    """A mask hides the last keys; codes for a range of 1000 would make zeros of all values below 2."""
    mask = np.where(np.arange(6) < 4, 0, -np.inf).astype(np.float32)
    model = build(ATTENTION, {"scale": np.float32(0.25), "mask": mask})
    feeds = {name: normal(4, 6, 16, seed=i) for i, name in enumerate("qkv")}
    feeds["v"][:, 4:] = 1000
    checked = quantize_and_check(model, [feeds], feeds=feeds, one_code=False)
    assert [d.node for d in checked.result.plan.decisions if d.op_type == "MatMul"] == ["scores"]
    assert checked.reason("values") == "'v' spans so much that most of its values would become 0"
    assert checked.sqnr() >= 35


def test_attention_over_more_keys_than_there_are_codes_stays_float():
    """Each of 1024 equal probabilities is less than half a step of 1/256."""
    text = ATTENTION.replace("N,6,16] k, float[N,6,16] v", "N,1024,16] k, float[N,1024,16] v")
    text = text.replace(" i = Add(u, mask) p = Softmax<axis=-1>(i)", " p = Softmax<axis=-1>(u)")
    model = build(text, {"scale": np.float32(0.01)})
    feeds = {"q": normal(1, 6, 16), "k": normal(1, 1024, 16, seed=1), "v": normal(1, 1024, 16, seed=2)}
    checked = quantize_and_check(model, [feeds], feeds=feeds)
    assert checked.reason("values") == "'p' spans so much that most of its values would become 0"
    assert checked.sqnr() >= 35


# ------------------------------------------------------------------------------------------------------------- tables

ROWS, WIDTH = 4096, 64  # the least that counts as large


def table() -> np.ndarray:
    """Rows whose magnitudes differ by far, as those of words do."""
    return normal(ROWS, WIDTH) * np.exp(normal(ROWS, 1, seed=1) / 2).astype(np.float32)


@formats
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_table_is_gathered_as_codes(form, opset, per_channel):
    text = "m (int64[N,5] ids) => (float[N,5,8] y) { [g] e = Gather(t, ids) [p] y = MatMul(e, w) }"
    arrays = {"t": table(), "w": normal(WIDTH, 8)}
    ids = np.random.default_rng(0).integers(0, ROWS, (16, 5))
    model = build(text, arrays, opset=opset, ir_version=10)
    result = qtool.quantize(model, {"ids": ids}, format=form, per_channel=per_channel)
    assert [(d.node, str(d.form)) for d in result.plan.decisions] == [("g", "weight-only"), ("p", "operator")]
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    gather = next(n for n in result.model.graph.node if n.name == "g")
    stored = {t.name: t for t in result.model.graph.initializer}
    assert stored[gather.input[0]].data_type == onnx.TensorProto.INT8
    assert "t" not in stored
    ops = [n.op_type for n in result.model.graph.node if n.name.startswith("g_")]
    scaled = ["Gather", "DequantizeLinear"] if opset >= 21 else ["Gather", "Cast", "Mul"]
    wanted = scaled if per_channel else ["DequantizeLinear"]
    assert sorted(ops) == sorted(wanted)
    slow, fast = (run(result.model, {"ids": ids}, optimize=on)["y"] for on in (False, True))
    expected = run(model, {"ids": ids})["y"]
    for y in (slow, fast):
        noise = np.square(y.astype(np.float64) - expected).sum()
        assert 10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise) >= (31 if per_channel else 26)
    assert len(result.model.SerializeToString()) < 0.3 * len(model.SerializeToString())


def test_the_rows_of_a_table_are_exact_products_of_codes_and_scales():
    text = "m (int64[N] ids, float[N,4] x) => (float[N,64] e, float[N,4] y) { [g] e = Gather(t, ids) y = MatMul(x, w) }"
    t, ids = table(), np.arange(16)
    feeds = {"ids": ids, "x": normal(16, 4)}
    for opset in (17, 21):
        model = build(text, {"t": t, "w": normal(4, 4)}, opset=opset, ir_version=10)
        result = qtool.quantize(model, feeds)
        assert result.model is not None
        scale = np.abs(t[ids]).max(axis=1, keepdims=True) / np.float32(127)
        expected = np.rint(t[ids] / scale) * scale
        assert np.array_equal(run(result.model, feeds)["e"], expected.astype(np.float32))
        assert [o.name for o in result.model.graph.output] == ["e", "y"]


@pytest.mark.parametrize(
    ("body", "rows", "why"),
    [
        ("e = Gather(t, ids)", 100, "it does not read rows of a large table"),
        ("e = Gather<axis=1>(t, ids)", ROWS, "it does not read rows of a large table"),
        ("e = Gather(t, ids) z = ReduceSum(t)", ROWS, "other operators read its table in float"),
    ],
)
def test_tables_that_stay_float(body, rows, why):
    also = ", float[a,b] z" if "z =" in body else ""
    sideways = "axis" in body
    shape, depth = ((WIDTH, rows), 8) if sideways else ((rows, WIDTH), WIDTH)
    text = f"m (int64[{depth}] ids) => (float[c,d] y{also}) {{ {body.replace('e =', '[g] e =')} y = MatMul(e, w) }}"
    arrays = {"t": normal(*shape), "w": normal(depth, 4)}
    result = qtool.quantize(build(text, arrays), dry_run=True)
    assert next(s.reason for s in result.skips if s.node == "g") == why


@formats
def test_where_is_fused_and_its_mask_is_refused(form, tmp_path: Path):
    text = """m (float[N,4,6,6] x, bool[6,6] c) => (float[N,4,6,6] y) {
        a = Conv<pads=[1,1,1,1]>(x, u) [w] b = Where(c, a, k) y = Conv<pads=[1,1,1,1]>(b, v)
    }"""
    arrays = {"u": normal(4, 4, 3, 3), "v": normal(4, 4, 3, 3, seed=1)}
    feeds = {"x": normal(4, 4, 6, 6, seed=2), "c": uniform(6, 6, seed=3) > 0.3}
    checked = quantize_and_check(build(text, {**arrays, "k": np.float32(0.5)}), [feeds], feeds=feeds, format=form)
    assert "w" in checked.quantized()
    assert optimized_ops(checked.model)["QLinearWhere"] == 1
    assert checked.sqnr() >= 30
    masked = qtool.quantize(build(text, {**arrays, "k": np.float32(-np.inf)}), dry_run=True)
    assert "mask" in next(s.reason for s in masked.skips if s.node == "w")
