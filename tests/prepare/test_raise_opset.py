from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.errors import ModelError
from qtool.prepare.prepare import prepare
from qtool.prepare.raise_opset import RaiseOpsetPass


def raised(build, text, opset, arrays=None, *, target=13):
    proto = build(text, arrays, opset=opset, ir_version=7)
    before = proto.SerializeToString()
    prepared = prepare(ir.from_proto(proto), min_opset=target, min_ir=7)
    assert proto.SerializeToString() == before
    if prepared.obstacle is not None:
        raise prepared.obstacle
    assert prepared.model.opset_imports[""] == max(opset, target)
    return proto, prepared.model


CASES = {
    "Softmax flattens": (11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }", {}),
    "Softmax last axis": (11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=2>(x) }", {}),
    "LogSoftmax": (9, "g (float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax(x) }", {}),
    "Squeeze": (
        11,
        "g (float[2,3,4] x) => (float[2,3,4] y) { a = Unsqueeze<axes=[1]>(x) y = Squeeze<axes=[1]>(a) }",
        {},
    ),
    "Clip attributes": (6, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Clip<min=-0.5, max=0.5>(x) }", {}),
    "Clip without min": (10, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Clip<max=0.5>(x) }", {}),
    "ReduceSum": (11, "g (float[2,3,4] x) => (float[2,3] y) { y = ReduceSum<axes=[2], keepdims=0>(x) }", {}),
    "Split": (11, "g (float[2,3,4] x) => (float[2,3,2] y) { a, b = Split<axis=2, split=[2,2]>(x) y = Sub(a, b) }", {}),
    "Pad": (10, "g (float[2,3,4] x) => (float[2,4,6] y) { y = Pad<pads=[0,0,1,0,1,1], value=2.0>(x) }", {}),
    "Slice": (9, "g (float[2,3,4] x) => (float[2,2,4] y) { y = Slice<axes=[1], starts=[1], ends=[3]>(x) }", {}),
    "TopK": (9, "g (float[2,3,4] x) => (float[2,3,2] y, int64[2,3,2] i) { y, i = TopK<axis=2, k=2>(x) }", {}),
    "Dropout": (9, "g (float[2,3,4] x) => (float[2,3,4] y) { a = Dropout(x) y = Relu(a) }", {}),
    "Gemm": (8, "g (float[2,3] x) => (float[2,4] y) { y = Gemm(x, w, b) }", {"w": (3, 4), "b": (1, 4)}),
    "Scatter": (9, "g (float[3,3] x) => (float[3,3] y) { y = Scatter<axis=0>(x, i, u) }", {"i": (1, 3), "u": (1, 3)}),
    "GridSample": (
        *(16, 'g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = GridSample<mode="bilinear">(x, g1) }'),
        {"g1": (1, 2, 2, 2)},
    ),
    "DFT": (17, "g (float[1,8,1] x) => (float[1,8,2] y) { y = DFT<axis=1>(x) }", {}),
    "ReduceMean": (13, "g (float[2,3,4] x) => (float[2,3,1] y) { y = ReduceMean<axes=[-1]>(x) }", {}),
    "AveragePool": (
        10,
        "g (float[1,1,5] x) => (float[a,b,c] y) { y = AveragePool<kernel_shape=[2], strides=[2], ceil_mode=1>(x) }",
        {},
    ),
    "big weight": (8, "g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }", {"w": (64, 64)}),
    "BatchNormalization": (
        *(8, "g (float[2,3,4] x) => (float[2,3,4] y) { y = BatchNormalization(x, s, b, m, v) }"),
        {"s": (3,), "b": (3,), "m": (3,), "v": (3,)},
    ),
}


@pytest.mark.parametrize("target", [13, 21])
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay(name, target, build, run, rng):
    opset, text, shapes = CASES[name]
    arrays = {key: np.abs(rng.normal(size=shape)).astype(np.float32) for key, shape in shapes.items()}
    if "i" in arrays:
        arrays["i"] = np.zeros(shapes["i"], np.int64)
    proto, model = raised(build, text, opset, arrays, target=target)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": rng.normal(size=shape).astype(np.float32)}
    for old, new in zip(run(proto, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1.5, 2.5], [1, 1, 3, 1]])
