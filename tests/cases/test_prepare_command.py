"""qtool prepare and --no-prepare: the float surgery alone, and quantization without it."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool.errors import ConfigError, ModelError, VerificationError
from tests.ended import run_command
from tests.models import FORMATS, build, check_structure, normal, run, sqnr_db

# a Conv with a BatchNormalization, a Relu6 of two nodes, weights behind Transpose and Constant, a dead end
TEXT = """m (float[N,4,8,8] x) => (float[N,5] y) {
    [conv] h = Conv<pads=[1,1,1,1]>(x, w)
    [bn] n = BatchNormalization(h, s, t, m, v)
    [relu] r = Relu(n)
    [six] q = Min(r, six)
    [conv2] k = Conv(q, w2)
    [pool] p = GlobalAveragePool(k)
    [flat] f = Flatten(p)
    [tr] g = Transpose(u)
    [fc] y = Gemm<alpha=0.5>(f, g, b)
    [dead] z = Neg(f)
}"""
ARRAYS = {
    "w": normal(6, 4, 3, 3, scale=0.3), "s": normal(6, seed=1) + 2, "t": normal(6, seed=2), "m": normal(6, seed=3),
    "v": normal(6, seed=4) ** 2 + 0.5, "six": np.asarray(6, np.float32), "w2": normal(8, 6, 3, 3, seed=5, scale=0.3),
    "u": normal(5, 8, seed=6), "b": normal(5, seed=7),
}  # fmt: skip
DATA = {"x": normal(16, 4, 8, 8, seed=8)}
DONE = (
    "removed 1 node that no output needs",
    "evaluated 1 node with constant inputs",
    "folded 1 BatchNormalization into the weights before",
    "normalized 1 Gemm",
    "wrote 2 clamps (Min, Max, Relu, Clip) as Relu or Clip",
)


def source(opset: int = 17) -> onnx.ModelProto:
    return build(TEXT, ARRAYS, opset=opset)


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    onnx.save(source(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **DATA)
    monkeypatch.chdir(tmp_path)
    return partial(run_command, capsys)


def test_prepare_in_memory():
    model = source()
    before = model.SerializeToString()
    result = qtool.prepare(model)
    assert model.SerializeToString() == before
    assert (result.model_path, result.verified_on, result.verified_samples) == (None, "random", 2)
    assert ops(result.model) == ["Conv", "Clip", "Conv", "GlobalAveragePool", "Flatten", "Gemm"]
    assert set(result.actions) == set(DONE)
    assert (result.nodes_before, result.nodes_after) == (10, 6)
    assert (result.opset_before, result.opset_after) == (17, 17)
    assert result.sqnr_db["y"] > 100
    onnx.checker.check_model(result.model, full_check=True)
    assert sqnr_db(run(model, DATA)["y"], run(result.model, DATA)["y"]) > 100
    assert not any(node.metadata_props for node in result.model.graph.node)


def test_the_prepared_model_is_a_fixed_point():
    once = qtool.prepare(source()).model
    again = qtool.prepare(once)
    assert again.actions == ()
    assert again.model.graph.SerializeToString() == once.graph.SerializeToString()


def test_the_command(command):
    ended = command("prepare", "m.onnx", "--json", "r.json")
    assert (ended.code, ended.out) == (0, "m.prepared.onnx\n")
    for line in DONE:
        assert line in ended.err.splitlines()
    assert "Nodes     10 -> 6" in ended.err
    report = json.loads(Path("r.json").read_text())
    assert report["model"] == "m.prepared.onnx"
    assert set(report["actions"]) == set(DONE)
    assert (report["nodes_before"], report["nodes_after"], report["verified_on"]) == (10, 6, "random")
    metadata = {p.key: p.value for p in onnx.load("m.prepared.onnx").metadata_props}
    assert set(json.loads(metadata["qtool.prepared"])) == set(DONE)
    assert len(metadata["qtool.source.sha256"]) == 64
    # not again without --force, and never over the model itself
    assert "exists already" in command("prepare", "m.onnx").err
    assert command("prepare", "m.onnx", "--force").code == 0
    assert command("prepare", "m.onnx", "-o", "m.onnx", "--force").code == 2


def test_samples_opset_and_json_on_stdout(command):
    ended = command("prepare", "m.onnx", "--calib", "c.npz", "--opset", "21", "-o", "o.onnx", "--json", "-")
    report = json.loads(ended.out)
    assert (report["verified_on"], report["opset_before"], report["opset_after"]) == ("given", 17, 21)
    assert onnx.load("o.onnx").opset_import[0].version == 21
    assert sqnr_db(run(source(), DATA)["y"], run(onnx.load("o.onnx"), DATA)["y"]) > 100
    lower = command("prepare", "m.onnx", "--opset", "13", "-o", "p.onnx")
    assert lower.code == 0
    assert onnx.load("p.onnx").opset_import[0].version == 17  # raised only


def test_refusals(command):
    with pytest.raises(ConfigError, match=r"Opset 99 does not exist"):
        qtool.prepare(source(), opset=99)
    quantized = qtool.quantize(source(), DATA).model
    with pytest.raises(ModelError, match="quantized already"):
        qtool.prepare(quantized)
    prepared = qtool.prepare(quantized, force=True)
    counts = [Counter(ops(model)) for model in (quantized, prepared.model)]
    assert counts[0]["QLinearConv"] == counts[1]["QLinearConv"] == 2
    scan = """<ir_version: 3, opset_import: ["": 8]> m (float[1,3,2] s) => (float[1,3,2] y) {
        y = Scan<num_scan_inputs=1, body = b (float[2] a) => (float[2] r) { r = Add(a, a) }>("", s) }"""
    with pytest.raises(ModelError, match="Operator Scan"):
        qtool.prepare(onnx.parser.parse_model(scan), opset=13)
    onnx.save(source(), "m.onnx")
    assert command("prepare", "missing.onnx").code == 2


def test_a_result_that_does_not_hold_is_not_put_in_place(command, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise VerificationError("The quantized model does not run: no.")

    monkeypatch.setattr("qtool.publish.publish", broken)
    ended = command("prepare", "m.onnx")
    assert ended.code != 0
    assert "The prepared model does not run" in ended.err
    assert not Path("m.prepared.onnx").exists()


def test_a_model_whose_weights_lie_beside_it(tmp_path):
    onnx.save(source(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    result = qtool.prepare(tmp_path / "m.onnx")
    assert result.model_path == tmp_path / "m.prepared.onnx"
    assert result.sqnr_db["y"] > 100
    assert sqnr_db(run(source(), DATA)["y"], run(onnx.load(result.model_path), DATA)["y"]) > 100


# ---------------------------------------------------------------------------------------------------- --no-prepare


@pytest.mark.parametrize("form", FORMATS)
def test_without_preparation_the_result_is_another_and_still_right(form):
    results = [qtool.quantize(source(), DATA, format=form, prepare=prepare) for prepare in (True, False)]
    with_, without = (Counter(ops(result.model)) for result in results)
    assert (with_["BatchNormalization"], without["BatchNormalization"]) == (0, 1)
    assert (with_["Min"], without["Min"]) == (0, 1)
    assert results[0].quantized > results[1].quantized > 0
    assert results[1].actions == ()
    for result in results:
        onnx.checker.check_model(result.model, full_check=True)
        check_structure(result.model)
        for optimize in (False, True):
            got = run(result.model, DATA, optimize=optimize)["y"]
            assert sqnr_db(run(source(), DATA)["y"], got) > 25
    record = {p.key: p.value for p in results[1].model.metadata_props}
    assert json.loads(record["qtool.config"])["prepare"] is False


@pytest.mark.parametrize("form", FORMATS)
def test_a_prepared_model_quantized_without_preparation_is_what_the_model_becomes(form):
    normal_way = qtool.quantize(source(), DATA, format=form)
    prepared = qtool.prepare(source()).model
    other_way = qtool.quantize(prepared, DATA, format=form, prepare=False)
    assert other_way.model.graph.SerializeToString() == normal_way.model.graph.SerializeToString()


def test_what_a_plan_needs_is_done_all_the_same():
    """Names, Constant nodes, initializers among the inputs, and the opset for scales per channel."""
    model = build(TEXT.replace("[conv] ", "").replace("<alpha=0.5>", ""), ARRAYS, opset=11, ir_version=6)
    constant = onnx.helper.make_node("Constant", [], ["w2"], value=model.graph.initializer[6])
    assert model.graph.initializer[6].name == "w2"
    del model.graph.initializer[6]
    model.graph.node.insert(0, constant)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [6, 4, 3, 3]))
    result = qtool.quantize(model, DATA, prepare=False)
    assert result.by_op["Conv"] == (2, 2)
    assert result.model.opset_import[0].version == 13
    assert set(result.actions) == {
        "lifted 1 Constant node to initializers",
        "took 1 initializer off the graph inputs",
        "raised the opset from 11 to 13",
    }


def test_the_flag_in_every_command(command):
    Path("c.toml").write_text("[quantize]\nprepare = false\n")
    base = ("quantize", "m.onnx", "--calib", "c.npz")
    assert command(*base, "-o", "a.onnx").code == 0
    assert command(*base, "-o", "b.onnx", "--no-prepare").code == 0
    assert command(*base, "-o", "c.onnx", "--config", "c.toml").code == 0
    assert command(*base, "-o", "d.onnx", "--config", "c.toml", "--prepare").code == 0
    a, b, c, d = (Path(f"{name}.onnx").read_bytes() for name in "abcd")
    assert a == d != b == c
    inspected = [command("inspect", "m.onnx", *more).out for more in ((), ("--no-prepare",))]
    assert ["BatchNormalization" in text for text in inspected] == [False, True]
    assert command("calibrate", "m.onnx", "--data", "c.npz", "--no-prepare", "-o", "s.npz").code == 0
    assert command("quantize", "m.onnx", "--stats", "s.npz", "-o", "e.onnx").code == 2  # of another graph
    assert command("quantize", "m.onnx", "--stats", "s.npz", "--no-prepare", "-o", "e.onnx").code == 0
    assert onnx.load("e.onnx").graph == onnx.load("b.onnx").graph


@pytest.mark.parametrize("mode", [{"dynamic": True}, {"weight_only": True, "weights": "int8"}])
def test_the_other_modes(mode):
    text = """m (float[N,4,8,8] x) => (float[N,64] y) {
        h = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(h, s, t, m, v) f = Flatten(n) y = MatMul(f, k)
    }"""
    model = build(text, {n: ARRAYS[n] for n in "wstmv"} | {"k": normal(384, 64, seed=9)})
    results = [qtool.quantize(model, prepare=prepare, **mode) for prepare in (True, False)]
    assert [ops(result.model).count("BatchNormalization") for result in results] == [0, 1]
    for result in results:
        assert result.by_op["MatMul"] == (1, 1)
        assert sqnr_db(run(model, DATA)["y"], run(result.model, DATA)["y"]) > 30
