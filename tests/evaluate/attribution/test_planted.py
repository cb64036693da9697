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
from tests.evaluate.attribution.conftest import WIDTH, Folder, chain, set_weight, weight_of


def db(folder: Folder, quant: Path, engine: str = "ort") -> float:
    report = qtool.evaluate(folder.model, quant, folder.data, latency=False, metrics=["sqnr"], engine=engine)
    value = report.outputs[0].values["sqnr"]
    assert value is not None
    return value


def attribution(folder: Folder) -> Attribution:
    report = qtool.evaluate(folder.model, folder.quant, folder.data, latency=False, metrics=["sqnr"], layers=True)
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


@pytest.mark.parametrize("layers", [3, 30])
def test_saturating_pair(folder: Folder, layers: int) -> None:
    """Neighbouring weights and activations that are both as large as they can be: exact with VNNI, not without."""
    model, culprit = chain(layers), 2  # deeper, the largest values are too far above the usual ones
    first_weight = weight_of(model, "w0")
    first_weight[1::2] *= 0.01  # no pair of the first layer, whose codes are high, leaves int16
    set_weight(model, "w0", first_weight)
    before, weight = weight_of(model, f"w{culprit - 1}"), weight_of(model, f"w{culprit}")
    before[:, :2] = 0.5  # of values behind a Relu: always positive, and the largest
    weight[:2] = np.abs(weight).max()
    set_weight(model, f"w{culprit - 1}", before)
    set_weight(model, f"w{culprit}", weight)
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    found = attribution(folder)
    first = found.layers[0]
    assert (first.node, first.cause, first.suggestion) == (f"fc{culprit}", Cause.SATURATION, "--target avx2")
    assert first.saturated is not None
    assert first.saturated > 0
    assert any("without VNNI" in note for note in found.notes)
    healthy, broken = db(folder, folder.quant), db(folder, folder.quant, "spec-avx2")
    assert healthy > broken + 3
    if layers == 3:  # deeper, others saturate as well, on samples that --target avx2 does not look at
        assert recovered(broken, db(folder, pasted(found, folder), "spec-avx2"), healthy) >= 0.9
