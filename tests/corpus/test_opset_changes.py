"""Opsets that the runtime cannot quantize at, and models whose opset cannot be changed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool.errors import ModelError, NothingToQuantizeError
from qtool.prepare.lower_opset import LowerOpsetPass
from qtool.prepare.prepare import prepare
from qtool.runtime.capability import highest_quantizing_opset
from tests.models import FORMATS, build, normal, quantize_and_check

NEWEST = onnx.defs.onnx_opset_version()
formats = pytest.mark.parametrize("form", FORMATS)


def opset_of(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if o.domain == "")


@formats
@pytest.mark.parametrize("opset", range(13, NEWEST + 1))
def test_every_opset(opset, form):
    """The file keeps its opset as far as the runtime has QuantizeLinear there, and is lowered above that."""
    model = build(
        "m (float[N,36,6,6] x) => (float[N,5,6,6] y) { h = Conv(x, w) r = Relu(h) y = Conv(r, v) }",
        {"w": normal(36, 36, 1, 1), "v": normal(5, 36, 1, 1)},
        opset=opset,
        ir_version=11,
    )
    checked = quantize_and_check(model, {"x": normal(2, 36, 6, 6)}, format=form)
    assert len(checked.quantized()) == 3
    assert opset_of(checked.model) == min(opset, highest_quantizing_opset(opset))
    lowered = any(action.startswith("lowered the opset") for action in checked.result.actions)
    assert lowered == (highest_quantizing_opset(opset) < opset)


def test_the_runtime_is_asked():
    assert highest_quantizing_opset(13) == 13
    assert highest_quantizing_opset(21) == 21
    assert 21 <= highest_quantizing_opset(NEWEST) <= NEWEST
    assert highest_quantizing_opset(0) == 10


def lower(body: str, *, graph: str = "(float[1,4,2,2] x) => (float[a,b,c,d] y)", target: int = 27) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 13, opset_import: ["": 28]> m {graph} {{ {body} }}')
    step = LowerOpsetPass(max_opset=target)
    result = step(ir.from_proto(proto))
    assert step.actions == (f"lowered the opset from 28 to {target}: no operator of the model differs",)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result.model


needs_28 = pytest.mark.skipif(NEWEST < 28, reason="onnx has no opset 28")
INTEGERS = {"graph": "(int32[4] x, int32[4] z) => (int32[4] y)"}


@needs_28
@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("y = Celu(x)", {}),
        ("y = SpaceToDepth<blocksize=2>(x)", {}),
        ('y = SpaceToDepth<blocksize=2,mode="DCR">(x)', {}),
        ("y = Mod<fmod=1>(x, x)", {}),
        ("y = Mod(x, z)", INTEGERS),
        ('y = BitShift<direction="LEFT">(x, z)', {"graph": "(uint8[4] x, uint8[4] z) => (uint8[4] y)"}),
    ],
)
def test_what_only_takes_more_types_is_lowered(body, options):
    model = lower(body, **options)
    assert model.graph.opset_imports[""] == 27
    assert "mode" not in model.graph[0].attributes


@needs_28
@pytest.mark.parametrize(
    ("body", "graph", "why"),
    [
        (
            'y = SpaceToDepth<blocksize=2,mode="CRD">(x)',
            "(float[1,4,2,2] x) => (float[a,b,c,d] y)",
            "was changed in opset 28",
        ),
        ("y = Mod(x, x)", "(float[4] x) => (float[4] y)", "was changed in opset 28"),
        ("y = SwiGLU(x)", "(float[4,2] x) => (float[a,b] y)", "is not in opset 27"),
        ("y = Celu(x)", "(double[4] x) => (double[4] y)", "Celu"),
        ('y = BitShift<direction="LEFT">(x, z)', "(int32[4] x, int32[4] z) => (int32[4] y)", "BitShift"),
    ],
)
def test_what_differs_is_not(body, graph, why):
    with pytest.raises(ModelError, match=f"opset 28 is newer than .*{why}") as caught:
        lower(body, graph=graph)
    assert "\n" not in caught.value.message


@needs_28
def test_a_refusal_leaves_the_model_alone():
    proto = onnx.parser.parse_model(
        """<ir_version: 13, opset_import: ["": 28, "f": 1]> m (double[4] x) => (double[4] y) { y = Celu(x) }
        <opset_import: ["": 28], domain: "f"> unused (a) => (b) { b = Relu(a) }"""
    )
    model = ir.from_proto(proto)
    with pytest.raises(ModelError):
        LowerOpsetPass(max_opset=27)(model)
    assert model.graph.opset_imports[""] == 28
    assert len(model.functions) == 1


@formats
def test_scales_per_tensor_where_per_channel_needs_a_higher_opset(form):
    """Hardmax flattened its input before opset 13: no converter, but opset 11 has scales per tensor."""
    model = build(
        "m (float[N,8,2] x) => (float[N,8,2] y, float[N,8,4] z) { y = Hardmax<axis=1>(x) [p] z = MatMul(x, w) }",
        {"w": normal(2, 4)},
        opset=11,
        ir_version=6,
    )
    checked = quantize_and_check(model, {"x": normal(2, 8, 2)}, format=form)
    assert opset_of(checked.model) == 11
    assert np.array_equal(checked.expected["y"], checked.got["y"])
    assert checked.weight("p").scale.shape == ()
    assert not checked.result.config.per_channel
    assert next(n for n in checked.result.notes if "Hardmax" in n).startswith("weights have one scale per tensor")


SCAN8 = """<ir_version: 3, opset_import: ["": 8]> m (float[1,3,2] s) => (float[1,3,2] y{extra}) {{ {first}
    y = Scan<num_scan_inputs=1, body = b (float[2] a) => (float[2] r) {{ r = Add(a, a) }}>("", s) }}"""


@formats
def test_an_obstacle_is_raised_only_where_it_matters(form):
    """Scan had a batch axis before opset 9, and no opset below 10 can be quantized."""
    model = onnx.parser.parse_model(SCAN8.format(extra="", first=""))
    feeds = {"s": normal(2, 1, 3, 2)}
    with pytest.raises(NothingToQuantizeError, match="0 of 2 nodes"):
        qtool.quantize(model, feeds, format=form)
    assert [row[1] for row in qtool.inspect(model).nodes] == ["Scan", "Add"]
    model = onnx.parser.parse_model(SCAN8.format(extra=", float[1,3,4] z", first="z = MatMul(s, w)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(2, 4), "w"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 4]))
    with pytest.raises(ModelError, match=r"Operator Scan .* from opset 8 to 13: it had a batch axis"):
        qtool.quantize(model, feeds, format=form)
    with pytest.raises(ModelError, match=r"Operator Scan"):
        qtool.calibrate(model, feeds)


def test_prepare_reports_the_obstacle():
    model = ir.from_proto(onnx.parser.parse_model(SCAN8.format(extra="", first="")))
    result = prepare(model, min_opset=13, min_ir=7)
    assert result.obstacle is not None
    assert result.model.graph.opset_imports[""] == 8
