"""C20-C25 through quantize() and calibrate(): what samples may look like, and that only their values matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.calibrate.statistics import Statistics
from qtool.errors import ConfigError, DataError
from qtool.runtime import create_session
from tests.cases.files_support import metadata, mlp, model, random, samples


def quantized(data: object, proto: onnx.ModelProto | None = None, **options: object) -> onnx.ModelProto:
    result = qtool.quantize(proto or mlp(), data, **options)
    assert result.model is not None
    return result.model


def graph_bytes(proto: onnx.ModelProto) -> bytes:
    return proto.graph.SerializeToString(deterministic=True)


def notes(data: object, proto: onnx.ModelProto | None = None) -> str:
    return "\n".join(qtool.quantize(proto or mlp(), data).notes)


def ranges(statistics: Statistics) -> dict[str, tuple[float, float, int]]:
    return {name: (s.minimum, s.maximum, s.count) for name, s in statistics.items()}


def token_model() -> onnx.ModelProto:
    """ids[N,T] (int64) -> Gather from a table -> MatMul -> y."""
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"], "gather"),
            helper.make_node("MatMul", ["e", "W"], ["a"], "fc1"),
            helper.make_node("MatMul", ["a", "W"], ["y"], "fc2"),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "T"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "T", 32])],
        [numpy_helper.from_array(random(10, 32, seed=1), "table"), numpy_helper.from_array(random(32, 32), "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fixed_mlp(*shape: int) -> onnx.ModelProto:
    """A MatMul chain whose input has a fixed shape."""
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["a"], "fc1"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "W2"], ["y"], "fc2"),
    ]
    width = shape[-1]
    weights = {"W1": random(width, width, seed=1), "W2": random(width, width, seed=2)}
    return model(nodes, weights, inputs={"x": list(shape)}, outputs={"y": list(shape)})


# -------------------------------------------------------------------------------------------------------- C20 rules


def test_c20_float64_is_cast_with_a_note():
    data = samples()
    assert graph_bytes(quantized({"x": data["x"].astype(np.float64)})) == graph_bytes(quantized(data))
    said = notes({"x": data["x"].astype(np.float64)})
    assert "float64" in said
    assert "float32" in said
    assert notes(data) == ""


def test_c20_integers_are_never_taken_for_floats_nor_floats_for_ids():
    with pytest.raises(DataError, match="'x' is int64; the model expects float32"):
        quantized({"x": np.ones((4, 8), np.int64)})
    with pytest.raises(DataError, match="'ids' is float32; the model expects int64"):
        quantized({"ids": np.ones((4, 3), np.float32)}, token_model())


def test_c20_ids_of_another_width_are_cast_where_they_fit():
    ids = np.random.default_rng(0).integers(0, 10, (16, 5))
    wide = quantized({"ids": ids}, token_model())
    assert graph_bytes(quantized({"ids": ids.astype(np.int32)}, token_model())) == graph_bytes(wide)
    assert "int32" in notes({"ids": ids.astype(np.int32)}, token_model())


def test_c20_extra_keys_are_ignored_with_a_note():
    data = samples()
    assert graph_bytes(quantized(data | {"labels": np.arange(16)})) == graph_bytes(quantized(data))
    assert "'labels'" in notes(data | {"labels": np.arange(16)})


def test_c20_a_missing_input_lists_required_and_given():
    with pytest.raises(DataError, match="no array for input 'x'; required: x; given: X, labels"):
        quantized({"X": random(4, 8), "labels": np.arange(4)})


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((4, 9), r"\[4, 9\]; the model expects \[N, 8\]: dimension 1 is 9, expected 8"),
        ((8,), r"\[8\]; the model expects \[N, 8\]: 1 dimensions, expected 2"),
        ((0, 8), r"0 samples"),
    ],
)
def test_c20_wrong_shapes_name_both(shape, said):
    with pytest.raises(DataError, match=said):
        quantized({"x": np.zeros(shape, np.float32)})


def test_c20_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "c.npz", x=np.array([{}, 1], object))
    with pytest.raises(DataError, match=r"holds Python objects \(a pickle\), which is never loaded"):
        quantized(tmp_path / "c.npz")
    with pytest.raises(DataError, match="holds Python objects"):
        quantized({"x": np.array([{}, 1], object)})


def test_c20_inputs_of_different_lengths_are_refused():
    nodes = [
        helper.make_node("Add", ["x", "h"], ["s"], "add"),
        helper.make_node("MatMul", ["s", "W"], ["y"], "fc"),
    ]
    proto = model(
        nodes, {"W": random(64, 64)}, inputs={"x": ["N", 64], "h": ["N", 64]}, outputs={"y": ["N", 64]}
    )  # fmt: skip
    with pytest.raises(DataError, match=r"samples"):
        quantized({"x": random(4, 64), "h": random(5, 64)}, proto)


# ---------------------------------------------------------------------------------------- C21 samples and batches


def test_c21_a_fixed_batch_of_one_takes_samples():
    free = qtool.calibrate(mlp(4), samples(10, 4))
    fixed = qtool.calibrate(fixed_mlp(1, 4), samples(10, 4))
    assert fixed.samples == free.samples == 10
    assert ranges(fixed) == ranges(free)


def test_c21_samples_of_rank_three():
    data = random(10, 6, 3, seed=4)
    statistics = qtool.calibrate(fixed_mlp(1, 6, 3), {"x": data})
    assert statistics.samples == 10
    assert statistics["x"].count == data.size
    assert (statistics["x"].minimum, statistics["x"].maximum) == (data.min(), data.max())
    with pytest.raises(DataError, match=r"\[10, 5, 3\]; the model expects \[N, 6, 3\]: dimension 1 is 5, expected 6"):
        qtool.calibrate(fixed_mlp(1, 6, 3), {"x": random(10, 5, 3)})


@pytest.mark.parametrize("method", ["minmax", "percentile:99.9", "mse", "entropy"])
def test_c21_ranges_do_not_depend_on_how_the_samples_are_cut(tmp_path, method):
    """One array, one mapping per sample, mappings of uneven batches, one file, three files."""
    data = random(60, 8, seed=5) ** 3
    cuts = [data[:1], data[1:20], data[20:]]
    for i, cut in enumerate(cuts):
        np.savez(tmp_path / f"{i}.npz", x=cut)
    np.savez_compressed(tmp_path / "all.npz", x=data)
    ways = [
        {"x": data},
        {"x": np.asfortranarray(data)},
        [{"x": row} for row in data],
        [{"x": cut} for cut in cuts],
        tmp_path / "all.npz",
        [tmp_path / f"{i}.npz" for i in range(3)],
    ]
    made = [graph_bytes(quantized(way, method=method)) for way in ways]
    assert all(graph == made[0] for graph in made)


@pytest.mark.parametrize("max_batch_bytes", [1, 1000, 1 << 26])
def test_c21_ranges_do_not_depend_on_the_batch_of_the_run(monkeypatch, max_batch_bytes):
    from qtool.calibrate import collect

    data = {"x": random(60, 8, seed=5) ** 3}
    expected = graph_bytes(quantized(data, method="mse"))
    original = collect.collect

    def limited(proto, tensors, samples, **options):
        return original(proto, tensors, samples, max_batch_bytes=max_batch_bytes, **options)

    monkeypatch.setattr(collect, "collect", limited)
    assert graph_bytes(quantized(data, method="mse")) == expected


def test_c21_the_order_of_samples_does_not_matter_to_ranges():
    data = random(60, 8, seed=5)
    forward, backward = qtool.calibrate(mlp(), {"x": data}), qtool.calibrate(mlp(), {"x": data[::-1]})
    assert ranges(forward) == ranges(backward)


# ------------------------------------------------------------------------------------------- C22 the same, twice


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_c22_the_same_data_give_the_same_bytes(tmp_path, format_, method):
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples())
    for name in ("a", "b"):
        qtool.quantize(
            tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / f"{name}.onnx", format=format_, method=method
        )
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_c22_where_the_data_lie_does_not_matter(tmp_path):
    onnx.save(mlp(), tmp_path / "m.onnx")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "c.npz", **samples())
        qtool.quantize(tmp_path / "m.onnx", tmp_path / name / "c.npz", output=tmp_path / name / "q.onnx")
    assert (tmp_path / "one" / "q.onnx").read_bytes() == (tmp_path / "two" / "q.onnx").read_bytes()


# ------------------------------------------------------------------------------------------- C23 graph outputs


def output_model() -> onnx.ModelProto:
    """Conv -> Relu: what the Conv writes as codes is the graph's output."""
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], "conv"),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
    ]
    weights = {"W": random(4, 4, 3, 3)}
    return model(nodes, weights, inputs={"x": ["N", 4, 10, 10]}, outputs={"y": ["N", 4, 8, 8]})


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c23_the_last_node_is_calibrated_like_any_other(format_):
    data = {"x": random(12, 4, 10, 10, seed=6)}
    result = qtool.quantize(output_model(), data, format=format_)
    y = create_session(output_model()).run(data)["y"]
    params = result.plan.tensors["y"]
    assert params is not None
    assert float(params.scale) == pytest.approx(y.max() / 255, rel=1e-5)
    assert int(params.zero_point) == 0
    assert [node.op_type for node in result.model.graph.node][-1] == "DequantizeLinear"
    (output,) = result.model.graph.output
    assert (output.name, output.type.tensor_type.elem_type) == ("y", TensorProto.FLOAT)
    got = create_session(result.model).run(data)["y"]
    assert np.abs(got - y).max() < 0.05 * y.max()


