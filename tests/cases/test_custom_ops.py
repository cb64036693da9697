"""C42: a node of a custom domain between products. It is named, its library can be given, and it is never dropped."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool import api
from qtool.__main__ import main
from qtool.api import settings
from qtool.errors import ConfigError, ModelError
from qtool.runtime import custom_ops
from tests.cases.files_support import random

DATA = {"x": random(32, 8, seed=3)}


@pytest.fixture(autouse=True)
def _registered_here_only(monkeypatch):
    monkeypatch.setattr(custom_ops, "_libraries", [])


def between(op: str, domain: str, *outputs: str) -> onnx.ModelProto:
    """x -> MatMul -> a custom node, of whose outputs the last goes on -> MatMul -> y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node(op, ["a"], list(outputs), "custom", domain=domain),
        helper.make_node("MatMul", [outputs[-1], "v"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(random(8, 8, seed=s), name) for s, name in enumerate("wv")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_c42_an_unknown_operator_is_named_and_the_option_offered(tmp_path):
    model = between("Foo", "acme", "b")
    for call in (lambda: qtool.quantize(model, DATA), lambda: qtool.calibrate(model, DATA)):
        with pytest.raises(ModelError, match="acme:Foo") as caught:
            call()
        assert "--custom-ops LIB" in caught.value.hint
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="acme:Foo") as caught:
        qtool.quantize(tmp_path / "m.onnx", dynamic=True)
    assert "--custom-ops LIB" in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "words",
    [
        "quantize m.onnx --calib c.npz",
        "calibrate m.onnx --data c.npz",
        "eval m.onnx m.onnx --data c.npz",
        "compare m.onnx --reference m.onnx --data c.npz",
        "prepare m.onnx",
        "convert m.onnx --to qdq",
    ],
)
def test_what_is_no_library_of_operators(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("junk.so").write_bytes(b"junk")
    assert main([*shlex.split(words), "--custom-ops", "gone.so"]) == 2
    assert capsys.readouterr().err == "error: Library of custom operators 'gone.so' does not exist.\n"
    with pytest.raises(ConfigError, match=r"'junk\.so' cannot be loaded: "):
        qtool.register_custom_ops("junk.so")
    assert custom_ops.custom_op_libraries() == ()


def test_libraries_of_a_file(tmp_path, monkeypatch, capsys):
    """Paths start at the folder of the file, and the table of the command counts."""
    folder = tmp_path / "settings"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    file = folder / "c.toml"
    file.write_text("[quantize]\ncustom_ops = 'a.so'\n[eval]\ncustom-ops = ['b.so', '/c/c.so']\n")
    heard = []
    for module in (settings, api):
        monkeypatch.setattr(module, "register_custom_ops", heard.append)
    onnx.save(between("Relu", "", "p"), "m.onnx")
    main(["inspect", "m.onnx", "--config", "settings/c.toml"])
    assert heard == ["settings/a.so"]
    main(["eval", "m.onnx", "gone.onnx", "--data", "c.npz", "--config", "settings/c.toml", "--custom-ops", "d.so"])
    assert heard[1:] == ["d.so", "settings/b.so", "/c/c.so"]
    capsys.readouterr()
    file.write_text("custom_ops = [3]\n")
    assert main(["inspect", "m.onnx", "--config", "settings/c.toml"]) == 2
    said = "Option 'custom_ops' is [3]; expected the path of a library or a list of paths."
    assert capsys.readouterr().err == f"error: Config file 'settings/c.toml': {said}\n"


def test_a_library_of_a_file_that_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text("[quantize]\ncustom_ops = 'gone.so'\n[eval]\ncustom_ops = 'gone.so'\n")
    for words in ("quantize m.onnx --calib c.npz", "calibrate m.onnx --data c.npz", "eval m.onnx m.onnx --data c.npz"):
        assert main([*shlex.split(words), "--config", "c.toml"]) == 2
        assert capsys.readouterr().err == "error: Library of custom operators 'gone.so' does not exist.\n"


def test_the_spec_engines_say_that_they_have_no_such_operators(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(between("NegPos", "ai.onnx.contrib", "n", "p"), "m.onnx")
    inside = between("Relu", "", "p")
    branch = helper.make_graph([helper.make_node("Foo", ["a"], ["f"], domain="acme")], "then", [], [])
    inside.graph.node[1].CopyFrom(helper.make_node("If", ["c"], ["p"], "choice", then_branch=branch))
    for engine in ("spec", "spec-avx2"):
        with pytest.raises(ModelError) as caught:
            qtool.runtime.create_session(Path("m.onnx"), engine=engine)
        assert caught.value.message == (
            "Model 'm.onnx' is not accepted by the spec engine: node 'custom' is ai.onnx.contrib:NegPos, which no ONNX "
            "document describes."
        )
        assert caught.value.hint.startswith("Use the engine ort.")
        with pytest.raises(ModelError, match="engine: a node is acme:Foo, which no ONNX"):
            qtool.runtime.create_session(inside, engine=engine)


def test_c42_with_its_library_the_products_around_it_are_quantized(tmp_path, monkeypatch):
    extensions = pytest.importorskip("onnxruntime_extensions", reason="onnxruntime-extensions is not installed")
    monkeypatch.chdir(tmp_path)
    model = between("NegPos", "ai.onnx.contrib", "n", "p")  # min(a, 0) and max(a, 0)
    onnx.save(model, "m.onnx")
    np.savez("c.npz", **DATA)
    library = extensions.get_library_path()
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "--custom-ops", library]) == 0
    quantized = onnx.load("m.int8.onnx")
    (custom,) = [node for node in quantized.graph.node if node.domain == "ai.onnx.contrib"]
    assert (custom.op_type, custom.name, list(custom.output)) == ("NegPos", "custom", ["n", "p"])
    codes = {t.name: t.data_type for t in quantized.graph.initializer if t.name.endswith("_quantized")}
    assert codes == {"w_quantized": TensorProto.INT8, "v_quantized": TensorProto.INT8}
    # the same numbers as with Relu, which is what its second output is
    relu = between("Relu", "", "p")
    del relu.opset_import[1:]
    expected = qtool.runtime.create_session(relu).run(DATA)["y"]
    got = qtool.runtime.create_session(Path("m.int8.onnx")).run(DATA)["y"]
    assert np.square(expected).sum() > 1000 * np.square(expected - got).sum()
    report = qtool.evaluate("m.onnx", "m.int8.onnx", "c.npz", layers=True, checks="all", latency=False)
    assert [check.state for check in report.checks if check.name == "memory"] == ["ok"]
    assert report.layers is not None
    words = shlex.split(report.layers.commands[0].text)
    assert words[words.index("--custom-ops") + 1] == library
    assert main(words[1:]) == 0
    # the same from a file, with nothing registered before
    monkeypatch.setattr(custom_ops, "_libraries", [])
    Path("c.toml").write_text(f"[quantize]\ncustom_ops = {library!r}\n[eval]\ncustom_ops = {library!r}\n")
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "--config", "c.toml", "--force"]) == 0
    monkeypatch.setattr(custom_ops, "_libraries", [])
    evaluation = ["eval", "m.onnx", "m.int8.onnx", "--data", "c.npz", "--no-latency"]
    assert main([*evaluation, "--config", "c.toml"]) == 0
    assert main([*evaluation, "--engine", "spec"]) == 2
