"""C22: statistics saved, then quantize from them: the bytes of quantizing from the data; another model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qtool
from qtool.calibrate import kept as kept_module
from qtool.calibrate import statsfile
from qtool.config import QuantConfig
from qtool.errors import ConfigError, DataError, QtoolError
from tests.cases.files_support import metadata, mlp, model, random, samples, save_external, snapshot

METHODS = ("minmax", "percentile", "percentile:99", "mse", "entropy")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A model, its samples and its statistics."""
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples(40))
    qtool.calibrate(tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / "s.npz")
    return tmp_path


def assert_same_bytes(folder: Path, data: Any, *, name: str = "m.onnx", stats: str = "s.npz", **options: Any) -> None:
    """Quantize a file from data and from statistics."""
    given = qtool.quantize(folder / name, data, output=folder / "data.onnx", force=True, **options)
    saved = qtool.quantize(folder / name, stats=folder / stats, output=folder / "stats.onnx", force=True, **options)
    assert (folder / "data.onnx").read_bytes() == (folder / "stats.onnx").read_bytes()
    assert saved.plan.to_dict() == given.plan.to_dict()
    assert saved.verified_samples > 0
    assert "calibrate" not in saved.seconds


# ---------------------------------------------------------------------------------------------- equal to the data


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_derived_from_one_file(work, method, format_):
    assert_same_bytes(work, work / "c.npz", method=method, format=format_)


@pytest.mark.parametrize("method", ["minmax", "mean_minmax"])
def test_a_file_for_one_method_has_no_histograms_if_that_needs_none(work, method):
    qtool.calibrate(work / "m.onnx", work / "c.npz", method=method, output=work / "small.npz")
    assert (work / "small.npz").stat().st_size < (work / "s.npz").stat().st_size / 2
    assert all(one.histogram is None for one in qtool.load_stats(work / "small.npz").statistics.values())
    assert_same_bytes(work, work / "c.npz", method=method, stats="small.npz")
    with pytest.raises(DataError, match=r"has no histogram of tensor .*, which the range method needs") as caught:
        qtool.quantize(work / "m.onnx", stats=work / "small.npz", method="auto", output=work / "no.onnx")
    assert caught.value.hint == "Calibrate again without --method, or quantize with --method minmax."
    assert not (work / "no.onnx").exists()


def test_a_file_for_a_method_that_needs_histograms_serves_all(work):
    qtool.calibrate(work / "m.onnx", work / "c.npz", method="entropy", output=work / "e.npz")
    assert (work / "e.npz").read_bytes() == (work / "s.npz").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        {"activations": "int8", "symmetric_activations": True},
        {"activations": "int16", "weights": "int4", "format": "qdq"},
        {"per_channel": False},
        {"exclude": ["fc2"]},
        {"include": ["op:MatMul"]},
        {"dedicated_qdq": True, "format": "qdq"},
    ],
    ids=str,
)
def test_other_settings_of_the_same_activations(work, options):
    assert_same_bytes(work, work / "c.npz", **options)


def test_the_record_is_that_of_the_data(work):
    assert_same_bytes(work, work / "c.npz")
    record = metadata(work / "stats.onnx")
    assert record["qtool.calibration.samples"] == "40"
    assert record == metadata(work / "data.onnx")


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_the_bundled_example(examples, tmp_path, method):
    (tmp_path / "m.onnx").write_bytes((examples / "mnist_cnn.onnx").read_bytes())
    data = examples / "mnist_calib.npz"
    qtool.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "s.npz")
    assert_same_bytes(tmp_path, data, method=method)


def test_several_files_and_arrays_in_memory(work):
    np.savez(work / "d.npz", x=random(7, 8, seed=9))
    for data in ([work / "c.npz", work / "d.npz"], samples(9), [{"x": row} for row in samples(9)["x"]]):
        qtool.calibrate(work / "m.onnx", data, output=work / "s.npz", force=True)
        assert_same_bytes(work, data, method="entropy")


def test_a_model_with_external_data(tmp_path):
    """The model names its data file, so both results have one name, in folders of their own."""
    save_external(mlp(64), tmp_path / "m.onnx", "m.weights")
    data = samples(width=64)
    qtool.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "s.npz")
    for name in ("data", "stats"):
        (tmp_path / name).mkdir()
    qtool.quantize(tmp_path / "m.onnx", data, output=tmp_path / "data" / "q.onnx")
    qtool.quantize(tmp_path / "m.onnx", stats=tmp_path / "s.npz", output=tmp_path / "stats" / "q.onnx")
    for name in ("q.onnx", "q.onnx.data"):
        assert (tmp_path / "data" / name).read_bytes() == (tmp_path / "stats" / name).read_bytes()


