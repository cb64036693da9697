"""Inputs and outputs that are no tensors: read where that is possible, refused in one line where not."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

import qtool
from qtool.errors import ModelError
from tests.models import normal


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
