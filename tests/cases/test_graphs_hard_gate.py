"""HardSwish as exporters write it out: x * clip(x + 3, 0, 6) / 6, and squeeze-and-excite around it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.models import build, normal, quantize_and_check, run

formats = pytest.mark.parametrize("form", ["qlinear", "qdq"])
BODY = """
    [c1] h = Conv<pads=[1,1,1,1]>(x, w1)
    [plus] h3 = Add(h, three)
    [clip] gate = Clip(h3, zero, six)
    [mul] m = Mul(h, gate)
    [div] s = Div(m, six)
"""
ARRAYS = {
    "w1": normal(8, 4, 3, 3, scale=0.6),
    "w2": normal(4, 8, 3, 3, seed=1, scale=0.3),
    "three": np.float32(3),
    "zero": np.float32(0),
    "six": np.float32(6),
}
X = {"x": normal(4, 4, 8, 8, seed=2)}


def hard_swish(tail: str = "[c2] y = Conv<pads=[1,1,1,1]>(s, w2)", outputs: str = "float[N,4,8,8] y", **arrays):
    return build(f"m (float[N,4,8,8] x) => ({outputs}) {{ {BODY} {tail} }}", {**ARRAYS, **arrays})


@formats
def test_the_whole_chain_is_computed_on_codes(form):
    checked = quantize_and_check(hard_swish(), X, format=form)
    assert {"c1", "plus", "clip", "mul", "div", "c2"} <= set(checked.quantized())
    assert checked.ops["Div"] == 0
    assert checked.sqnr() >= 30


@formats
def test_the_division_is_a_scale(form):
    """Codes of s = m/6 under scale t are the codes of m under 6t: the writer and the readers differ by the factor."""
    checked = quantize_and_check(hard_swish(), X, format=form)
    constants = checked.initializers
    made_by = {o: n.op_type for n in checked.model.graph.node for o in n.output}
    (writer,) = (
        n for n in checked.model.graph.node if n.op_type == "QuantizeLinear" and made_by.get(n.input[0]) == "Mul"
    )
    assert constants[writer.input[1]] == np.float32(checked.scale("s")) * np.float32(6)
    assert constants[writer.input[2]] == checked.zero_point("s")


@formats
def test_no_codes_below_minus_three(form):
    """HardSwish is 0 for x <= -3: the range of its input ends there although the data go lower."""
    h = run(hard_swish("[c2] y = Identity(h)", "float[N,8,8,8] y"), X)["y"]
    assert h.min() < -6
    low, high = quantize_and_check(hard_swish(), X, format=form).params("h").range
    assert -3.1 < low <= -2.9
    assert high == pytest.approx(h.max(), rel=0.01)


@formats
def test_another_reader_needs_the_whole_range(form):
    model = hard_swish("[c2] a = Conv<pads=[1,1,1,1]>(s, w2) [c3] b = Conv<pads=[1,1,1,1]>(h, w2) [add] y = Add(a, b)")
    low, _ = quantize_and_check(model, X, format=form).params("h").range
    assert low < -6


@formats
@pytest.mark.parametrize("divisor", [-6.0, 1e-30])
def test_a_division_that_is_no_scale_stays(form, divisor):
    """By a negative number the codes would be mirrored; by a tiny one the scale would leave float32."""
    model = hard_swish()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(divisor), "by"))
    next(n for n in model.graph.node if n.op_type == "Div").input[1] = "by"
    checked = quantize_and_check(model, X, format=form)
    assert "div" not in checked.quantized()
    assert checked.ops["Div"] == 1


@formats
def test_a_division_with_two_float_readers_gives_both_the_same_values(form):
    model = hard_swish("[c2] y = Conv<pads=[1,1,1,1]>(s, w2) [e] z = Exp(s)", "float[N,4,8,8] y, float[N,8,8,8] z")
    checked = quantize_and_check(model, X, format=form)
    assert "div" in checked.quantized()
    assert checked.sqnr("z") >= 30


@formats
def test_a_rescaled_graph_output(form):
    model = hard_swish("[c2] y = Conv<pads=[1,1,1,1]>(s, w2)", "float[N,4,8,8] y, float[N,8,8,8] s")
    checked = quantize_and_check(model, X, format=form)
    assert checked.sqnr("s") >= 30


@formats
def test_a_multiplication_behind_the_division_is_the_same_scale(form):
    """A learnable factor behind a HardSwish: the product of both constants is what the writer's scale has more."""
    model = hard_swish("[mul2] t = Mul(half, s) [c2] y = Conv<pads=[1,1,1,1]>(t, w2)", half=np.float32([0.375]))
    checked = quantize_and_check(model, X, format=form)
    assert {"mul", "div", "mul2", "c2"} <= set(checked.quantized())
    assert checked.ops["Div"] == 0
    # what is left is x * gate
    assert checked.ops["Mul"] + checked.ops["QLinearMul"] == 1
    made_by = {o: n.op_type for n in checked.model.graph.node for o in n.output}
    (writer,) = (
        n for n in checked.model.graph.node if n.op_type == "QuantizeLinear" and made_by.get(n.input[0]) == "Mul"
    )
    assert checked.initializers[writer.input[1]] == np.float32(checked.scale("t")) * np.float32(16)
    assert checked.sqnr() >= 30


