"""The parts of one operator against their definition in numpy, and files of other tools and modes."""

from __future__ import annotations

import json
import logging
import shlex

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qtool
from qtool.calibrate.samples import open_samples
from qtool.calibrate.statistics import TensorStatistics
from qtool.errors import ConfigError
from qtool.evaluate.attribution import attribute as attribution
from qtool.evaluate.attribution.command import Origin, command, exclusion, literal, origin_of
from qtool.evaluate.attribution.lazy import lazy_graph
from qtool.evaluate.attribution.operator import Operator
from qtool.evaluate.attribution.report import LayerReport, ranked
from qtool.evaluate.attribution.share import noises, shares
from qtool.evaluate.attribution.tally import coarse
from qtool.runtime import create_session
from tests.evaluate.attribution.conftest import WIDTH, Folder, chain, weight_of


def _db(y: np.ndarray, error: np.ndarray) -> float:
    noise = float(np.square(error, dtype=np.float64).sum())
    return np.inf if noise == 0 else float(10 * np.log10(np.square(y, dtype=np.float64).sum() / noise))


def layers(folder: Folder, **options: object) -> dict[str, LayerReport]:
    report = qtool.evaluate(
        folder.model, folder.quant, folder.data, latency=False, layers=True, checks="none", **options
    )
    assert report.layers is not None
    json.dumps(report.to_dict(), allow_nan=False)
    return {layer.node: layer for layer in report.layers.layers}


def test_parts_of_one_product(folder: Folder) -> None:
    """Every part of fc1 in a model of two products, computed by the definition from the constants in the file."""
    folder.save(chain(2))
    qtool.quantize(folder.model, folder.calib, output=folder.quant, tensor_methods={"h0": "percentile:95"})
    row = layers(folder)["fc1"]
    model, quant = onnx.load(folder.model), onnx.load(folder.quant)
    constants = {t.name: numpy_helper.to_array(t) for t in quant.graph.initializer}
    x = np.load(folder.data)["x"].astype(np.float64)
    w0, w1 = (weight_of(model, name).astype(np.float64) for name in ("w0", "w1"))
    h = np.maximum(x @ w0, 0)
    y = h @ w1
    scale, zero = float(constants["h0_scale"]), int(constants["h0_zero_point"])
    stored = constants["w1_quantized"].astype(np.float64) * constants["w1_scale"].astype(np.float64)
    codes = np.clip(np.rint(h / scale) + zero, 0, 255)
    low, high = (0 - zero) * scale, (255 - zero) * scale
    clamped = np.clip(h, low - scale / 2, high + scale / 2)
    rounded = (codes - zero) * scale
    weight, clip = h @ stored - y, (clamped - h) @ stored
    # nothing else reads the codes of the output: their rounding is fc1's, too
    y_scale, y_zero = float(constants["y_scale"]), int(constants["y_zero_point"])
    written = (np.clip(np.rint(rounded @ stored / y_scale) + y_zero, 0, 255) - y_zero) * y_scale
    bottom, top = (0 - y_zero) * y_scale, (255 - y_zero) * y_scale
    within = np.clip(clamped @ stored, bottom - y_scale / 2, top + y_scale / 2)
    clip += within - clamped @ stored
    rounding = written - within
    assert row.weight_db == pytest.approx(_db(y, weight), abs=0.02)
    assert row.clip_db == pytest.approx(_db(y, clip), abs=0.02)
    assert row.round_db == pytest.approx(_db(y, rounding), abs=0.02)
    assert row.own_db == pytest.approx(_db(y, weight + clip + rounding), abs=0.02)
    outside = (h < low - scale / 2) | (h > high + scale / 2)
    assert outside.sum() > 50
    assert row.clipped == outside.mean()
    assert (row.levels_used, row.levels) == (len(np.unique(codes)), 256)
    histogram, of_output = row.histograms
    assert (of_output.tensor, of_output.range_high) == ("y", pytest.approx(top))
    assert (histogram.tensor, sum(histogram.counts)) == ("h0", h.size)
    assert (histogram.range_low, histogram.range_high) == pytest.approx((low, high))
    assert histogram.low <= h.min() <= h.max() < histogram.high
    assert len(histogram.counts) <= 64
    assert row.cause == "clipping"


