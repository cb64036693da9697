"""Hard gates as exporters write them out: x * clip(x + 3, 0, 6) / 6 and its kin."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import FORMATS, build, normal, quantize_and_check

formats = pytest.mark.parametrize("form", FORMATS)
W = {"w1": normal(4, 4, 3, 3, scale=0.5), "w2": normal(4, 4, 3, 3, seed=1, scale=0.2)}


def gated(gate: str, *, extra: str = "") -> str:
    return f"""m (float[N,4,6,6] x) => (float[N,4,6,6] y{extra}) {{
        [c1] a = Conv<pads=[1,1,1,1]>(x, w1)
        {gate}
        [c2] y = Conv<pads=[1,1,1,1]>(d, w2)
    }}"""


HARD_SWISH = "[add] s = Add(a, c) [clip] g = Clip(s, lo, hi) [mul] m = Mul(a, g) [div] d = Div(m, six)"


def bounds(c: float = 3.0, high: float = 6.0, six: float = 6.0) -> dict[str, np.ndarray]:
    return {"c": np.float32(c), "lo": np.float32(0), "hi": np.float32(high), "six": np.float32(six)}


@formats
@pytest.mark.parametrize("activations", ["uint8", "int8", "symmetric"])
def test_hard_swish(form, activations):
    symmetric = activations == "symmetric"
    options = {"activations": "int8" if symmetric else activations, "symmetric_activations": symmetric}
    model = build(gated(HARD_SWISH), W | bounds())
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2, scale=2)}, format=form, **options)
    assert {"c1", "mul", "div", "c2"} <= set(checked.quantized())
    assert checked.ops["Div"] == 0
    if not symmetric:
        assert checked.params("a").range[0] == pytest.approx(-3, abs=checked.scale("a"))
    assert checked.sqnr() >= 28


@formats
@pytest.mark.parametrize(("c", "high"), [(-3.0, 6.0), (-100.0, 6.0), (0.0, 1.0), (0.5, 0.25)])
def test_a_gate_that_opens_elsewhere(form, c, high):
    """With a negative offset the gate opens above 0, which a range must include all the same."""
    model = build(gated(HARD_SWISH), W | bounds(c, high))
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2, scale=2)}, format=form)
    low, high_ = checked.params("a").range
    assert low <= 0 <= high_
    if c == -100.0:
        assert not checked.got["y"].any()
    else:
        assert checked.sqnr() >= 24


@formats
@pytest.mark.parametrize(
    ("gate", "extra"),
    [
        (HARD_SWISH + " [n] z = Neg(a)", ", float[N,4,6,6] z"),  # another reader
        (HARD_SWISH.replace("[add]", "[n] z = Neg(a) [add]"), ", float[N,4,6,6] z"),
        ("[add] s = Add(a, c) [clip] g = Clip(s, lo, hi) [mul] m = Add(a, g) [div] d = Div(m, six)", ""),  # no product
        (
            "[add] s = Add(a, c) [clip] g = Clip(s, , hi) [mul] m = Mul(a, g) [div] d = Div(m, six)",
            "",
        ),  # no lower bound
    ],
)
def test_what_is_no_gate_keeps_its_range(form, gate, extra):
    arrays = {k: v for k, v in bounds().items() if k != "lo" or "lo" in gate}
    model = build(gated(gate, extra=extra), W | arrays)
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2, scale=2)}, format=form)
    assert checked.params("a").range[0] < -6
    for name in checked.expected:
        assert checked.sqnr(name) >= 28


@formats
@pytest.mark.parametrize("six", [6.0, 0.1, 3e-7, 1e7, -2.0])
@pytest.mark.parametrize("operation", ["Add", "Mul"])
def test_a_division_by_a_constant(form, six, operation):
    """It becomes another scale where that stays an ordinary number and of the same sign, and stays float elsewhere."""
    model = build(gated(f"[op] m = {operation}(a, a) [div] d = Div(m, six)"), W | {"six": np.float32(six)})
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    absorbed = six in (6.0, 0.1)
    assert checked.ops["Div"] == (not absorbed)
    assert ("div" in checked.quantized()) is absorbed
    assert checked.sqnr() >= 26


@formats
def test_a_divided_product_that_others_read(form):
    model = build(
        gated("[op] m = Mul(a, a) [div] d = Div(m, six) [n] z = Neg(m)", extra=", float[N,4,6,6] z"),
        W | {"six": np.float32(6)},
    )
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.ops["Div"] == 1
    assert checked.sqnr("y") >= 26
    assert checked.sqnr("z") >= 30


@formats
def test_a_divided_product_that_is_a_graph_output(form):
    body = "[op] m = Mul(a, a) [div] d = Div(m, six)"
    model = build(gated(body, extra=", float[N,4,6,6] d"), W | {"six": np.float32(6)})
    checked = quantize_and_check(model, {"x": normal(4, 4, 6, 6, seed=2)}, format=form)
    assert checked.sqnr("d") >= 30
    assert checked.sqnr("y") >= 26
