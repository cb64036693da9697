"""The planted culprit is in the first row, and the first command recovers what it lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import qtool
from qtool.cli.app import app
from qtool.evaluate.attribution.report import Attribution, Cause
from tests.evaluate.attribution.conftest import WIDTH, Folder, chain, set_weight, weight_of, without_saturation


def db(folder: Folder, quant: Path, engine: str = "ort") -> float:
    report = qtool.evaluate(
        folder.model, quant, folder.data, latency=False, metrics=["sqnr"], engine=engine, checks="none"
    )
    value = report.outputs[0].values["sqnr"]
    assert value is not None
    return value


def attribution(folder: Folder, engine: str = "ort") -> Attribution:
    report = qtool.evaluate(
        folder.model,
        folder.quant,
        folder.data,
        latency=False,
        metrics=["sqnr"],
        layers=True,
        engine=engine,
        checks="none",
    )
    assert report.layers is not None
    return report.layers


def pasted(layers: Attribution, folder: Folder) -> Path:
    """Run the first command as it stands; where it wrote to."""
    words = shlex.split(layers.commands[0].text)
    assert words[:5] == ["qtool", "quantize", str(folder.model), "--calib", str(folder.calib)]
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    return Path(words[words.index("-o") + 1])


def recovered(before: float, after: float, healthy: float) -> float:
    return (after - before) / (healthy - before)


@pytest.mark.parametrize(("layers", "format_"), [(3, "qlinear"), (30, "qdq")])
def test_outlier_weight(folder: Folder, layers: int, format_: str) -> None:
    """C61: one weight a thousand times the others, on an input that is always 0, under one scale per tensor."""
    model, culprit = chain(layers), layers // 2
    settings = {"per_channel": False, "format": format_}
    before = weight_of(model, f"w{culprit - 1}")
    before[:, 3] = 0
    set_weight(model, f"w{culprit - 1}", before)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, **settings)
    healthy = db(folder, folder.quant)
    weight = weight_of(model, f"w{culprit}")
    weight[3, 5] = 1000 * np.abs(weight).max()
    set_weight(model, f"w{culprit}", weight)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, force=True, **settings)

    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == (f"fc{culprit}", Cause.WEIGHT, f"--exclude fc{culprit}")
    assert first.share is not None
    assert first.share > 0.95
    assert first.weight == "int8 per tensor"
    broken = db(folder, folder.quant)
    after = db(folder, pasted(found, folder))
    assert after > broken + min(20.0, 0.9 * (healthy - broken))
    assert recovered(broken, after, healthy) >= 0.9


@pytest.mark.parametrize(("layers", "format_"), [(3, "qdq"), (30, "qlinear")])
def test_clipped_range_in_the_file(folder: Folder, layers: int, format_: str) -> None:
    """The scale of one activation is a tenth of what it should be, wherever the file has it."""
    folder.save(chain(layers))
    qtool.quantize(folder.model, folder.calib, output=folder.quant, format=format_)
    healthy, culprit = db(folder, folder.quant), layers // 2
    model = onnx.load(folder.quant)
    (scale,) = [t for t in model.graph.initializer if t.name == f"h{culprit}_scale"]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) / np.float32(10), scale.name))
    onnx.save(model, folder.quant)

    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause) == (f"fc{culprit + 1}", Cause.CLIPPING)
    assert first.suggestion == f"--method h{culprit}=minmax"
    assert first.clipped is not None
    assert first.clipped > 0.2
    broken = db(folder, folder.quant)
    assert recovered(broken, db(folder, pasted(found, folder)), healthy) >= 0.9


def test_clipped_range_by_a_setting(folder: Folder) -> None:
    """A range method that cuts a tenth of the values; the new --method stands behind it, where it counts."""
    folder.save(chain(8))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    healthy = db(folder, folder.quant)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, force=True, tensor_methods={"h4": "percentile:90"})
    found = attribution(folder)
    assert (found.layers[0].node, found.layers[0].cause) == ("fc5", Cause.CLIPPING)
    assert "--method h4=percentile:90 --method h4=minmax" in found.commands[0].text
    broken = db(folder, folder.quant)
    assert recovered(broken, db(folder, pasted(found, folder)), healthy) >= 0.9


@pytest.mark.parametrize("layers", [3, 30])
def test_scale_along_the_wrong_axis(folder: Folder, layers: int) -> None:
    model, culprit = chain(layers), layers // 2
    weight = weight_of(model, f"w{culprit}") * np.geomspace(0.2, 5, WIDTH, dtype=np.float32)
    set_weight(model, f"w{culprit}", weight)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, format="qdq")
    healthy = db(folder, folder.quant)
    quant = onnx.load(folder.quant)
    (node,) = [n for n in quant.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"w{culprit}_quantized"]
    (axis,) = node.attribute
    assert (axis.name, axis.i) == ("axis", 1)
    axis.i = 0
    onnx.save(quant, folder.quant)

    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == (f"fc{culprit}", Cause.AXIS, None)
    assert first.weight == "int8 per channel (axis 0)"
    broken = db(folder, folder.quant)
    assert recovered(broken, db(folder, pasted(found, folder)), healthy) >= 0.9


def plant_a_pair(folder: Folder, layers: int, culprit: int, columns: int = WIDTH) -> None:
    """Neighbouring weights and activations that are both as large as they can be, in a model that has none so far."""
    model = without_saturation(layers)
    weight = weight_of(model, f"w{culprit}")
    weight[:2, :columns] = 0.9
    set_weight(model, f"w{culprit}", weight)
    if culprit:
        before = weight_of(model, f"w{culprit - 1}")
        before[:, :2] *= 2
        set_weight(model, f"w{culprit - 1}", before)
    folder.save(model)
    for seed, file in enumerate((folder.calib, folder.data)):
        np.savez(file, x=np.random.default_rng(seed).uniform(0, 1, (96, WIDTH)).astype(np.float32))


@pytest.mark.parametrize(
    ("layers", "culprit", "format_"),
    [
        (3, 0, "qdq"),
        (3, 1, "qlinear"),
        (3, 2, "qlinear"),
        (10, 5, "qdq"),
        (10, 9, "qlinear"),
        (30, 0, "qlinear"),
        (30, 15, "qlinear"),
        (30, 29, "qlinear"),
    ],
)
def test_saturating_pair(folder: Folder, layers: int, culprit: int, format_: str) -> None:
    """C63: exact with VNNI, not without; a few samples may have none."""
    plant_a_pair(folder, layers, culprit)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, format=format_)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == (f"fc{culprit}", Cause.SATURATION, "--target avx2")
    assert first.share is not None
    assert first.share > 0.8
    assert first.saturated is not None
    assert first.saturated > 500
    assert [layer.saturated for layer in found.layers[1:]] == [None] * (layers - 1)
    assert any("without VNNI" in note for note in found.notes)
    healthy, broken = db(folder, folder.quant), db(folder, folder.quant, "spec-avx2")
    assert healthy > broken + 10
    assert recovered(broken, db(folder, pasted(found, folder), "spec-avx2"), healthy) >= 0.9


def test_saturating_pairs_of_many_layers(folder: Folder) -> None:
    """The worst is planted in a model whose own pairs saturate now and then, in one sample of many."""
    model, culprit = chain(30), 16
    before, weight = weight_of(model, f"w{culprit - 1}"), weight_of(model, f"w{culprit}")
    before[:, :2] = 0.5  # of values behind a Relu: always positive, and the largest
    weight[:2] = np.abs(weight).max()
    first_weight = weight_of(model, "w0")
    first_weight[1::2] *= 0.01  # no pair of the first layer, whose codes are high, leaves int16
    for name, value in (("w0", first_weight), (f"w{culprit - 1}", before), (f"w{culprit}", weight)):
        set_weight(model, name, value)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    found = attribution(folder)
    assert (found.layers[0].node, found.layers[0].cause) == (f"fc{culprit}", Cause.SATURATION)
    assert sum(layer.saturated is not None for layer in found.layers) > 10
    healthy, broken = db(folder, folder.quant), db(folder, folder.quant, "spec-avx2")
    assert healthy > broken + 8
    assert recovered(broken, db(folder, pasted(found, folder), "spec-avx2"), healthy) >= 0.9


def soften(folder: Folder, culprit: int, second: float, columns: int = 1) -> None:
    """Make the second weight of the planted pair in some columns smaller: its sums leave int16 now and then."""
    model = onnx.load(folder.model)
    weight = weight_of(model, f"w{culprit}")
    weight[1, :columns] = second
    set_weight(model, f"w{culprit}", weight)
    folder.save(model)


@pytest.mark.parametrize(
    ("layers", "culprit", "columns", "second", "format_"),
    [(3, 1, 1, 0.6, "qlinear"), (10, 5, 2, 0.7, "qdq"), (30, 15, 2, 0.7, "qlinear")],
)
def test_mild_saturation_is_first_too(
    folder: Folder, layers: int, culprit: int, columns: int, second: float, format_: str
) -> None:
    """A column or two, whose pair leaves int16 now and then: 6 to 8 dB without VNNI and nothing with it."""
    plant_a_pair(folder, layers, culprit, columns)
    soften(folder, culprit, second, columns)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, format=format_)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == (f"fc{culprit}", Cause.SATURATION, "--target avx2")
    assert found.without_vnni
    assert first.own_db is not None
    assert first.saturation_db is not None
    assert first.own_without_vnni_db is not None
    assert 20 < first.own_without_vnni_db < first.saturation_db < 32
    assert first.own_db > first.own_without_vnni_db + 8
    noise = 10 ** (-first.own_db / 10) + 10 ** (-first.saturation_db / 10)
    assert first.own_without_vnni_db == pytest.approx(-10 * np.log10(noise), abs=1e-9)
    healthy, broken = db(folder, folder.quant), db(folder, folder.quant, "spec-avx2")
    assert 5 < healthy - broken < 9
    assert found.saturation_loss_db == pytest.approx(healthy - broken, abs=2.5)
    assert found.notes[-1].startswith(
        "Shares, ranks and causes are those on a processor without VNNI, where int16 sums saturate: the outputs would "
        f"lose about {found.saturation_loss_db:.1f} dB there. "
    )
    assert recovered(broken, db(folder, pasted(found, folder), "spec-avx2"), healthy) >= 0.9


def test_saturation_of_late_samples_is_measured(folder: Folder) -> None:
    """The first 64 samples have none: the batches in which units saturate most are looked at once more."""
    plant_a_pair(folder, 10, 0)
    for file in (folder.calib, folder.data):
        x = np.load(file)["x"]
        x[:64] *= 0.45
        np.savez(file, x=x)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.share_measured) == ("fc0", Cause.SATURATION, True)
    lost = db(folder, folder.quant) - db(folder, folder.quant, "spec-avx2")
    assert lost > 10
    assert found.saturation_loss_db == pytest.approx(lost, abs=1.5)


def test_saturation_that_costs_nothing_stands_behind_a_real_culprit(folder: Folder) -> None:
    """C61 and C63 in one model: an outlier weight that costs 20 dB, and pairs that leave int16 without being heard."""
    plant_a_pair(folder, 10, 7, columns=1)
    soften(folder, 7, 0.6)
    model, settings = onnx.load(folder.model), {"per_channel": False}
    outlier = weight_of(model, "w3")
    outlier[3, 5] = 100 * np.abs(outlier).max()
    before = weight_of(model, "w2")
    before[:, 3] = 0  # what the outlier is multiplied with
    for name, value in (("w2", before), ("w3", outlier)):
        set_weight(model, name, value)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, **settings)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == ("fc3", Cause.WEIGHT, "--exclude fc3")
    assert first.share is not None
    assert first.share > 0.95
    (saturated,) = [layer for layer in found.layers if layer.saturated]
    assert saturated.node == "fc7"
    assert found.saturation_loss_db is not None
    assert 0 < found.saturation_loss_db < 0.1
    assert not found.without_vnni
    assert Cause.SATURATION not in [layer.cause for layer in found.layers]
    assert not any("VNNI" in note for note in found.notes)

    # an engine that computes so counts however little it is, and ranks the same
    there = attribution(folder, engine="spec-avx2")
    assert there.without_vnni
    assert there.layers[0].node == "fc3"
    assert there.saturation_loss_db == found.saturation_loss_db


def test_what_was_made_for_such_processors_is_not_told_to_be(folder: Folder) -> None:
    """The file says --target avx2, and sums leave int16 that did not on the samples it was made with."""
    plant_a_pair(folder, 3, 1)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    quant = onnx.load(folder.quant)
    (entry,) = [entry for entry in quant.metadata_props if entry.key == "qtool.config"]
    entry.value = entry.value.replace('"ort-x64"', '"avx2"')
    onnx.save(quant, folder.quant)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == ("fc1", Cause.SATURATION, "--exclude fc1")
    assert "--target avx2 --exclude fc1 -o" in found.commands[0].text


def test_as_on_another_processor(folder: Folder) -> None:
    """What is found of it is the same as by default; commands for processors with VNNI come last."""
    plant_a_pair(folder, 3, 1, columns=1)
    soften(folder, 1, 0.6)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    plain, found = attribution(folder), attribution(folder, engine="spec-avx2")
    assert plain.layers == found.layers
    assert found.commands[-1].text.startswith(found.commands[0].text.split(" --target avx2")[0])
    assert found.commands[-1].why.startswith("for processors with VNNI only: fc2 stays float")


def test_products_that_are_computed_in_float_do_not_saturate(folder: Folder) -> None:
    """onnxruntime has no integer Gemm with alpha: its QDQ form is computed in float, on every processor."""
    plant_a_pair(folder, 3, 1)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, format="qdq")
    quant = onnx.load(folder.quant)
    node = next(node for node in quant.graph.node if node.name == "fc1")
    assert attribution(folder).layers[0].saturated
    node.op_type = "Gemm"
    node.attribute.append(onnx.helper.make_attribute("alpha", 0.5))
    onnx.save(quant, folder.quant)
    assert [layer.saturated for layer in attribution(folder).layers] == [None] * 3
