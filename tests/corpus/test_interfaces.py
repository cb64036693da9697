"""Inputs and outputs that are no tensors: read where that is possible, refused in one line where not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import qtool
from qtool.errors import ModelError
from tests.models import FORMATS, build, normal


@pytest.mark.parametrize(
    "kind", ["map(int64, float[N])", "seq(map(int64, float[N]))", "optional(map(string, float[N]))"]
)
def test_maps_are_named(kind):
    """As every classifier of scikit-learn has them, behind ZipMap."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]> m (float[N,2] x) => ({kind} p)
        {{ p = ai.onnx.ml.ZipMap<classlabels_int64s=[0,1]>(x) }}"""
    )
    with pytest.raises(ModelError, match="has a map, 'p', which qtool does not read") as caught:
        qtool.quantize(model, {"x": normal(4, 2)})
    assert "ZipMap" in (caught.value.hint or "")


OPAQUE = {
    "seq(float[N,8])": ("seq(tensor(float))", "s = SequenceConstruct(y, x)"),
    "optional(float[N,8])": ("optional(tensor(float))", "s = Optional(y)"),
    "int4[N,8]": ("tensor(int4)", "s = Cast<to=22>(y)"),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", OPAQUE)
def test_outputs_that_are_no_arrays(kind, form):
    """They are kept, computed by the new model as well, and not compared, which is said."""
    named, body = OPAQUE[kind]
    model = build(
        f"m (float[N,8] x) => (float[N,8] y, {kind} s) {{ y = MatMul(x, w) {body} }}",
        {"w": normal(8, 8)},
        opset=21,
        ir_version=10,
    )
    x = {"x": normal(4, 8)}
    result = qtool.quantize(model, x, format=form)
    assert result.quantized == 1
    assert list(result.sqnr_db) == ["y"]
    assert f"output 's' is {named}: it was not compared" in result.notes
    assert [o.name for o in result.model.graph.output] == ["y", "s"]
    assert result.model.graph.output[1].type == model.graph.output[1].type
    report = qtool.evaluate(model, result.model, x, latency=False)
    assert [o.name for o in report.outputs] == ["y"]
    assert f"Output 's' is {named}; it was not compared." in report.notes
    shown = qtool.inspect(model).outputs[1]
    assert shown.dtype == (object if "(" in kind else shown.dtype)


@pytest.mark.parametrize("kind", ["seq(float[N,8])", "optional(float[N,8])"])
def test_inputs_that_samples_cannot_hold(kind):
    model = build(
        f"m (float[N,8] x, {kind} t) => (float[N,8] y, {kind} u) {{ y = MatMul(x, w) u = Identity(t) }}",
        {"w": normal(8, 8)},
    )
    what = "sequence" if kind.startswith("seq") else "optional"
    with pytest.raises(ModelError, match=f"Input 't' is of the type {what}, which samples cannot hold"):
        qtool.quantize(model, {"x": normal(4, 8)})
    assert qtool.inspect(model).by_op["MatMul"] == (1, 1)


@pytest.mark.parametrize("form", FORMATS)
def test_strings_pass_through(form):
    model = build(
        "m (float[N,8] x, string[N] t) => (float[N,8] y, string[N] u) { y = MatMul(x, w) u = Identity(t) }",
        {"w": normal(8, 8)},
    )
    result = qtool.quantize(model, {"x": normal(4, 8), "t": np.asarray(["a", "b", "c", "d"])}, format=form)
    assert result.quantized == 1
    assert list(result.sqnr_db) == ["y"]