def test_a_model_in_memory_and_one_that_was_moved(work):
    """The file belongs to the graph and its weights, not to a path."""
    proto = onnx.load(work / "m.onnx")
    given = qtool.quantize(proto, work / "c.npz")
    saved = qtool.quantize(proto, stats=work / "s.npz")
    assert given.model is not None
    assert saved.model is not None
    assert given.model.SerializeToString() == saved.model.SerializeToString()
    (work / "m.onnx").rename(work / "moved.onnx")
    assert_same_bytes(work, work / "c.npz", name="moved.onnx")


def old_model() -> onnx.ModelProto:
    """Opset 9: Squeeze has its axes as an attribute, and a BatchNormalization and a fixed batch of 4 come on top."""
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], "conv"),
        helper.make_node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], "bn"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Squeeze", ["p"], ["s"], "squeeze", axes=[2, 3]),
        helper.make_node("MatMul", ["s", "F"], ["y"], "fc"),
    ]
    weights = {"W": random(8, 3, 3, 3, seed=1), "F": random(8, 16, seed=2)}
    weights |= {k: np.abs(random(8, seed=i)) + 0.5 for i, k in enumerate("gbmv")}
    return model(nodes, weights, inputs={"x": [4, 3, 9, 9]}, outputs={"y": [4, 16]}, opset=9, ir_version=4)


def test_a_model_that_preparation_changes_and_a_fixed_batch(tmp_path):
    onnx.save(old_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=random(10, 3, 9, 9, seed=3))
    statistics = qtool.calibrate(tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / "s.npz")
    assert statistics.samples == 8
    assert any("2 samples were left out" in note for note in statistics.notes)
    for method in METHODS:
        assert_same_bytes(tmp_path, tmp_path / "c.npz", method=method)


def test_a_model_of_which_only_weights_are_quantized(tmp_path):
    nodes = [helper.make_node("ConvTranspose", ["x", "W"], ["y"], "deconv")]
    proto = model(nodes, {"W": random(8, 8, 3, 3)}, inputs={"x": ["N", 8, 5, 5]}, outputs={"y": ["N", 8, 7, 7]})
    onnx.save(proto, tmp_path / "m.onnx")
    data = {"x": random(5, 8, 5, 5)}
    statistics = qtool.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "s.npz")
    assert (len(statistics), statistics.samples) == (0, 0)
    assert statistics.notes == ("No activation is quantized with these settings: there was nothing to observe.",)
    assert_same_bytes(tmp_path, data)
    assert metadata(tmp_path / "stats.onnx")["qtool.calibration.samples"] == "5"


def test_the_file_does_not_depend_on_threads_or_place(work):
    expected = (work / "s.npz").read_bytes()
    (work / "other").mkdir()
    (work / "other" / "renamed.npz").write_bytes((work / "c.npz").read_bytes())
    for threads in (1, 2):
        qtool.calibrate(
            mlp(), work / "other" / "renamed.npz", output=work / "s.npz", force=True, num_threads=threads
        )  # fmt: skip
        assert (work / "s.npz").read_bytes() == expected


def test_what_calibrate_returns_is_what_it_saves(work):
    returned = qtool.calibrate(work / "m.onnx", work / "c.npz", output=work / "t.npz")
    assert statsfile.load_statistics(work / "t.npz").statistics == returned
    assert all(one.histogram is not None for one in returned.values())


# ------------------------------------------------------------------------------------------------- another model


def refused(work: Path, changed: onnx.ModelProto, **options: Any) -> str:
    onnx.save(changed, work / "other.onnx")
    before = snapshot(work)
    with pytest.raises(QtoolError) as caught:
        qtool.quantize(work / "other.onnx", stats=work / "s.npz", **options)
    assert isinstance(caught.value, DataError)
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None
    assert snapshot(work) == before
    return caught.value.message


def test_a_weight_that_was_trained_further_is_named(work):
    changed = mlp()
    for tensor in changed.graph.initializer:
        if tensor.name == "W2":
            array = numpy_helper.to_array(tensor).copy()
            array[7, 7] = np.nextafter(array[7, 7], np.float32(9))
            tensor.CopyFrom(numpy_helper.from_array(array, "W2"))
    said = refused(work, changed)
    assert said == f"Statistics file '{work / 's.npz'}' belongs to another model: tensor 'W2' differs."


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda graph: setattr(graph.node[1], "op_type", "Sigmoid"), "node 'relu' differs"),
        (lambda graph: setattr(graph.node[1], "name", "act"), "where the model has node 'act', it has node 'relu'"),
        (lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 4), "input 'x' differs"),
    ],
)
def test_a_changed_graph_is_named(work, change, named):
    changed = mlp()
    change(changed.graph)
    assert named in refused(work, changed)


def test_another_architecture_is_refused_by_its_weights(work):
    said = refused(work, old_model())
    assert "where the model has tensor " in said
    assert "it has tensor 'W1'" in said


