"""A small model of each kind of graph: what is quantized and what is not, fused as predicted, close to float."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fusion import check_fusion
from tests.models import FORMATS, Arrays, Checked, build, normal, quantize_and_check, uniform

formats = pytest.mark.parametrize("form", FORMATS)


def checked_kind(text: str, arrays: Arrays, feeds: Arrays, form: str, *, agreement_db: float = 30.0) -> Checked:
    """Quantized under all checks, and fused as predicted."""
    model = build(text, arrays, opset=18)
    checked = quantize_and_check(model, [feeds], feeds=feeds, format=form, one_code=False, agreement_db=agreement_db)
    check_fusion(checked.result, checked.model)
    assert checked.result.fusion is not None
    assert checked.result.fusion.unfused == ()
    return checked


def weights(*shapes: tuple[int, ...], names: str) -> dict[str, np.ndarray]:
    """Weights that keep magnitudes as they are."""
    return {
        name: normal(*shape, seed=i, scale=float(np.prod(shape[1:])) ** -0.5)
        for i, (name, shape) in enumerate(zip(names.split(), shapes, strict=True))
    }


@formats
def test_squeeze_and_excite(form):
    """The gate of one value a channel is quantized with the map that it scales; nothing in it computes in float."""
    text = """m (float[N,4,8,8] x) => (float[N,4,8,8] y) {
        [expand] a = Conv<pads=[1,1,1,1]>(x, w1, b1) [relu] r = Relu(a)
        [squeeze] s = GlobalAveragePool(r) [reduce] q = Conv(s, w2) [relu2] t = Relu(q) [excite] e = Conv(t, w3)
        [gate] g = Sigmoid(e) [scale] m = Mul(r, g) [project] y = Conv(m, w4)
    }"""
    arrays = weights((16, 4, 3, 3), (4, 16, 1, 1), (16, 4, 1, 1), (4, 16, 1, 1), names="w1 w2 w3 w4")
    checked = checked_kind(text, {**arrays, "b1": normal(16, scale=0.1)}, {"x": normal(4, 4, 8, 8)}, form)
    assert checked.result.by_op == {
        "Conv": (4, 4), "Relu": (2, 2), "GlobalAveragePool": (1, 1), "Mul": (1, 1), "Sigmoid": (1, 1),
    }  # fmt: skip
    assert checked.scale("g") == 1 / 256
    assert checked.sqnr() >= 32


@formats
def test_residual(form):
    """Both branches are codes, the sum is a QLinearAdd, and its Relu is part of it."""
    text = """m (float[N,8,8,8] x) => (float[N,8,4,4] y) {
        [c1] a = Conv<pads=[1,1,1,1]>(x, w1) [r1] b = Relu(a) [c2] c = Conv<pads=[1,1,1,1]>(b, w2)
        [add] s = Add(c, x) [r2] t = Relu(s)
        [c3] d = Conv<pads=[1,1,1,1], strides=[2,2]>(t, w3) [down] e = Conv<strides=[2,2]>(t, w4)
        [add2] u = Add(d, e) [r3] v = Relu(u) [last] y = Conv(v, w5)
    }"""
    shapes = ((8, 8, 3, 3), (8, 8, 3, 3), (8, 8, 3, 3), (8, 8, 1, 1), (8, 8, 1, 1))
    checked = checked_kind(text, weights(*shapes, names="w1 w2 w3 w4 w5"), {"x": normal(4, 8, 8, 8)}, form)
    assert checked.result.by_op == {"Conv": (5, 5), "Relu": (3, 3), "Add": (2, 2)}
    assert checked.result.fusion is not None
    assert checked.result.fusion.operators() == {"QLinearConv": 5, "QLinearAdd": 2}
    assert checked.sqnr() >= 31


@formats
def test_inverted_bottleneck(form):
    """A HardSwish written out: its division is another scale, and no float operator is left."""
    text = """m (float[N,4,8,8] x) => (float[N,4,8,8] y) {
        [expand] a = Conv(x, w1, b1)
        [shift] s = Add(a, three) [clip] c = Clip(s, zero, six) [swish] m = Mul(a, c) [sixth] h = Div(m, six)
        [depthwise] d = Conv<group=24, pads=[1,1,1,1]>(h, w2, b2) [relu6] r = Clip(d, zero, six)
        [project] p = Conv(r, w3) [skip] y = Add(x, p)
    }"""
    arrays = weights((24, 4, 1, 1), (24, 1, 3, 3), (4, 24, 1, 1), names="w1 w2 w3")
    arrays |= {"b1": normal(24, scale=0.1), "b2": normal(24, scale=0.1, seed=1)}
    arrays |= {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    checked = checked_kind(text, arrays, {"x": normal(4, 4, 8, 8, scale=2)}, form)
    assert {"expand", "shift", "clip", "swish", "sixth", "depthwise", "relu6", "project"} <= set(checked.quantized())
    assert checked.reason("skip") == "no quantized operator wants its output"
    assert checked.sqnr() >= 35


@formats
def test_attention(form):
    """The projections are integer products; scores, softmax, normalization and residual stream stay float."""
    text = """m (float[N,6,16] x) => (float[N,6,16] y) {
        [norm] n = LayerNormalization(x, g, o)
        [q] qm = MatMul(n, wq) [qb] q = Add(qm, bq) [k] k = MatMul(n, wk) [v] v = MatMul(n, wv)
        [q4] qs = Reshape(q, heads) [k4] ks = Reshape(k, heads) [v4] vs = Reshape(v, heads)
        [qt] qh = Transpose<perm=[0,2,1,3]>(qs) [kt] kh = Transpose<perm=[0,2,3,1]>(ks)
        [vt] vh = Transpose<perm=[0,2,1,3]>(vs)
        [scores] s = MatMul(qh, kh) [scale] c = Mul(s, half) [masked] i = Add(c, mask) [soft] p = Softmax<axis=-1>(i)
        [values] z = MatMul(p, vh) [back] zt = Transpose<perm=[0,2,1,3]>(z) [merge] zm = Reshape(zt, flat)
        [out] u = MatMul(zm, wo) [residual] y = Add(x, u)
    }"""
    arrays = weights(*[(16, 16)] * 4, names="wq wk wv wo")
    arrays |= {"g": np.ones(16, np.float32), "o": np.zeros(16, np.float32), "bq": normal(16, scale=0.1)}
    arrays |= {"heads": np.array([0, 0, 4, 4]), "flat": np.array([0, 0, 16]), "half": np.float32(0.5)}
    arrays["mask"] = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    checked = checked_kind(text, arrays, {"x": normal(8, 6, 16)}, form)
    # what only moves the heads back is moved as codes: a quantized product reads it
    assert [d.node for d in checked.result.plan.decisions] == ["q", "k", "v", "back", "merge", "out"]
    assert list(checked.result.plan.tensors) == ["n", "z", "zt", "zm"]
    assert checked.ops["QuantizeLinear"] == {"qlinear": 2, "qdq": 4}[form]
    assert checked.reason("scores") == checked.reason("values") == "attention scores stay float"
    assert checked.sqnr() >= 38


@formats
def test_rms_norm_rope_and_swiglu(form):
    """A block of a language model: eight integer products, and everything between them float, without Q and DQ."""
    text = """m (int64[N,6] ids) => (float[N,6,64] logits) {
        [embed] x = Gather(table, ids)
        [square] x2 = Mul(x, x) [mean] ms = ReduceMean<keepdims=1>(x2, last) [eps] me = Add(ms, epsilon)
        [root] rs = Sqrt(me) [norm] xn = Div(x, rs) [gain] n = Mul(xn, g)
        [q] q = MatMul(n, wq) [k] k = MatMul(n, wk) [v] v = MatMul(n, wv)
        [qa, ] qa, qb = Split<axis=-1, num_outputs=2>(q) [qn] qnb = Neg(qb) [qr] qr = Concat<axis=-1>(qnb, qa)
        [qc] qcos = Mul(q, cos) [qs] qsin = Mul(qr, sin) [qrot] qe = Add(qcos, qsin)
        [ka] ka, kb = Split<axis=-1, num_outputs=2>(k) [kn] knb = Neg(kb) [kr] kr = Concat<axis=-1>(knb, ka)
        [kc] kcos = Mul(k, cos) [ks] ksin = Mul(kr, sin) [krot] ke = Add(kcos, ksin)
        [kt] kh = Transpose<perm=[0,2,1]>(ke) [scores] s = MatMul(qe, kh) [scale] sc = Mul(s, quarter)
        [soft] p = Softmax<axis=-1>(sc) [values] z = MatMul(p, v) [o] u = MatMul(z, wo) [res] h = Add(x, u)
        [gate] ga = MatMul(h, wg) [up] ub = MatMul(h, wu) [sig] si = Sigmoid(ga) [silu] sl = Mul(ga, si)
        [glu] gl = Mul(sl, ub) [down] dn = MatMul(gl, wd) [res2] r2 = Add(h, dn) [head] logits = MatMul(r2, wh)
    }""".replace("[qa, ]", "[qsplit]").replace("[ka]", "[ksplit]")
    names = "wq wk wv wo wg wu wd wh"
    arrays = weights(*[(16, 16)] * 4, (16, 32), (16, 32), (32, 16), (16, 64), names=names)
    angles = np.arange(6)[:, None] * (0.5 ** np.arange(8))[None]
    twice = np.concatenate([angles, angles], axis=1)
    arrays |= {"cos": np.cos(twice).astype(np.float32), "sin": np.sin(twice).astype(np.float32)}
    arrays |= {"table": normal(100, 16, seed=20), "last": np.array([-1]), "epsilon": np.float32(1e-6)}
    arrays |= {"g": uniform(16, low=0.5, high=1.5), "quarter": np.float32(0.25)}
    ids = np.random.default_rng(0).integers(0, 100, (16, 6))
    checked = checked_kind(text, arrays, {"ids": ids}, form)
    products = ["q", "k", "v", "o", "gate", "up", "down", "head"]
    assert [d.node for d in checked.result.plan.decisions] == products
    assert list(checked.result.plan.tensors) == ["n", "z", "h", "gl", "r2", "logits"]
    assert checked.reason("embed") == "it does not read rows of a large table"
    assert checked.sqnr() >= 32


def detector(spread: float) -> tuple[str, dict[str, np.ndarray]]:
    """A head whose boxes are in pixels, beside scores between 0 and 1; both are read by a product behind it."""
    text = """m (float[N,8,4,4] x) => (float[N,16,5] y) {
        [stem] f = Conv<pads=[1,1,1,1]>(x, w1) [relu] r = Relu(f)
        [boxes] b = Conv(r, wb) [scores] s = Conv(r, ws) [sig] p = Sigmoid(s)
        [join] j = Concat<axis=1>(b, p) [flat] t = Reshape(j, to) [turn] u = Transpose<perm=[0,2,1]>(t)
        [mix] y = MatMul(u, wm)
    }"""
    arrays = weights((8, 8, 3, 3), (4, 8, 1, 1), (2, 8, 1, 1), (6, 5), names="w1 wb ws wm")
    arrays["wb"] = arrays["wb"] * np.float32(spread)
    return text, arrays | {"to": np.array([0, 6, 16])}


@formats
@pytest.mark.parametrize(("spread", "joined"), [(1.0, "mover"), (8.0, "elementwise"), (600.0, None)])
def test_a_detector_head(form, spread, joined):
    """One scale where it fits both, two where it does not, and no codes at all where pixels would starve the scores."""
    text, arrays = detector(spread)
    checked = checked_kind(text, arrays, {"x": normal(8, 8, 4, 4)}, form)
    forms = {d.node: str(d.form) for d in checked.result.plan.decisions}
    assert forms.get("join") == joined
    if joined == "mover":
        assert checked.params("b") == checked.params("p") == checked.params("j")
    elif joined == "elementwise":
        assert checked.scale("p") == 1 / 256
        assert checked.scale("b") > 4 * checked.scale("p")
    else:
        assert "the ranges of its inputs differ by a factor of" in checked.reason("join")
    assert {"stem", "boxes", "scores", "mix"} <= forms.keys()
    assert checked.sqnr() >= 30


@formats
def test_a_float_clamp_behind_a_product_does_not_stop_its_fusion(form):
    """onnxruntime takes a Relu or Clip for a part of the product, waits for a QuantizeLinear, and fuses nothing."""
    text = """m (float[N,8] x) => (float[N,8] y, float[N,4] z) {
        [a] h = Gemm(x, w, b) [relu] r = Relu(h) [soft] y = Softmax(r)
        [c] i = MatMul(x, v) [clip] k = Clip(i, low, high) [soft2] z = Softmax(k)
    }"""
    arrays = weights((8, 8), (8, 4), names="w v") | {"b": normal(8), "low": np.float32(-0.5), "high": np.float32(0.5)}
    checked = checked_kind(text, arrays, {"x": normal(16, 8)}, form)
    assert checked.result.fusion is not None
    assert checked.result.fusion.operators() == {"QGemm": 1, "MatMulIntegerToFloat": 1}
    assert (checked.ops["Max"], checked.ops["Min"], checked.ops["Relu"], checked.ops["Clip"]) == (2, 1, 0, 0)
    assert [o.name for o in checked.model.graph.output] == ["y", "z"]
    assert min(checked.sqnr("y"), checked.sqnr("z")) >= 40
