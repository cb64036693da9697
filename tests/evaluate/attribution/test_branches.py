"""Quantized operators inside the branches of If, and what is said of those that are not looked at."""

from __future__ import annotations

import shlex

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import qtool
from qtool.cli.app import app
from qtool.errors import ConfigError
from qtool.evaluate.attribution.branches import _quantized
from qtool.evaluate.attribution.report import Cause
from qtool.evaluate.report import Report
from qtool.evaluate.writers.layers import layer_notes
from tests.emit.test_branches import ARRAYS, TWO, sample
from tests.models import build

NESTED = """m (float[1,4,8,8] x, bool c) => (float[1,4,8,8] y) {
    h = Sin(x)
    n = Not(c)
    [if] y = If(c) <
        then_branch = t () => (float[1,4,8,8] a) {
            [inner] g = If(n) <
                then_branch = tt () => (float[1,4,8,8] k) { k = Identity(h) },
                else_branch = te () => (float[1,4,8,8] k2) { [deep] k2 = Conv<pads=[1,1,1,1]>(h, w, b) }
            >
            [second] a = Conv<pads=[1,1,1,1]>(g, v)
        },
        else_branch = e () => (float[1,4,8,8] d) { d = Tanh(h) }
    >
}"""


def models(tmp_path, text, samples, **settings):
    path, quant = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    onnx.save(build(text, ARRAYS), path)
    qtool.quantize(path, samples, output=quant, **settings)
    return path, quant


def report(path, quant, samples, **options) -> Report:
    return qtool.evaluate(path, quant, samples, latency=False, metrics=["sqnr"], checks="none", **options)


def planted(quant, name: str) -> None:
    """Make the weight's scale of one product wrong."""
    model = onnx.load(quant)
    (scale,) = [t for t in model.graph.initializer if t.name == name]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.5), name))
    onnx.save(model, quant)


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_the_branch_that_runs(tmp_path, format_):
    samples = [sample(seed, True) for seed in range(4)]
    path, quant = models(tmp_path, TWO, [*samples, sample(9, False)], format=format_)
    planted(quant, "v_scale")
    found = report(path, quant, samples, layers=True, sensitivity=True)
    assert found.layers is not None
    assert found.sensitivity is not None
    assert (found.layers.layers[0].node, found.layers.layers[0].cause) == ("second", Cause.WEIGHT)
    assert [row.node for row in found.layers.layers] == ["second", "conv"]
    # 1.5 W instead of W
    assert found.layers.layers[0].weight_db == pytest.approx(20 * np.log10(2), abs=0.1)
    assert found.layers.left_out == (("other", "it is in a branch of 'if' that no sample takes"),)
    assert found.layers.samples == 4
    assert found.layers.commands[0].text.endswith(f"--exclude second -o {tmp_path / 'model.int8.fixed.onnx'}")
    assert found.sensitivity.units[0].node == "second"
    assert found.sensitivity.units[0].gain_db > 20
    assert found.sensitivity.left_out == found.layers.left_out


def test_names_that_another_branch_has_as_well(tmp_path):
    """The value g of the second branch is g_1 in the quantized model."""
    samples = [sample(seed, False) for seed in range(3)]
    path, quant = models(tmp_path, TWO, [*samples, sample(9, True)])
    found = report(path, quant, samples, layers=True).layers
    assert found is not None
    assert [(row.node, row.output) for row in found.layers] == [("other", "g")]
    own = found.layers[0].own_db
    assert own is not None
    assert 30 < own < 60
    assert [node for node, _ in found.left_out] == ["conv", "second"]


def test_samples_that_differ(tmp_path):
    """Five of eight take the first branch: they are looked at, and the others' operators are named."""
    samples = [sample(seed, seed not in (1, 2, 6)) for seed in range(8)]
    path, quant = models(tmp_path, TWO, samples)
    found = report(path, quant, samples, layers=True).layers
    assert found is not None
    assert found.samples == 5
    assert sorted(row.node for row in found.layers) == ["conv", "second"]
    why = "it is in a branch of 'if' that 3 of 8 samples take; the 5 that agree with most were looked at"
    assert found.left_out == (("other", why),)
    alone = report(path, quant, [s for s in samples if s["c"]], layers=True).layers
    assert alone is not None
    assert alone.layers == found.layers


def test_branches_in_branches(tmp_path):
    samples = [sample(seed, True) for seed in range(2)]
    path, quant = models(tmp_path, NESTED, samples)
    planted(quant, "w_scale")
    found = report(path, quant, samples, layers=True).layers
    assert found is not None
    assert [row.node for row in found.layers] == ["deep", "second"]
    assert found.left_out == ()


def test_the_command_helps(tmp_path):
    samples = [sample(seed, True) for seed in range(4)]
    data = tmp_path / "calib.npz"
    np.savez(data, x=np.concatenate([s["x"] for s in samples]))
    model = build(TWO.replace(", bool c", "").replace("If(c)", "If(yes)"), ARRAYS | {"yes": np.asarray(True)})
    weight = next(t for t in model.graph.initializer if t.name == "v")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0, 0, 0] *= 1000
    weight.CopyFrom(numpy_helper.from_array(array, "v"))
    path, quant = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    onnx.save(model, path)
    qtool.quantize(path, data, output=quant, per_channel=False, prepare=False)
    found = report(path, quant, data, layers=True)
    assert found.layers is not None
    assert found.layers.layers[0].node == "second"
    words = shlex.split(found.layers.commands[0].text)
    assert words[-4:-2] == ["--exclude", "second"]
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    after = report(path, words[-1], data).outputs[0].values["sqnr"]
    before = found.outputs[0].values["sqnr"]
    assert after is not None
    assert before is not None
    assert after > before + 3


def test_loops_are_named(tmp_path):
    """A product in the body of a Loop: no row, and a note that says so; alone, an error that names it."""
    body = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["hq", "wq"], ["acc"], name="turned"),
            helper.make_node("Identity", ["keep"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("still", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("acc", onnx.TensorProto.INT32, None),
        ],
    )
    model = build(
        """m (float[2,4] x) => (float[2,4] y) {
        [product] h = MatMul(x, w)
        y = Relu(h)
    }""",
        {"w": np.eye(4, dtype=np.float32)},
    )
    path, quant = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    data = {"x": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)}
    qtool.quantize(path, data, output=quant)
    made = onnx.load(quant)
    for name, array in (
        ("trips", np.asarray(2, np.int64)),
        ("hq", np.ones((2, 4), np.uint8)),
        ("wq", np.ones((4, 4), np.int8)),
    ):
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.node.append(helper.make_node("Loop", ["trips", ""], ["all"], name="loop", body=body))
    onnx.save(made, quant)
    found = report(path, quant, data, layers=True)
    assert found.layers is not None
    assert [row.node for row in found.layers.layers] == ["product"]
    assert found.layers.left_out == (("turned", "it is in the body of Loop 'loop'"),)
    assert layer_notes(found.layers, None)[-1] == "No row is about 'turned': it is in the body of Loop 'loop'."
    weight_only = [
        helper.make_node("DequantizeLinear", ["wq", "s"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["z"]),
    ]
    assert list(_quantized(helper.make_graph(weight_only, "g", [], []))) == ["z"]

    del made.graph.node[:-1]
    del made.graph.output[:]
    made.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    made.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4]))
    onnx.save(made, quant)
    with pytest.raises(ConfigError, match="'turned': it is in the body of Loop 'loop'"):
        report(path, quant, data, layers=True)