def test_c23_a_wanted_graph_output_has_its_true_range():
    data = {"x": random(12, 4, 10, 10, seed=6)}
    statistics = qtool.calibrate(output_model(), data, tensors=["y", "x"])
    y = create_session(output_model()).run(data)["y"]
    assert statistics["y"].minimum == y.min()
    assert statistics["y"].maximum == pytest.approx(y.max(), rel=1e-6)
    assert statistics["y"].count == y.size


# ------------------------------------------------------------------------------------------- C24 stateful models


def test_c24_states_count_with_all_their_steps():
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"], "in"),
        helper.make_node("MatMul", ["h", "R"], ["b"], "rec"),
        helper.make_node("Add", ["a", "b"], ["s"], "add"),
        helper.make_node("Tanh", ["s"], ["h2"], "tanh"),
        helper.make_node("MatMul", ["h2", "V"], ["y"], "out"),
    ]
    weights = {"W": random(32, 32, seed=1), "R": random(32, 32, seed=2), "V": random(32, 32, seed=3)}
    proto = model(
        nodes,
        weights,
        inputs={"x": ["N", 32], "h": ["N", 32]},
        outputs={"y": ["N", 32], "h2": ["N", 32]},
    )
    data = {"x": random(20, 32, seed=4), "h": random(20, 32, seed=5, scale=0.1)}
    data["h"][17, 3] = -7.5  # a late step holds the extreme
    data["h"][0, 0] = 4.25
    result = qtool.quantize(proto, data)
    params = result.plan.tensors["h"]
    assert params is not None
    scale, zero = float(params.scale), int(params.zero_point)
    assert scale == pytest.approx((4.25 + 7.5) / 255, rel=1e-6)
    assert zero == round(7.5 / scale)
    made = onnx.ModelProto.FromString(result.model.SerializeToString())
    assert [i.name for i in made.graph.input] == ["x", "h"]
    assert [o.name for o in made.graph.output] == ["y", "h2"]
    with pytest.raises(DataError, match="no array for input 'h'; required: x, h; given: x"):
        qtool.quantize(proto, {"x": data["x"]})