def test_another_opset_is_another_model(work):
    assert "opset 'ai.onnx' differs" in refused(work, mlp(opset=18))


def test_a_dry_run_checks_the_file_too(work):
    assert qtool.quantize(work / "m.onnx", stats=work / "s.npz", dry_run=True).model_path is None
    assert "tensor 'W1' differs" in refused(work, mlp(9), dry_run=True)
    with pytest.raises(DataError, match="cannot be read"):
        qtool.quantize(work / "m.onnx", stats=work / "gone.npz", dry_run=True)


def test_a_tensor_that_was_not_observed_is_named(work):
    qtool.calibrate(
        work / "m.onnx", work / "c.npz", output=work / "s.npz", force=True, config=QuantConfig(include=("fc2",))
    )  # fmt: skip
    assert_same_bytes(work, work / "c.npz", include=["fc2"])
    said = refused(work, mlp())
    assert said == f"Statistics file '{work / 's.npz'}' has no statistics of tensor 'x', which these settings quantize."


# ------------------------------------------------------------------------------------------------ samples, places


def test_one_origin_of_ranges(work):
    with pytest.raises(ConfigError, match="Calibration data and a statistics file are given; expected one of them"):
        qtool.quantize(work / "m.onnx", work / "c.npz", stats=work / "s.npz")
    with pytest.raises(ConfigError, match="A statistics file and random calibration are given"):
        qtool.quantize(work / "m.onnx", stats=work / "s.npz", random_calib=3)
    with pytest.raises(ConfigError, match="needs calibration data") as caught:
        qtool.quantize(work / "m.onnx")
    assert "--stats" in caught.value.hint


def test_the_first_samples_are_kept_and_run(work):
    batches = statsfile.load_statistics(work / "s.npz").batches
    assert [count for count, _ in batches] == [1] * 40
    np.testing.assert_array_equal(np.concatenate([feeds["x"] for _, feeds in batches]), samples(40)["x"])
    result = qtool.quantize(work / "m.onnx", stats=work / "s.npz")
    assert result.verified_samples == 4
    assert result.sqnr_db["y"] > 20


@pytest.mark.parametrize(("limit", "kept"), [(3 * 32, 3), (32, 1), (31, 0)])
def test_large_samples_are_kept_up_to_a_limit_with_a_note(work, monkeypatch, limit, kept):
    monkeypatch.setattr(kept_module, "MAX_BYTES", limit)
    statistics = qtool.calibrate(work / "m.onnx", work / "c.npz", output=work / "s.npz", force=True)
    assert len(statsfile.load_statistics(work / "s.npz").batches) == kept
    (note,) = statistics.notes
    assert f"{kept or 'none'} of them" in note
    result = qtool.quantize(work / "m.onnx", stats=work / "s.npz", output=work / "stats.onnx")
    assert result.verified_samples == kept
    assert [note for note in result.notes if "not run" in note] == (
        [] if kept else ["The statistics file keeps no samples: the result was loaded, but not run on any."]
    )
    qtool.quantize(work / "m.onnx", work / "c.npz", output=work / "data.onnx")
    assert (work / "data.onnx").read_bytes() == (work / "stats.onnx").read_bytes()


@pytest.mark.parametrize(
    ("output", "force", "said"),
    [
        ("s.npz", False, "exists already"),
        ("m.onnx", True, "is the input model itself"),
        ("c.npz", True, "is what the model is calibrated from"),
        ("gone/s.npz", False, "does not exist"),
        (".", False, "is a directory"),
    ],
)
def test_where_statistics_do_not_go(work, output, force, said):
    before = snapshot(work)
    with pytest.raises(ConfigError, match=said):
        qtool.calibrate(work / "m.onnx", work / "c.npz", output=work / output, force=force)
    assert snapshot(work) == before


def test_statistics_do_not_go_where_the_weights_are(tmp_path):
    save_external(mlp(), tmp_path / "m.onnx", "m.weights")
    with pytest.raises(ConfigError, match="holds the input model's weights"):
        qtool.calibrate(tmp_path / "m.onnx", samples(), output=tmp_path / "m.weights", force=True)


def test_a_model_does_not_go_where_its_statistics_are(work):
    with pytest.raises(ConfigError, match="is what the model is calibrated from"):
        qtool.quantize(work / "m.onnx", stats=work / "s.npz", output=work / "s.npz", force=True)


def test_nan_leaves_no_file(work):
    data = samples()
    data["x"][5, 2] = np.nan
    before = snapshot(work)
    with pytest.raises(DataError, match=r"^Sample 5: input 'x' holds 1 NaN value;"):
        qtool.calibrate(work / "m.onnx", data, output=work / "t.npz")
    assert snapshot(work) == before
