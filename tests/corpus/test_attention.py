"""Attention as function bodies and exporters write it: probabilities stay float whatever lies behind the Softmax."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import FORMATS, build, normal, quantize_and_check

BEHIND = {
    "rows masked as a whole are set to 0": "zero = Constant<value_float=0.0>() q = Where(masked, zero, p)",
    "head mask": "q = Mul(p, heads)",
    "head mask first": "q = Mul(heads, p)",
    "sink cut off": (
        "from = Constant<value_ints=[0]>() to = Constant<value_ints=[6]>() axes = Constant<value_ints=[-1]>() "
        "q = Slice(p, from, to, axes)"
    ),
    "cast like": "q = CastLike(p, v)",
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_probabilities_stay_float(form, behind):
    """One value row is 1000 times the others, and its probability is 0: one scale for all of V would leave nothing."""
    model = build(
        f"""m (float[N,4,6] s, float[N,6,8] v, bool[N,4,1] masked, float[N,4,1] heads, float[N,4,8] x)
              => (float[N,4,8] y, float[N,4,8] z)
        {{ p = Softmax(s) {behind} [av] y = MatMul(q, v) [mm] z = MatMul(x, w) }}""",
        {"w": normal(8, 8)},
    )
    scores, values = normal(2, 4, 6), normal(2, 6, 8, seed=1)
    scores[..., 2] = -1e4
    values[:, 2] *= 1000.0
    masked = np.zeros((2, 4, 1), bool)
    masked[:, 0] = True
    feeds = {"s": scores, "v": values, "masked": masked, "heads": np.ones((2, 4, 1), np.float32), "x": normal(2, 4, 8)}
    checked = quantize_and_check(model, feeds, format=form)
    assert checked.quantized() == ["mm"]
    assert checked.reason("av") == "attention scores stay float"
    assert checked.sqnr("y") > 100