@formats
@pytest.mark.parametrize("by", [-0.5, 0.0, 1e-30])
def test_a_multiplication_that_is_no_scale_stays(form, by):
    model = hard_swish("[mul2] t = Mul(s, by) [c2] y = Conv<pads=[1,1,1,1]>(t, w2)", by=np.float32(by))
    checked = quantize_and_check(model, X, format=form)
    assert "div" in checked.quantized()
    assert checked.ops["Mul"] + checked.ops["QLinearMul"] == 2


@formats
def test_a_multiplication_that_is_excluded_stays(form):
    model = hard_swish("[mul2] t = Mul(s, half) [c2] y = Conv<pads=[1,1,1,1]>(t, w2)", half=np.float32(0.5))
    checked = quantize_and_check(model, X, format=form, exclude=["mul2"])
    assert "mul2" not in checked.quantized()
    assert checked.sqnr() >= 30


@formats
def test_a_division_that_others_read_is_not_taken_with_the_multiplication(form):
    model = hard_swish(
        """[mul2] t = Mul(s, half) [c2] a = Conv<pads=[1,1,1,1]>(t, w2) [c3] b = Conv<pads=[1,1,1,1]>(s, w2)
        [add] y = Add(a, b)""",
        half=np.float32(0.5),
    )
    checked = quantize_and_check(model, X, format=form)
    assert {"div", "mul2"} <= set(checked.quantized())
    assert checked.sqnr() >= 30


@formats
def test_squeeze_and_excite(form):
    model = build(
        """m (float[N,4,8,8] x) => (float[N,4,8,8] y) {
            [c1] h = Conv<pads=[1,1,1,1]>(x, w1)
            [relu] a = Relu(h)
            [pool] p = GlobalAveragePool(a)
            [se1] q = Conv(p, e1)
            [se_relu] r = Relu(q)
            [se2] t = Conv(r, e2)
            [gate] g = HardSigmoid<alpha=0.2, beta=0.5>(t)
            [scale] s = Mul(a, g)
            [c2] y = Conv<pads=[1,1,1,1]>(s, w2)
        }""",
        {
            "w1": ARRAYS["w1"], "w2": ARRAYS["w2"],
            "e1": normal(2, 8, 1, 1, seed=3, scale=0.5), "e2": normal(8, 2, 1, 1, seed=4, scale=0.5),
        },
    )  # fmt: skip
    checked = quantize_and_check(model, X, format=form)
    assert {"c1", "relu", "pool", "se1", "se2", "scale", "c2"} <= set(checked.quantized())
    assert "gate" not in checked.quantized()
    assert checked.params("g").range == (0.0, pytest.approx(255 / 256))
    assert checked.sqnr() >= 30
