"""Settings of single nodes: each key changes what it says and nothing else, in both formats, and the result runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from qtool.errors import ConfigError
from qtool.overrides import parse_override
from tests.ended import run_command
from tests.models import FORMATS, Checked, build, normal, quantize_and_check

NET = build(
    """m (float[N,3,8,8] x) => (float[N,5] y) {
        [stem_conv] a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        [stem_relu] b = Relu(a)
        [stem_pool] c = MaxPool<kernel_shape = [2,2], strides = [2,2]>(b)
        [mid_conv] d = Conv<pads = [1,1,1,1]>(c, w2, b2)
        [mid_relu] e = Relu(d)
        [mid_flat] f = Flatten(e)
        [head_fc1] g = MatMul(f, w3)
        [head_fc2] y = MatMul(g, w4)
    }""",
    {
        "w1": normal(4, 3, 3, 3, seed=1, scale=0.3), "b1": normal(4, seed=2, scale=0.3),
        "w2": normal(6, 4, 3, 3, seed=3, scale=0.3), "b2": normal(6, seed=4, scale=0.3),
        "w3": normal(96, 12, seed=5, scale=0.2), "w4": normal(12, 5, seed=6),
    },
    opset=21,
    ir_version=10,
)  # fmt: skip
X = {"x": normal(32, 3, 8, 8, seed=9)}


def done(format_: str, *overrides: dict[str, Any], **options: Any) -> Checked:
    return quantize_and_check(NET, X, format=format_, overrides=list(overrides), agreement_db=25, **options)


def tensors(checked: Checked) -> dict[str, Any]:
    return dict(checked.result.plan.tensors)


def weights(checked: Checked) -> dict[str, Any]:
    return {d.node: d.weights[0].params for d in checked.result.plan.decisions if d.weights}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


# ------------------------------------------------------------------------------------------------------ key by key


@pytest.mark.parametrize("format_", FORMATS)
def test_weights(format_):
    plain, other = done(format_), done(format_, {"nodes": ["head_*"], "weights": "uint8"})
    assert changed(weights(plain), weights(other)) == {"head_fc1", "head_fc2"}
    assert changed(tensors(plain), tensors(other)) == set()
    assert {weights(other)[n].dtype.name for n in ("head_fc1", "head_fc2")} == {"uint8"}
    types = {t.name: t.data_type for t in other.model.graph.initializer}
    assert (types["w3_quantized"], types["w2_quantized"]) == (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
    assert other.ops == plain.ops


@pytest.mark.parametrize("format_", FORMATS)
def test_weights_of_four_bits_are_written_in_qdq_form(format_):
    plain, other = done(format_), done(format_, {"nodes": ["head_fc1"], "weights": "int4"})
    assert changed(weights(plain), weights(other)) == {"head_fc1"}
    types = {t.name: t.data_type for t in other.model.graph.initializer}
    assert types["w3_quantized"] == onnx.TensorProto.INT4
    if format_ == "qlinear":
        assert (plain.ops["QLinearMatMul"], other.ops["QLinearMatMul"], other.ops["MatMul"]) == (2, 1, 1)
    assert other.sqnr() > 12


@pytest.mark.parametrize("format_", FORMATS)
def test_per_channel(format_):
    plain, other = done(format_), done(format_, {"nodes": ["op:Conv"], "per_channel": False})
    assert changed(weights(plain), weights(other)) == {"stem_conv", "mid_conv"}
    assert changed(tensors(plain), tensors(other)) == set()
    assert weights(other)["mid_conv"].scale.shape == ()
    assert weights(other)["head_fc1"].scale.shape == (12,)


@pytest.mark.parametrize("format_", FORMATS)
def test_activations(format_):
    plain, other = done(format_), done(format_, {"nodes": ["head_fc2"], "activations": "uint16"})
    assert changed(tensors(plain), tensors(other)) == {"g", "y"}  # what it reads; and what it writes, which none reads
    assert {other.params(n).dtype.name for n in "gy"} == {"uint16"}
    assert changed(weights(plain), weights(other)) == set()
    if format_ == "qlinear":  # neither product has an operator for two types of activations
        assert other.ops["QLinearMatMul"] == 0
        assert other.ops["QLinearConv"] == 2


@pytest.mark.parametrize("format_", FORMATS)
def test_activations_of_a_mover_go_with_what_it_moves(format_):
    other = done(format_, {"nodes": ["head_fc1"], "activations": "int8"})
    assert {n for n, p in tensors(other).items() if p.dtype.name == "int8"} == {"e", "f"}


@pytest.mark.parametrize("format_", FORMATS)
def test_symmetric(format_):
    plain, other = done(format_), done(format_, {"nodes": ["mid_conv"], "symmetric": True})
    # the Relu in front is no longer absorbed: its zero point is not the lowest code any more
    assert set(tensors(other)) - set(tensors(plain)) == {"a"}
    assert other.zero_point("c") == other.zero_point("b") == 128
    assert {n: p for n, p in tensors(plain).items() if n not in ("b", "c")}.items() <= tensors(other).items()
    assert (other.got["y"] == other.got["y"]).all()
    assert other.sqnr() > 20


@pytest.mark.parametrize("format_", FORMATS)
def test_method(format_):
    plain = done(format_, method="minmax")
    other = done(format_, {"nodes": ["head_fc2"], "method": "percentile:90"}, method="minmax")
    assert changed(tensors(plain), tensors(other)) == {"g", "y"}
    assert other.scale("g") < plain.scale("g")
    # a tensor's own method is more particular than that of the node that reads it
    both = done(
        format_, {"nodes": ["head_fc2"], "method": "percentile:90"}, method="mse", tensor_methods={"g": "minmax"}
    )
    assert both.params("g") == plain.params("g")


def test_format_of_single_nodes():
    plain = done("qlinear")
    other = done("qlinear", {"nodes": ["mid_conv"], "format": "qdq"})
    assert (plain.ops["QLinearConv"], other.ops["QLinearConv"], other.ops["Conv"]) == (2, 1, 1)
    assert changed(tensors(plain), tensors(other)) == set()
    mixed = done("qdq", {"nodes": ["mid_*"], "format": "qlinear"})
    assert (mixed.ops["QLinearConv"], mixed.ops["Conv"], mixed.ops["QLinearMatMul"]) == (1, 1, 0)
    assert [n.name for n in mixed.model.graph.node if n.op_type == "QLinearConv"] == ["mid_conv"]


@pytest.mark.parametrize("format_", FORMATS)
def test_float(format_):
    other = done(format_, {"nodes": ["head_fc2"], "float": True})
    assert other.reason("head_fc2") == "kept in float by the override of 'head_fc2'"
    assert "head_fc1" in other.quantized()
    assert weights(other).keys() == {"stem_conv", "mid_conv", "head_fc1"}


# ---------------------------------------------------------------------------------------------- several at a time


def test_the_last_one_that_says_something_counts():
    other = done(
        "qdq",
        {"nodes": ["head_*"], "weights": "uint8", "per_channel": False},
        {"nodes": ["head_fc2"], "weights": "int8"},
    )
    found = weights(other)
    assert (found["head_fc1"].dtype.name, found["head_fc2"].dtype.name) == ("uint8", "int8")
    assert found["head_fc2"].scale.shape == ()


SHARED = build(
    """m (float[N,8] x) => (float[N,4] q, float[N,4] k) {
        [q] q = MatMul(x, w1)
        [k] k = MatMul(x, w2)
    }""",
    {"w1": normal(8, 4, seed=1), "w2": normal(8, 4, seed=2)},
    opset=21,
    ir_version=10,
)
S = {"x": normal(16, 8, seed=3)}


def test_readers_of_one_tensor():
    # one override outranks readers without any
    result = qtool.quantize(SHARED, S, format="qdq", overrides=[{"nodes": ["q"], "activations": "uint16"}])
    assert result.plan.tensors["x"].dtype.name == "uint16"
    # two that say the same agree, two that do not are refused
    both = [{"nodes": ["q"], "activations": "uint16"}, {"nodes": ["k"], "activations": "int16"}]
    with pytest.raises(ConfigError, match="disagree about 'x': activations is uint16 for 'q' and int16 for 'k'"):
        qtool.quantize(SHARED, S, format="qdq", overrides=both)
    with pytest.raises(ConfigError, match="disagree about 'x': method is mse for 'q' and minmax for 'k'"):
        qtool.quantize(
            SHARED, dry_run=True, overrides=[both[0] | {"method": "mse"}, {"nodes": ["k"], "method": "minmax"}]
        )
    # one weight under two settings is stored twice
    tied = onnx.ModelProto.FromString(SHARED.SerializeToString())
    tied.graph.node[1].input[1] = "w1"
    del tied.graph.initializer[1]
    result = qtool.quantize(tied, S, overrides=[{"nodes": ["k"], "per_channel": False}])
    assert len([t for t in result.model.graph.initializer if t.name.startswith("w1_quantized")]) == 2


def test_an_operator_that_there_is_none_of_is_refused():
    wrong = {"nodes": ["head_fc1"], "format": "qlinear"}
    with pytest.raises(ConfigError, match="asks for the operator form of 'head_fc1', whose types there is no operator"):
        done("qdq", wrong, {"nodes": ["head_fc2"], "activations": "uint16"})
    with pytest.raises(ConfigError, match="Override of 'head_fc1': Format qlinear has no operator for uint8 activ"):
        done("qdq", wrong | {"weights": "int4"})


def test_what_matches_no_quantized_node_is_said():
    result = qtool.quantize(
        NET, X, overrides=[{"nodes": ["op:Relu"], "weights": "uint8"}, {"nodes": ["domain:ai.onnx"], "method": "mse"}]
    )
    assert not any("changes nothing" in note for note in result.notes)  # absorbed, and so quantized
    result = qtool.quantize(NET, X, exclude=["head_*"], overrides=[{"nodes": ["head_*"], "weights": "uint8"}])
    assert "Override of 'head_*' (weights uint8) changes nothing: no node that it matches is quantized" in result.notes


# -------------------------------------------------------------------------------------------------- the other modes


def test_dynamic_mode():
    plain = qtool.quantize(NET, X, dynamic=True)
    other = qtool.quantize(
        NET, X, dynamic=True,
        overrides=[
            {"nodes": ["head_fc1"], "weights": "uint8", "per_channel": False}, {"nodes": ["head_fc2"], "float": True}
        ],
    )  # fmt: skip
    found = {d.node: d.weights[0].params for d in other.plan.decisions}
    assert found["head_fc1"].dtype.name == "uint8"
    assert found["head_fc1"].scale.shape == ()
    assert {d.node for d in plain.plan.decisions} - found.keys() == {"head_fc2"}


def test_weight_only_mode():
    model = build(
        "m (float[N,64] x) => (float[N,32] y) { [a] h = MatMul(x, w1) [b] y = MatMul(h, w2) }",
        {"w1": normal(64, 64, seed=1), "w2": normal(64, 32, seed=2)},
    )
    result = qtool.quantize(
        model, weight_only=True, weights="int8",
        overrides=[{"nodes": ["b"], "weights": "int4", "block": 16}],
    )  # fmt: skip
    notes = {d.node: d.note for d in result.plan.decisions}
    assert notes["a"].startswith("int8 per channel")
    assert notes["b"].startswith("int4 blocks of 16")
    assert {o.version for o in result.model.opset_import} == {21}
    assert json.loads({p.key: p.value for p in result.model.metadata_props}["qtool.config"])["overrides"] == [
        {"nodes": ["b"], "weights": "int4", "block": 16}
    ]


# ----------------------------------------------------------------------------------------------- mistakes and files


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"nodes": ["op:Conv"], "weights": "banana"}, "Override of 'op:Conv': Option 'weights' is 'banana'; expected"),
        ({"nodes": ["op:Conv"], "activations": "int4"}, "Option 'activations' is 'int4'; expected one of uint8"),
        ({"nodes": ["op:Conv"], "format": "x"}, "Option 'format' is 'x'; expected one of qlinear, qdq."),
        ({"nodes": ["op:Conv"], "per_channel": 3}, "Option 'per_channel' is 3; expected true or false."),
        ({"nodes": ["op:Conv"], "symmetric": "yes"}, "Option 'symmetric_activations' is 'yes'; expected true or"),
        ({"nodes": ["op:Conv"], "method": "banana"}, "Override of 'op:Conv': Unknown range method 'banana'"),
        ({"nodes": ["op:Conv"], "weights": "int2"}, "Weights of int2 do not go with uint8 activations"),
        ({"nodes": ["op:Conv"], "block": 32}, "gives block, which static mode has no use for"),
        ({"nodes": ["op:Conv"], "wieghts": "int8"}, "Unknown option 'wieghts' in an override of 'op:Conv';"),
        ({"nodes": ["op:Conv"]}, "Override of 'op:Conv' says nothing"),
        ({"nodes": ["op:Conv"], "float": True, "weights": "int8"}, "leaves nodes in float and gives weights"),
        ({"weights": "int8"}, "An override has nodes None; expected a list of patterns."),
        ({"nodes": ["had_fc1"], "weights": "int8"}, "Override of 'had_fc1' matches no node of the model."),
        ({"nodes": ["domain:com.microsoft"], "float": True}, "Override of 'domain:com.microsoft' matches no node"),
    ],
)  # fmt: skip
def test_mistakes(table, said):
    with pytest.raises(ConfigError) as caught:
        qtool.quantize(NET, dry_run=True, overrides=[table])
    assert said in caught.value.message


def test_nearest_names():
    for pattern, near in (("had_fc1", "'head_fc1'"), ("domain:x", "domain:ai.onnx"), ("ai.onnx", "'domain:ai.onnx'")):
        with pytest.raises(ConfigError) as caught:
            qtool.quantize(NET, dry_run=True, exclude=[pattern])
        assert near in (caught.value.hint or "")


def test_a_domain_is_a_selection():
    nodes = [*NET.graph.node]
    model = onnx.ModelProto.FromString(NET.SerializeToString())
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.node.append(onnx.helper.make_node("Gelu", ["y"], ["z"], "gelu", domain="com.microsoft"))
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    model.graph.output[0].name = "z"
    plan = qtool.quantize(model, dry_run=True, exclude=["domain:com.microsoft"]).plan
    assert {s.node: s.reason for s in plan.skips}["gelu"].startswith("operator of the domain")
    assert qtool.quantize(model, dry_run=True, include=["domain:ai.onnx"]).quantized == plan.quantized
    with pytest.raises(qtool.QtoolError, match="0 of"):
        qtool.quantize(model, dry_run=True, include=["domain:com.*"])


def test_from_a_file_and_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    np.savez("c.npz", **X)
    Path("c.toml").write_text(
        '[quantize]\nformat = "qdq"\n\n[[quantize.override]]\nnodes = ["head_*"]\nweights = "uint8"\n'
        "per-channel = false\n"
        '\n[[quantize.override]]\nnodes = ["op:Conv"]\nmethod = "percentile:99.9"\n'
    )
    assert run_command(capsys, "quantize", "m.onnx", "--calib", "c.npz", "--config", "c.toml", "-o", "a.onnx").code == 0
    options = ["--override", "head_*=weights:uint8,per_channel:false", "--override", "op:Conv=method:percentile:99.9"]
    base = ["quantize", "m.onnx", "--calib", "c.npz", "--format", "qdq"]
    assert run_command(capsys, *base, *options, "-o", "b.onnx").code == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    recorded = {p.key: p.value for p in onnx.load("a.onnx").metadata_props}["qtool.config"]
    assert json.loads(recorded)["overrides"] == [
        {"nodes": ["head_*"], "weights": "uint8", "per_channel": False},
        {"nodes": ["op:Conv"], "method": "percentile:99.9"},
    ]
    ended = run_command(capsys, *base, "--override", "head_*=float", "--dry-run", "--json", "-")
    skips = {s["node"]: s["reason"] for s in json.loads(ended.out)["plan"]["skips"]}
    assert skips["head_fc1"] == "kept in float by the override of 'head_*'"
    for text, said in (
        ("head_*", "has no settings"),
        ("a=b", "holds 'b'; expected KEY:VALUE"),
        ("=x:1", "no settings"),
    ):
        ended = run_command(capsys, *base, "--override", text)
        assert ended.code == 2
        assert said in ended.err


def test_the_text_of_an_override():
    assert parse_override("a=b/*=weights:int8,float") == {"nodes": ["a=b/*"], "weights": "int8", "float": True}
    assert parse_override("x=block:16,symmetric:false") == {"nodes": ["x"], "block": 16, "symmetric": False}


def test_the_plan_shows_them():
    plan = qtool.quantize(NET, dry_run=True, overrides=[{"nodes": ["head_fc1"], "weights": "int4"}]).plan
    rows = {d["node"]: d for d in plan.to_dict()["decisions"]}
    assert rows["head_fc1"]["override"] == {"weights": "int4"}
    assert rows["head_fc1"]["written_as"] == "qdq"
    assert "override" not in rows["mid_conv"]
