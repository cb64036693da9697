"""Inputs that look scaled once too often, or not at all."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.plan.inputs import input_notes

PLAIN = "y = MatMul(x, w)"
SCALED = "t = Transpose<perm=[1, 0]>(x) a = Div(t, k) y = Add(a, k)"
PIXELS = np.array([0, 17, 255, 64], np.float32)
UNIT = np.array([0.0, 0.5, 1.0], np.float32)


def notes(body, *inputs):
    names = ["x", "z"][: len(inputs)]
    declared = ", ".join(f"float[4, 4] {name}" for name in names)
    constants = f"<float[4, 4] w = {{{', '.join(['1'] * 16)}}}, float k = {{255}}>"
    text = f"g ({declared}) => (float[4, 4] y) {constants} {{ {body} }}"
    graph = ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')).graph
    seen = {name: TensorStatistics.of(x, histogram=True) for name, x in zip(names, inputs, strict=True)}
    return input_notes(graph, Statistics(seen, 1))


def test_pixels_without_a_scale():
    (note,) = notes(PLAIN, PIXELS)
    assert note.startswith("Input 'x' holds the integers 0 to 255, and the model does not begin by scaling it:")
    (note,) = notes(PLAIN, PIXELS, UNIT)
    assert "beside other inputs ('z' reaches 1)" in note


def test_a_scale_without_pixels():
    (note,) = notes(SCALED, UNIT)
    assert note.startswith("Input 'x' stays within 1, and the model begins by scaling it with 0.00392:")


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (SCALED, PIXELS),
        (PLAIN, UNIT),
        (PLAIN, PIXELS + 0.5),
        (PLAIN, PIXELS - 1),
        (PLAIN, PIXELS / 8),
        (PLAIN, PIXELS * 2),
        (PLAIN, np.zeros(3, np.float32)),
        (SCALED, np.zeros(3, np.float32)),
        (PLAIN, np.full(3, np.nan, np.float32)),
        ("a = Cast<to=7>(x) y = Cast<to=1>(a)", PIXELS),
        ("a = Neg(x) b = Abs(x) y = Add(a, b)", PIXELS),
    ],
)
def test_what_is_in_order(body, values):
    assert notes(body, values) == []
