"""Conv of dynamic mode: ConvInteger where it pays or is asked for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qtool.errors import NothingToQuantizeError
from tests.dynamic.support import dynamic
from tests.models import build, normal


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("x", "w", "attributes", "y"),
    [
        ((2, 4, 8, 8), (6, 4, 3, 3), "pads=[1,1,1,1]", "2,6,8,8"),
        ((2, 4, 9, 9), (6, 4, 3, 3), 'auto_pad="SAME_UPPER", strides=[2,2]', "2,6,5,5"),
        ((1, 4, 8, 8), (4, 1, 3, 3), "group=4, pads=[1,1,1,1]", "1,4,8,8"),
        ((1, 4, 8, 8), (6, 2, 3, 3), "group=2, dilations=[2,2]", "1,6,4,4"),
        ((1, 4, 20), (6, 4, 5), "pads=[2,2]", "1,6,20"),
        ((1, 3, 5, 6, 7), (4, 3, 2, 2, 2), "", "1,4,4,5,6"),
        ((0, 4, 8, 8), (6, 4, 3, 3), "", "0,6,6,6"),
    ],
)
def test_a_conv_that_is_included(x, w, attributes, y, weights, per_channel):
    """Padding is exact although the zero point of the input is not 0."""
    dims = ",".join(str(d) for d in x)
    text = f"m (float[{dims}] x) => (float[{y}] y) {{ y = Conv<{attributes}>(x, w, b) }}".replace("<>", "")
    model = build(text, {"w": normal(*w), "b": normal(w[0], seed=1)})
    feeds = {"x": normal(*x, seed=2) + np.float32(1)}
    done = dynamic(model, feeds, include=["op:Conv"], weights=weights, per_channel=per_channel)
    assert done.ops == {"DynamicQuantizeLinear": 1, "ConvInteger": 1, "Cast": 1, "Mul": 2, "Add": 1}
    assert done.sqnr() > 33
    codes = next(t for t in done.model.graph.initializer if t.name == "w_quantized")
    assert codes.data_type == onnx.TensorProto.UINT8  # of which the runtime has the faster kernel


def test_the_output_of_padding_alone_is_the_bias():
    """An input of constant 5 with pads: only the padding is 0, and exactly so."""
    text = "m (float[1,1,3,3] x) => (float[1,1,7,7] y) { y = Conv<pads=[3,3,3,3]>(x, w, b) }"
    arrays = {"w": normal(1, 1, 3, 3), "b": np.array([0.5], np.float32)}
    done = dynamic(build(text, arrays), {"x": np.full((1, 1, 3, 3), 5, np.float32)}, include=["op:Conv"])
    assert done.got["y"][0, 0, 0, 0] == 0.5


def test_a_conv_stays_float_because_that_is_faster():
    text = "m (float[1,4,8,8] x) => (float[1,6,6,6] y) { [c] y = Conv(x, w) }"
    with pytest.raises(NothingToQuantizeError, match="ConvInteger is slower than its float Conv; --include quantizes"):
        dynamic(build(text, {"w": normal(6, 4, 3, 3)}), {"x": normal(1, 4, 8, 8)})


def test_a_long_1d_conv_pays():
    """The positional Conv of speech encoders: 48 channels of a group, 128 taps."""
    text = "m (float[1,96,40] x) => (float[1,96,41] y) { [c] y = Conv<group=2, pads=[64,64]>(x, w) }"
    done = dynamic(build(text, {"w": normal(96, 48, 128)}), {"x": normal(1, 96, 40)})
    assert done.quantized() == ["c"]