def test_c41_upsample_means_the_same(mode, scales, build, run, rng):
    text = f'g (float[1,2,4,5] x) => (float[a,b,c,d] y) {{ [up] y = Upsample<mode="{mode}">(x, s) }}'
    proto, model = raised(build, text, 9, {"s": np.asarray(scales, np.float32)})
    assert [(n.name, n.op_type) for n in model.graph] == [("up", "Resize")]
    x = rng.normal(size=(1, 2, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(run(model, {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 0.6, 1]])
def test_resize_of_opset_10_means_the_same(mode, scales, build, run, rng):
    text = f'g (float[1,2,4,5] x) => (float[a,b,c,d] y) {{ y = Resize<mode="{mode}">(x, s) }}'
    proto, model = raised(build, text, 10, {"s": np.asarray(scales, np.float32)})
    x = rng.normal(size=(1, 2, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(run(model, {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_c41_upsample_with_scales_from_the_caller(build, run, rng):
    text = "g (float[1,1,4,4] x, float[4] s) => (float[a,b,c,d] y) { y = Upsample(x, s) }"
    proto, model = raised(build, text, 9)
    feeds = {"x": rng.normal(size=(1, 1, 4, 4)).astype(np.float32), "s": np.asarray([1, 1, 2, 3], np.float32)}
    assert np.array_equal(run(model, feeds)[0], run(proto, feeds)[0])


@pytest.mark.parametrize("scales", [None, [1, 1, 2, 0.5]])
def test_a_resize_whose_rounding_is_unknown_is_refused(scales, build):
    arrays = {} if scales is None else {"s": np.asarray(scales, np.float32)}
    given = ", float[4] s" if scales is None else ""
    text = f"g (float[1,1,4,4] x{given}) => (float[a,b,c,d] y) {{ y = Resize(x, s) }}"
    what = "are not constant" if scales is None else "both enlarge and shrink"
    with pytest.raises(ModelError, match=rf"Resize .* from opset 10 to 13: its scales {what}"):
        raised(build, text, 10, arrays)


@pytest.mark.parametrize(
    ("operator", "opset", "text"),
    [
        (
            *("Upsample", 1),
            "g (float[1,2,4,4] x) => (y) { [upsample] y = Upsample<height_scale=2.0, width_scale=2.0>(x) }",
        ),
        (
            *("BatchNormalization", 7),
            """g (float[1,2,4] x, float[2,4] s) => (y) {
                [batchnormalization] y = BatchNormalization<spatial=0>(x, s, s, s, s)
            }""",
        ),
        ("Foo", 8, "g (float[1,2] x) => (y) { a = Relu(x) [foo] y = Foo(a) }"),
        (
            *("Scan", 8),
            """g (float[1,3,2] x) => (y) {
                [scan] y = Scan<num_scan_inputs=1, body = b (float[2] i) => (float[2] o) { o = Relu(i) }>(, x)
            }""",
        ),
    ],
)
def test_a_conversion_that_onnx_does_not_know_is_refused_in_one_line(operator, opset, text, build):
    with pytest.raises(ModelError) as info:
        raised(build, text, opset)
    assert "\n" not in info.value.message
    assert info.value.message.startswith(f"Operator {operator} (node '{operator.lower()}') cannot be converted from")
    assert f"from opset {opset} to 13: " in info.value.message


@pytest.mark.parametrize(
    ("call", "opset", "target"),
    [("PRelu(x, s)", 6, 7), ("Hardmax(x)", 12, 13), ("GroupNormalization<num_groups=2>(x, s, s)", 20, 21)],
)
def test_an_operator_that_the_converter_would_carry_over_wrongly_is_refused(call, opset, target, build):
    text = f"g (float[2,4,3] x, float[2] s) => (y) {{ y = {call} }}"
    with pytest.raises(ModelError, match=f"from opset {opset} to {target}: its|from opset {opset} to {target}: it "):
        raised(build, text, opset, target=target)
    if opset > 11:
        raised(build, text, opset, target=opset)


def test_a_high_enough_model_keeps_opset_and_ir(build):
    proto = build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=13, ir_version=7)
    prepared = prepare(ir.from_proto(proto), min_opset=13, min_ir=7)
    assert (prepared.model.opset_imports[""], prepared.model.ir_version) == (13, 7)
    assert prepared.actions == ()


def test_the_ir_version_is_raised_alone(build):
    model = ir.from_proto(build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=13, ir_version=6))
    assert RaiseOpsetPass(min_opset=13, min_ir=10)(model).modified
    assert (model.opset_imports[""], model.ir_version) == (13, 10)


def test_bodies_are_converted_too(build, run):
    text = """g (bool c, float[1,3] x) => (float[1,3] y) {
        y = If(c) <then_branch = t () => (float[1,3] p) { s = Squeeze<axes=[0]>(x) p = Unsqueeze<axes=[0]>(s) },
                   else_branch = e () => (float[1,3] q) { q = Neg(x) }>
    }"""
    proto, model = raised(build, text, 11)
    for flag in (True, False):
        feeds = {"c": np.asarray(flag), "x": np.asarray([[1, 2, 3]], np.float32)}
        assert np.array_equal(run(model, feeds)[0], run(proto, feeds)[0])


def test_what_the_converter_drops_is_put_back(build, rng):
    text = """<ir_version: 7, opset_import: ["": 11, "custom": 1], producer_name: "p", producer_version: "pv",
               domain: "d", model_version: 3, doc_string: "model", metadata_props: ["k": "v"]>
    g (float[1,2,16] x) => (float[1,2] y) {
        [one] a = custom.Thing<level=2>(x)
        [two] b = MatMul(a, w)
        [three] y = Squeeze<axes=[2]>(b)
    }"""
    proto = build(text, {"w": rng.normal(size=(16, 1)).astype(np.float32)})
    proto.graph.doc_string = "graph"
    for node in proto.graph.node:
        node.doc_string = f"doc of {node.name}"
        node.metadata_props.append(onnx.StringStringEntryProto(key="from", value=node.name))
    model = ir.from_proto(proto)
    RaiseOpsetPass(min_opset=13, min_ir=7)(model)
    assert dict(model.opset_imports) == {"": 13, "custom": 1}
    nodes = [n for n in model.graph if n.op_type != "Constant"]
    assert [(n.name, n.op_type, n.doc_string, n.metadata_props["from"]) for n in nodes] == [
        (name, op_type, f"doc of {name}", name)
        for name, op_type in (("one", "Thing"), ("two", "MatMul"), ("three", "Squeeze"))
    ]
    assert nodes[0].attributes["level"].as_int() == 2
    assert (model.producer_name, model.producer_version, model.domain, model.model_version) == ("p", "pv", "d", 3)
    assert (model.doc_string, model.graph.doc_string, model.graph.name) == ("model", "graph", "g")
    assert dict(model.metadata_props) == {"k": "v"}


def test_functions_are_inlined_first_and_the_uncalled_are_dropped(build, run):
    text = """<ir_version: 8, opset_import: ["": 11, "local": 1]>
    g (float[1,3] x) => (float[1,3] y) { a = local.flat(x) y = Unsqueeze<axes=[0]>(a) }
    <opset_import: ["": 11], domain: "local"> flat (p) => (q) { q = Squeeze<axes=[0]>(p) }
    <opset_import: ["": 11], domain: "local"> spare (p) => (q) { q = Squeeze<axes=[0]>(p) }"""
    proto = build(text)
    result = prepare(ir.from_proto(proto), min_opset=13, min_ir=8)
    assert not result.model.functions
    assert "raised the opset from 11 to 13, without 1 local function that nobody calls" in result.actions
    x = np.asarray([[1, 2, 3]], np.float32)
    assert np.array_equal(run(result.model, {"x": x})[0], x)


def test_functions_that_cannot_be_inlined_are_refused(build):
    text = """<ir_version: 8, opset_import: ["": 11, "local": 1]>
    g (float[1,3] x) => (float[1,3] y) { [call] y = local.twice(x) }
    <opset_import: ["": 10], domain: "local"> twice (p) => (q) { q = Add(p, p) }"""
    with pytest.raises(
        ModelError, match=r"Local function 'twice' \(node 'call'\) cannot be converted from opset 11 to 13"
    ):
        raised(build, text, 11)


def test_weights_are_not_copied(build, rng):
    proto = build(
        "g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }",
        {"w": rng.normal(size=(64, 64)).astype(np.float32)},
        opset=9,
    )
    model = ir.from_proto(proto)
    tensor = model.graph.initializers["w"].const_value
    RaiseOpsetPass(min_opset=13, min_ir=7)(model)
    assert model.graph.initializers["w"].const_value is tensor
    assert [v.name for v in model.graph.inputs] == ["x"]


def test_a_model_without_an_import_of_the_default_domain(build):
    custom = build('<ir_version: 8, opset_import: ["custom": 1]> g (float[2] x) => (float[2] y) { y = custom.F(x) }')
    model = ir.from_proto(custom)
    RaiseOpsetPass(min_opset=13, min_ir=7)(model)
    assert dict(model.opset_imports) == {"custom": 1, "": 13}
    broken = build('<ir_version: 8, opset_import: ["custom": 1]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    with pytest.raises(ModelError, match=r"imports no version of the domain 'ai\.onnx'"):
        RaiseOpsetPass(min_opset=13, min_ir=7)(ir.from_proto(broken))
