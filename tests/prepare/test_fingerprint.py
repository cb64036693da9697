"""Fingerprints: what is the same model, and which part of another one is named."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from qtool.prepare.fingerprint import Fingerprint, fingerprint, fingerprinting
from qtool.prepare.load import load_model

TEXT = """g (float[N,4] x) => (float[N,4] y) {
    [mm] a = MatMul(x, W) [cl] b = LeakyRelu<alpha = 0.25>(a) [ad] y = Add(b, B)
}"""


def weights() -> dict[str, np.ndarray]:
    return {"W": np.arange(16, dtype=np.float32).reshape(4, 4), "B": np.ones(4, np.float32)}


@pytest.fixture
def proto(build) -> onnx.ModelProto:
    return build(TEXT, weights())


def print_of(model: object) -> Fingerprint:
    loaded = load_model(model)  # type: ignore[arg-type]
    return fingerprint(loaded, loaded.opset_imports)


def difference(one: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """The parts that ``first_difference`` names, as text; the same in both directions."""
    found = print_of(one).first_difference(print_of(other))
    back = print_of(other).first_difference(print_of(one))
    if found is None:
        assert back is None
        return []
    assert back == (found[1], found[0])
    return [str(part) for part in found]


def copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(proto.SerializeToString())


def test_parts_are_in_the_order_of_the_graph(proto):
    assert [str(part) for part in print_of(proto).parts] == [
        "opset 'ai.onnx'",
        "input 'x'",
        "tensor 'W'",
        "node 'mm'",
        "node 'cl'",
        "tensor 'B'",
        "node 'ad'",
        "output 'y'",
    ]


def test_it_does_not_change_from_call_to_call(proto):
    loaded = load_model(proto)
    before = ir.to_proto(loaded).SerializeToString(deterministic=True)
    one, two = (fingerprint(loaded, loaded.opset_imports) for _ in range(2))
    assert one == two
    assert one.sha256 == two.sha256
    assert len(one.sha256) == 64
    assert ir.to_proto(loaded).SerializeToString(deterministic=True) == before


def test_constants_are_those_of_the_call_that_began_it(proto):
    loaded = load_model(proto)
    read = fingerprinting(loaded, loaded.opset_imports)
    loaded.graph.initializers["W"].const_value = ir.tensor(np.zeros((4, 4), np.float32))
    assert read() == print_of(proto)
    assert fingerprint(loaded, loaded.opset_imports) != print_of(proto)


@pytest.mark.parametrize("strided", [False, True])
def test_large_constants_are_hashed_as_their_bytes(build, strided):
    array = np.arange(256 * 300, dtype=np.float32).reshape(300, 256)
    loaded = load_model(build("g (float[N,256] x) => (float[N,300] y) { y = MatMul(x, W) }", {"W": array.T}))
    before = fingerprint(loaded, loaded.opset_imports)
    held = array.T if strided else np.ascontiguousarray(array.T)
    loaded.graph.initializers["W"].const_value = ir.Tensor(held, name="W")
    assert fingerprint(loaded, loaded.opset_imports) == before


def test_formatting_does_not_count(proto, tmp_path):
    other = copied(proto)
    other.doc_string, other.producer_name, other.graph.name = "words", "tool", "other"
    other.graph.node[0].doc_string = "words"
    other.ir_version += 1
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    other.graph.initializer[0].CopyFrom(helper.make_tensor("W", 1, [4, 4], weights()["W"].ravel().tolist()))
    assert not other.graph.initializer[0].raw_data
    other.graph.value_info.append(helper.make_tensor_value_info("a", 1, ["N", 4]))
    assert difference(proto, other) == []
    onnx.save_model(copied(proto), tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    assert print_of(tmp_path / "m.onnx") == print_of(proto)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_weight_is_named(proto, dtype):
    other = copied(proto)
    array = weights()["B"].astype(dtype)
    array[3] = np.nextafter(array[3], np.inf, dtype=dtype)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(array, "B"))
    assert difference(proto, other) == ["tensor 'B'", "tensor 'B'"]


def test_a_shape_alone_counts(proto):
    other = copied(proto)
    other.graph.initializer[1].dims[:] = [1, 4]
    assert difference(proto, other) == ["tensor 'B'", "tensor 'B'"]


def test_a_weight_is_named_before_a_node(build, proto):
    changed = weights() | {"B": np.zeros(4, np.float32)}
    assert difference(proto, build(TEXT.replace("MatMul", "Gemm"), changed)) == ["tensor 'B'", "tensor 'B'"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("alpha = 0.25", "alpha = 0.5", "node 'cl'"),
        ("LeakyRelu<alpha = 0.25>", "Relu", "node 'cl'"),
        ("Add(b, B)", "Sub(b, B)", "node 'ad'"),
        ("Add(b, B)", "Add(a, B)", "node 'ad'"),
        ("float[N,4] x", "float[3,4] x", "input 'x'"),
        ("float[N,4] y", "float[3,4] y", "output 'y'"),
    ],
)
def test_what_else_counts(build, proto, old, new, named):
    assert difference(proto, build(TEXT.replace(old, new), weights())) == [named, named]


def test_the_opset_counts(build, proto):
    assert difference(proto, build(TEXT, weights(), opset=18)) == ["opset 'ai.onnx'", "opset 'ai.onnx'"]


def test_other_names_are_shown_beside_each_other(build, proto):
    other = build(TEXT.replace("W)", "V)"), {"V": weights()["W"], "B": weights()["B"]})
    assert difference(proto, other) == ["tensor 'W'", "tensor 'V'"]


def test_a_longer_model_has_one_part_more(build, proto):
    text = TEXT.replace("[ad] y = Add(b, B)", "[ad] c = Add(b, B) [rs] y = Add(c, C)")
    assert difference(proto, build(text, weights() | {"C": np.ones(4, np.float32)})) == ["None", "tensor 'C'"]


def branching(value: float) -> onnx.ModelProto:
    """A model whose bodies hold the only constants."""

    def body(name: str, number: float) -> onnx.GraphProto:
        constant = numpy_helper.from_array(np.full(4, number, np.float32), f"{name}_c")
        node = helper.make_node("Add", ["x", f"{name}_c"], [f"{name}_y"])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(f"{name}_y", 1, [4])], [constant])

    node = helper.make_node("If", ["p"], ["y"], "if", then_branch=body("t", 1.0), else_branch=body("e", value))
    inputs = [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("p", 9, [])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_bodies_count():
    assert difference(branching(2.0), branching(2.0)) == []
    assert difference(branching(2.0), branching(3.0)) == ["node 'if'", "node 'if'"]


def test_contents_that_look_alike_do_not_match(build):
    def strings(*values: str) -> onnx.ModelProto:
        model = build("g (float[N,4] x) => (float[N,4] y) { [n] y = Relu(x) }")
        model.graph.node[0].attribute.append(helper.make_attribute("s", list(values)))
        return model

    assert difference(strings("ab", "c"), strings("ab", "c")) == []
    assert difference(strings("ab", "c"), strings("a", "bc")) == ["node 'n'", "node 'n'"]
