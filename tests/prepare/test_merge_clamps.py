"""Relu6 in its many spellings becomes one node."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.prepare.merge_clamps import MergeClampsPass
from tests.models import build as build_checked
from tests.models import normal, quantize_and_check

X = {"x": np.asarray([[-3.0, -0.5, 0.0, 0.5, 5.0, 6.5, 9.0]], np.float32)}
NUMBERS = {
    "zero": np.asarray(0, np.float32), "six": np.asarray([6], np.float32), "one": np.asarray([[[1]]], np.float32),
    "two": np.asarray(2, np.float32), "row": np.zeros((1, 7), np.float32), "inf": np.asarray(np.inf, np.float32),
    "nan": np.asarray(np.nan, np.float32),
}  # fmt: skip


def with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(proto)


# text -> (operators, bounds of the Clip)
MERGED = {
    "m = Max(x, zero) y = Min(m, six)": (["Clip"], [0.0, 6.0]),
    "m = Max(zero, x) y = Min(six, m)": (["Clip"], [0.0, 6.0]),
    "m = Min(x, six) y = Max(m, zero)": (["Clip"], [0.0, 6.0]),
    "m = Relu(x) y = Min(m, six)": (["Clip"], [0.0, 6.0]),
    "m = Relu(x) y = Clip(m, , six)": (["Clip"], [0.0, 6.0]),
    "m = Clip(x, zero, six) y = Relu(m)": (["Clip"], [0.0, 6.0]),
    "m = Relu(x) n = Clip(m, two, six) y = Clip(n, zero, two)": (["Clip"], [2.0, 2.0]),
    "m = Min(x, zero) y = Max(m, two)": (["Clip"], [2.0, 2.0]),
    "m = Relu(x) y = Relu(m)": (["Relu"], None),
    "y = Max(x, zero)": (["Relu"], None),
    "m = Relu(x) y = Min(m, inf)": (["Relu"], None),
    "m = Min(x, six) y = Clip(m, , two)": (["Clip"], [None, 2.0]),
}
KEPT = [
    "y = Min(x, six)",
    "y = Max(x, two)",
    "m = Max(x, row) y = Min(m, six)",
    "m = Max(x, zero, two) y = Min(m, six)",
    "m = Relu(x) y = Min(m, nan)",
    "m = Relu(x) n = Min(m, six) y = Add(m, n)",
    "y = Clip(x, six, two)",
]


@pytest.mark.parametrize("text", MERGED)
def test_merged(build, apply, same, text):
    proto = build(f"g (float[1,7] x) => (float[1,7] y) {{ {text} }}", NUMBERS)
    step = MergeClampsPass()
    model, modified = apply(with_shapes(proto), step)
    ops, bounds = MERGED[text]
    assert modified
    assert [n.op_type for n in model.graph] == ops
    if bounds is not None:
        (clip,) = model.graph
        found = [None if v is None else float(v.const_value.numpy()) for v in clip.inputs[1:]]
        assert found == bounds
        assert all(v is None or v.const_value.numpy().shape == () for v in clip.inputs[1:])
    assert step.count == len(text.split("(")) - 1
    same(proto, model, X)


@pytest.mark.parametrize("text", KEPT)
def test_kept(build, apply, text):
    proto = build(f"g (float[1,7] x) => (float[1,7] y) {{ {text} }}", NUMBERS)
    before = [n.op_type for n in proto.graph.node]
    model, _ = apply(with_shapes(proto), MergeClampsPass())
    assert [n.op_type for n in model.graph] == before


def test_a_bound_that_adds_a_dimension_and_a_middle_that_is_read_stay(build, apply):
    text = "g (float[1,7] x) => (float[1,1,7] y) { m = Relu(x) y = Min(m, one) }"
    model, _ = apply(with_shapes(build(text, NUMBERS)), MergeClampsPass())
    assert [n.op_type for n in model.graph] == ["Relu", "Min"]
    text = "g (float[1,7] x) => (float[1,7] m, float[1,7] y) { m = Relu(x) y = Min(m, six) }"
    model, _ = apply(with_shapes(build(text, NUMBERS)), MergeClampsPass())
    assert [n.op_type for n in model.graph] == ["Relu", "Min"]


def test_integers_and_captured_middles_stay(build, apply):
    text = """g (int64[3] x, float[1,7] z, bool c) => (int64[3] y, float[1,7] w) {
        m = Max(x, low) y = Min(m, high) r = Relu(z) w = If(c) <
            then_branch = t () => (float[1,7] a) { a = Min(r, six) },
            else_branch = e () => (float[1,7] b) { b = Neg(r) }
        > }"""
    bounds = {"low": np.asarray(0, np.int64), "high": np.asarray(6, np.int64)}
    model, _ = apply(with_shapes(build(text, NUMBERS | bounds)), MergeClampsPass(bodies=True))
    assert [n.op_type for n in model.graph] == ["Max", "Min", "Relu", "If"]


def test_relu6_of_min_and_max_is_part_of_the_conv():
    text = """m (float[1,4,8,8] x) => (float[1,4,8,8] y) {
        [conv] h = Conv<pads=[1,1,1,1]>(x, w) m = Max(h, zero) r = Min(m, six) y = Conv<pads=[1,1,1,1]>(r, w)
    }"""
    arrays = {"w": normal(4, 4, 3, 3), "zero": np.asarray(0, np.float32), "six": np.asarray(6, np.float32)}
    done = quantize_and_check(build_checked(text, arrays), {"x": normal(1, 4, 8, 8)})
    assert done.ops["QLinearConv"] == 2
    assert len(done.quantized()) == 3
    assert "wrote 2 clamps (Min, Max, Relu, Clip) as Relu or Clip" in done.result.actions


def test_half_precision(build, apply, same):
    proto = build(
        "g (float16[1,7] x) => (float16[1,7] y) { m = Relu(x) y = Min(m, six) }", {"six": np.asarray(6, np.float16)}
    )
    model, _ = apply(with_shapes(proto), MergeClampsPass())
    assert [n.op_type for n in model.graph] == ["Clip"]
    assert next(iter(model.graph)).inputs[2].dtype == ir.DataType.FLOAT16
    same(proto, model, {"x": X["x"].astype(np.float16)})