# ------------------------------------------------------------------------------------- C25 no hidden random data


def test_c25_no_data_is_an_error_that_names_the_ways_out():
    with pytest.raises(ConfigError, match="needs calibration data") as caught:
        qtool.quantize(mlp())
    assert "--calib" in caught.value.hint
    assert "--random-calib" in caught.value.hint
    with pytest.raises(ConfigError, match="expected one of them"):
        qtool.quantize(mlp(), samples(), random_calib=4)


@pytest.mark.parametrize("count", [0, -3])
def test_c25_random_samples_are_counted(count):
    with pytest.raises(ConfigError):
        qtool.quantize(mlp(), random_calib=count)


def test_c25_random_calibration_is_recorded_and_repeatable(tmp_path):
    onnx.save(mlp(), tmp_path / "m.onnx")
    for name in ("a", "b"):
        result = qtool.quantize(tmp_path / "m.onnx", random_calib=6, output=tmp_path / f"{name}.onnx")
    assert any("random" in note for note in result.notes)
    keys = metadata(tmp_path / "a.onnx")
    assert (keys["qtool.calibration.random"], keys["qtool.calibration.samples"]) == ("true", "6")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


# ------------------------------------------------------------------------------------------ values that are no range


def test_loading_is_timed_apart_from_the_samples(tmp_path):
    seconds: dict[str, float] = {}
    at: list[float] = []  # of the stage so far, at every batch
    progress = lambda stage, done, total: at.append(seconds["load"])  # noqa: ARG005, E731
    qtool.calibrate(mlp(), samples(32), output=tmp_path / "s.npz", seconds=seconds, progress=progress)
    assert list(seconds) == ["prepare", "plan", "load", "calibrate", "save"]
    assert min(seconds.values()) > 0
    assert set(at) == {seconds["load"]}  # over before the first one


def test_nan_is_refused_and_names_the_tensor():
    data = samples()
    data["x"][5, 2] = np.nan
    with pytest.raises(DataError, match=r"^Sample 5: input 'x' holds 1 NaN value;"):
        quantized(data)


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0])
def test_constant_samples_are_fine(value):
    proto = quantized({"x": np.full((4, 8), value, np.float32)})
    scales = [numpy_helper.to_array(t) for t in proto.graph.initializer if t.name.endswith("scale")]
    assert all((scale > 0).all() and np.isfinite(scale).all() for scale in scales)


def test_one_sample_is_enough(tmp_path):
    assert metadata_of(quantized({"x": random(1, 8)}))["qtool.calibration.samples"] == "1"


def metadata_of(proto: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


@pytest.mark.parametrize("data", [3, "", None, [], {}, [3], [{"y": 1}], Path("gone.npz"), ["gone.npz"], "gone.txt"])
def test_what_is_no_data_is_one_line(data):
    with pytest.raises((DataError, ConfigError)) as caught:
        qtool.quantize(mlp(), data)
    assert "\n" not in caught.value.message
