"""Resize with ``axes``: the runtime resizes the wrong axes near an integer Conv, so the attribute is written out."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool.errors import NothingToQuantizeError
from qtool.prepare.normalize_resize import NormalizeResizePass
from tests.models import FORMATS, build, normal, quantize_and_check, run

CASES = {
    "scales": ("Resize<mode={m},axes=[2,3]>(h,,s)", {"s": np.float32([2, 3])}),
    "scales in another order": ("Resize<mode={m},axes=[3,2]>(h,,s)", {"s": np.float32([3, 2])}),
    "negative axes": ("Resize<mode={m},axes=[-1]>(h,,s)", {"s": np.float32([2])}),
    "sizes": ("Resize<mode={m},axes=[3,2]>(h,,,s)", {"s": np.int64([10, 7])}),
    "not larger": (
        'Resize<mode={m},axes=[2,3],keep_aspect_ratio_policy="not_larger">(h,,,s)',
        {"s": np.int64([9, 10])},
    ),
    "not smaller": (
        'Resize<mode={m},axes=[2,3],keep_aspect_ratio_policy="not_smaller">(h,,,s)',
        {"s": np.int64([8, 9])},
    ),
}


def between(resize: str, mode: str, dims: str, arrays: dict[str, np.ndarray], opset: int = 19) -> onnx.ModelProto:
    """A Conv on both sides, the first of which pays even alone."""
    resize = resize.replace("{m}", f'"{mode}"')
    return build(
        f"m (float[{dims}] x) => (float[a,b,c,d] y) {{ [c] h = Conv(x, w) [r] u = {resize} [c2] y = Conv(u, v) }}",
        {"w": normal(36, 36, 1, 1), "v": normal(8, 36, 1, 1, seed=1), **arrays},
        opset=opset,
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("dims", ["2,36,4,5", "N,36,4,5"])
@pytest.mark.parametrize(("resize", "arrays"), CASES.values(), ids=CASES)
def test_between_convs(resize, arrays, dims, mode, form):
    model = between(resize, mode, dims, arrays)
    checked = quantize_and_check(model, {"x": normal(2, 36, 4, 5)}, format=form)
    assert checked.sqnr() > 30
    assert ("r" in checked.quantized()) == (mode == "nearest")
    node = next(n for n in checked.model.graph.node if n.op_type == "Resize")
    assert not {"axes", "keep_aspect_ratio_policy"} & {a.name for a in node.attribute}


@pytest.mark.parametrize("what", ["scales", "sizes"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_computed_targets(what, mode):
    """Nothing is known before the model runs: the other axes are filled in by the graph."""
    call, kind, target = ("h,,s", "float", [2.0, 3.0]) if what == "scales" else ("h,,,s", "int64", [9, 7])
    model = build(
        f'm (float[N,C,H,W] h, {kind}[2] s) => (float[a,b,c,d] y) {{ y = Resize<mode="{mode}",axes=[3,2]>({call}) }}',
        opset=18,
    )
    step = NormalizeResizePass()
    result = ir.to_proto(step(ir.from_proto(model)).model)
    onnx.checker.check_model(result, full_check=True)
    assert step.actions == ("wrote 1 Resize without 'axes'",)
    assert [n.op_type for n in result.graph.node] == (["Shape"] if what == "sizes" else []) + [
        "ScatterElements",
        "Resize",
    ]
    feeds = {"h": normal(2, 3, 4, 5), "s": np.asarray(target, np.float32 if what == "scales" else np.int64)}
    assert np.array_equal(run(result, feeds)["y"], run(model, feeds)["y"])


def test_the_region_of_a_crop():
    model = build(
        """m (float[1,2,6,6] h) => (float[a,b,c,d] y)
        { y = Resize<mode="linear",axes=[3,2],coordinate_transformation_mode="tf_crop_and_resize">(h, roi,, s) }""",
        {"roi": np.float32([0.1, 0.2, 0.7, 0.9]), "s": np.int64([3, 5])},
        opset=18,
    )
    result = ir.to_proto(NormalizeResizePass()(ir.from_proto(model)).model)
    feeds = {"h": normal(1, 2, 6, 6)}
    assert np.array_equal(run(result, feeds)["y"], run(model, feeds)["y"])


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("(float[N,2,H,W] h) => (float[a,b,c,d] y) { y = Resize(h,,s) }", {"s": np.float32([1, 1, 2, 2])}),
        ("(float h) => (float y) { g = Unk(h) y = Resize<axes=[2,3]>(g,,s) }", {"s": np.float32([2, 2])}),
        (
            """(float[1,1,2,4] h) => (float[a,b,c,d] y)
            { y = Resize<axes=[2,3],keep_aspect_ratio_policy="not_smaller">(h,,,s) }""",
            {"s": np.int64([1, 3])},
        ),
    ],
    ids=["no axes", "unknown rank", "scale that rounds to other sizes"],
)
def test_others_stay(text, arrays):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> m {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    assert not NormalizeResizePass()(ir.from_proto(proto)).modified


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_convs_stay_float_beside_one_that_stays(mode, form):
    resize = 'Resize<mode={m},axes=[2,3],keep_aspect_ratio_policy="not_larger">(h,,,s)'
    model = between(resize, mode, "2,36,4,5", {"s": np.int64([9, 11])})
    with pytest.raises(NothingToQuantizeError, match="beside an integer Conv the runtime resizes wrong axes in 'r'"):
        qtool.quantize(model, {"x": normal(2, 36, 4, 5)}, format=form)