def test_the_first_operator_inherits_its_rounded_input_only(folder: Folder) -> None:
    folder.save(chain(3))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    rows = layers(folder)
    assert set(rows) == {"fc0", "fc1", "fc2"}
    first, last = rows["fc0"], rows["fc2"]
    assert first.clip_db is not None
    assert first.round_db is not None
    of_input = 10 ** (-first.clip_db / 10) + 10 ** (-first.round_db / 10)
    assert first.inherited_db == pytest.approx(-10 * np.log10(of_input), abs=1)
    assert last.total_db is not None
    assert last.inherited_db is not None
    assert last.total_db < last.inherited_db + 0.5
    assert sum(row.share or 0 for row in rows.values()) == pytest.approx(1)
    assert all(row.share_measured for row in rows.values())


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"dynamic": True}, "int8 per tensor"),
        ({"weight_only": True, "weights": "int4", "block": 16}, "int4 in blocks of 16 (axis 0)"),
        ({"format": "qdq", "activations": "int16"}, "int8 per channel (axis 1)"),
        ({"format": "qdq", "activations": "int8"}, "int8 per channel (axis 1)"),
    ],
)
def test_other_modes(folder: Folder, options: dict[str, object], weight: str) -> None:
    folder.save(chain(3))
    calib = None if "weight_only" in options else folder.calib
    qtool.quantize(folder.model, calib, output=folder.quant, per_channel=not options.get("dynamic", False), **options)
    rows = layers(folder)
    assert set(rows) == {"fc0", "fc1", "fc2"}
    assert {row.weight for row in rows.values()} == {weight}
    for row in rows.values():
        assert row.own_db is not None
        assert row.weight_db is not None
        assert (row.round_db is None) == ("weight_only" in options)
        assert row.own_db <= row.weight_db + 1.5


def test_a_file_of_onnxruntime(folder: Folder) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter([{"x": row[None]} for row in np.load(folder.calib)["x"]])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    folder.save(chain(4))
    logging.disable(logging.WARNING)
    try:
        quantize_static(folder.model, folder.quant, Reader(), quant_format=QuantFormat.QDQ)
    finally:
        logging.disable(logging.NOTSET)
    report = qtool.evaluate(
        folder.model, folder.quant, folder.data, latency=False, layers=True, sensitivity=True, checks="none"
    )
    assert report.layers is not None
    assert report.sensitivity is not None
    assert {layer.node for layer in report.layers.layers} >= {"fc0", "fc1", "fc2", "fc3"}
    products = [layer for layer in report.layers.layers if layer.op_type == "MatMul"]
    assert [layer.own_db is not None and 20 < layer.own_db < 60 for layer in products] == [True] * 4
    assert report.layers.left_out == ()
    assert "The quantized model does not record qtool's settings: the commands have the default ones." in (
        report.layers.notes
    )
    assert " --calib CALIB " in report.layers.commands[0].text
    assert {unit.node for unit in report.sensitivity.units} >= {"fc0", "fc1", "fc2", "fc3"}


def test_sensitivity_is_what_exclude_gains(folder: Folder) -> None:
    folder.save(chain(4))
    qtool.quantize(folder.model, folder.calib, output=folder.quant, per_channel=False)
    report = qtool.evaluate(
        folder.model, folder.quant, folder.data, latency=False, sensitivity=True, layer_samples=96, metrics=["sqnr"]
    )
    found = report.sensitivity
    assert found is not None
    assert found.samples == 96
    assert found.sqnr_db == pytest.approx(report.outputs[0].values["sqnr"], abs=0.01)
    gains = [unit.gain_db for unit in found.units]
    assert gains == sorted(gains, reverse=True)
    for unit in found.units:
        other = folder.path / f"{unit.node}.onnx"
        qtool.quantize(folder.model, folder.calib, output=other, per_channel=False, exclude=[unit.node])
        apart = qtool.evaluate(folder.model, other, folder.data, latency=False, metrics=["sqnr"], checks="none")
        excluded = apart.outputs[0].values["sqnr"]
        assert excluded is not None
        # --exclude also leaves float what another operator wrote as codes for this one alone
        assert unit.sqnr_db <= excluded + 0.5
        if unit.node == "fc0":  # nobody else writes its input
            assert unit.sqnr_db == pytest.approx(excluded, abs=0.1)
    assert f"--exclude {found.units[0].node}" in found.commands[0].text


def test_models_in_memory_are_not_changed(folder: Folder) -> None:
    model = chain(3)
    quant = qtool.quantize(model, folder.calib).model
    assert quant is not None
    before = model.SerializeToString(), quant.SerializeToString()
    report = qtool.evaluate(model, quant, folder.data, latency=False, layers=True, sensitivity=True, checks="none")
    assert (model.SerializeToString(), quant.SerializeToString()) == before
    assert report.layers is not None
    assert report.layers.commands[0].text.startswith("qtool quantize MODEL.onnx --calib ")


def test_unrelated_models_are_refused(folder: Folder) -> None:
    folder.save(chain(3))
    with pytest.raises(ConfigError, match="no quantized operator"):
        qtool.evaluate(folder.model, folder.model, folder.data, latency=False, layers=True)


def test_options_that_cannot_be(folder: Folder) -> None:
    folder.save(chain(2))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    with pytest.raises(ConfigError, match="onnxruntime only"):
        qtool.evaluate(folder.model, folder.quant, folder.data, layers=True, engine="spec")
    with pytest.raises(ConfigError, match="layers are not looked at"):
        qtool.evaluate(folder.model, folder.quant, folder.data, layer_samples=3)
    rows = qtool.evaluate(
        folder.model, folder.quant, folder.data, latency=False, layers=True, layer_samples=5, checks="none"
    ).layers
    assert rows is not None
    assert rows.samples == 5


