"""AveragePool with dilations: the runtime's integer form has none, and its fusion makes a model that does not load."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qtool.prepare.normalize_pool import NormalizePoolPass
from tests.models import FORMATS, build, normal, quantize_and_check


def pooled(dilations: str, between: str = "q = Identity(p)"):
    return build(
        f"""m (float[2,36,8,8] x) => (float[a,b,c,d] y)
        {{ [c] h = Conv(x, w) [p] p = AveragePool<kernel_shape=[2,2]{dilations}>(h) {between} [d] y = Conv(q, v) }}""",
        {"w": normal(36, 36, 1, 1), "v": normal(8, 36, 1, 1, seed=1)},
        opset=19,
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("exclude", [[], ["p"]])
@pytest.mark.parametrize(
    "between",
    ["q = Identity(p)", "q = Transpose<perm=[0,1,3,2]>(p)", "q = MaxPool<kernel_shape=[2,2]>(p)", "q = Relu(p)"],
)
def test_nothing_is_quantized_behind_it(form, exclude, between):
    checked = quantize_and_check(
        pooled(",dilations=[2,2]", between), {"x": normal(2, 36, 8, 8)}, format=form, exclude=exclude
    )
    assert checked.quantized() == ["c"]
    assert "dilated AveragePool" in checked.reason("d")


@pytest.mark.parametrize("form", FORMATS)
def test_float_operators_between_are_enough(form):
    checked = quantize_and_check(pooled(",dilations=[2,1]", "q = Tanh(p)"), {"x": normal(2, 36, 8, 8)}, format=form)
    assert checked.quantized() == ["c", "d"]


@pytest.mark.parametrize("form", FORMATS)
def test_default_dilations_are_left_out(form):
    checked = quantize_and_check(pooled(",dilations=[1,1]"), {"x": normal(2, 36, 8, 8)}, format=form)
    assert checked.quantized() == ["c", "p", "d"]
    assert "wrote 1 AveragePool without the default dilations" in checked.result.actions


@pytest.mark.parametrize("dilations", ["", ",dilations=[1,2]"])
def test_other_pools_stay(dilations):
    assert not NormalizePoolPass()(ir.from_proto(pooled(dilations))).modified