def test_sessions_that_live_on_change_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save(chain(3))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    samples = open_samples(folder.data, create_session(folder.model).inputs)
    made: list[int] = []
    original = Operator._session
    monkeypatch.setattr(Operator, "_session", lambda *args: made.append(0) or original(*args))
    kept = attribution.attribute(folder.model, folder.quant, samples, layer_samples=5)
    assert len(made) == 2 * 3  # of the stored and the float weight of each operator, for both batches
    made.clear()
    monkeypatch.setattr(attribution, "KEPT_BYTES", 2 * 4 * WIDTH * WIDTH)  # of one operator
    assert attribution.attribute(folder.model, folder.quant, samples, layer_samples=5) == kept
    assert len(made) == 2 * 5


def test_shares() -> None:
    # the third was not measured: its ratio times the median gain of the others, which is 2
    assert shares(noises([0.1, 0.2, 0.1], {0: 0.2, 1: 0.4})) == pytest.approx([0.25, 0.5, 0.25])
    assert shares(noises([0.0, 0.0], {})) == [0.0, 0.0]
    assert shares(noises([0.1, np.inf], {0: 0.1})) == [0.0, 1.0]


def test_ranking_puts_what_is_broken_first_and_what_is_unknown_last() -> None:
    rows = [LayerReport(f"n{v}", "MatMul", "y", own_db=v) for v in (30.0, None, np.nan, 10.0)]
    assert [row.node for row in ranked(rows, "own")] == ["nnan", "n10.0", "n30.0", "nNone"]


def test_coarse_histogram() -> None:
    statistics = TensorStatistics.of(np.float32([-1, -1, 0, 0.5, 3]), histogram=True)
    low, high, counts = coarse(statistics, 8)
    assert (low, sum(counts)) == (-1, 5)
    assert counts[0] == 2
    assert 3 < high < 4
    assert len(counts) <= 8


def test_weights_stay_in_the_file(folder: Folder) -> None:
    model = chain(3)
    folder.save(model)
    lazy = lazy_graph(folder.model)
    assert lazy.proto.ByteSize() < 3000 < model.ByteSize()
    for tensor in lazy.proto.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        data = folder.model.read_bytes()[int(place["offset"]) :][: int(place["length"])]
        assert data == weight_of(model, tensor.name).tobytes()
    assert [n.name for n in lazy.proto.graph.node] == [n.name for n in model.graph.node]


def test_command_has_the_settings_of_the_file(folder: Folder) -> None:
    folder.save(chain(3))
    qtool.quantize(
        folder.model,
        folder.calib,
        output=folder.quant,
        format="qdq",
        activations="int8",
        per_channel=False,
        method="percentile:99.9",
        exclude=["fc1"],
        tensor_methods={"h*": "mse"},
    )
    origin = origin_of(onnx.load(folder.quant))
    assert command(origin, "m.onnx", "o p.onnx", ["c.npz"], [("--exclude", "fc0")]) == (
        "qtool quantize m.onnx --calib c.npz --format qdq --activations int8 --per-tensor --method percentile:99.9 "
        "--method 'h*=mse' --exclude fc1 --exclude fc0 -o 'o p.onnx'"
    )
    assert len(origin.calibration) == 1
    assert command(Origin({"dynamic": True}), "m.onnx", "o.onnx", []) == "qtool quantize m.onnx --dynamic -o o.onnx"
    assert command(Origin({}, random=4), "m", "o", []) == "qtool quantize m --random-calib 4 -o o"


def test_names_that_are_globs() -> None:
    assert literal("/a/MatMul") == "/a/MatMul"
    assert literal("a[0]*?") == "a[[]0][*][?]"
    assert exclusion("/a/MatMul") == "--exclude '/a/MatMul'"
    assert shlex.split(exclusion("it's a[0]")) == ["--exclude", "it's a[[]0]"]
    assert (literal("op:MatMul"), literal("domain:x*")) == ("[o]p:MatMul", "[d]omain:x[*]")


def test_a_tensor_without_a_name_in_the_float_model_is_left_out(folder: Folder) -> None:
    folder.save(chain(3))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    model = chain(3)
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = "other" if name == "h1" else name
    onnx.save(model, folder.model)
    report = qtool.evaluate(folder.model, folder.quant, folder.data, latency=False, layers=True, checks="none")
    assert report.layers is not None
    assert {node for node, _ in report.layers.left_out} == {"fc1", "fc2"}
    assert [layer.node for layer in report.layers.layers] == ["fc0"]


def test_bounds_of_a_clip_may_be_computed_from_constants(folder: Folder) -> None:
    """Exporters write 0 and 6 as integers with a Cast behind them; the integer operator stands for the Clip too."""
    model = chain(2)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Clip"
    relu.input.extend(["low", "high"])
    bounds = [("low", 0), ("high", 6)]
    for name, value in bounds:
        integer = numpy_helper.from_array(np.array(value), f"{name}_int")
        model.graph.node.insert(0, onnx.helper.make_node("Cast", [f"{name}_int"], [name], f"cast_{name}", to=1))
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [f"{name}_int"], f"{name}", value=integer))
    folder.save(model)
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    rows = layers(folder)
    assert set(rows) == {"fc0", "fc1"}
    assert 30 < rows["fc0"].own_db < 60
