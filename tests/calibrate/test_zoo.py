"""Samples and collection on real models with real data."""

from functools import reduce

import numpy as np
import onnx
import pytest

import qtool
from qtool.calibrate.collect import collect
from qtool.calibrate.samples import open_samples
from qtool.calibrate.statistics import Statistics
from qtool.runtime import create_session

# model -> (samples, whether they can share a run)
MODELS = {
    "mnist_cnn": (128, False),  # fixed batch of 1
    "digits_resnet_bn": (256, True),
    "digits_vit": (256, True),
    "efficientnet_lite0": (40, True),
    "ppocr_cls": (64, True),
    "ppocr_det": (8, True),
    "magika": (128, True),
    "minilm_l6_v2": (128, True),
    "whisper_tiny_en_encoder": (6, True),
    "chargpt_llama": (128, True),
    "silero_vad": (256, False),  # stacked on an extra axis, with a state and a scalar
}


@pytest.mark.zoo
@pytest.mark.parametrize("name", MODELS)
def test_calibration_data_fits_its_model(zoo, name):
    session = create_session(zoo / f"{name}.onnx")
    samples = open_samples(zoo / f"{name}_calib.npz", session.inputs)
    assert (samples.count, samples.batchable) == MODELS[name]
    assert samples.notes == ()
    assert set(session.run(next(samples.batches()))) == {info.name for info in session.outputs}


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["digits_vit", "silero_vad"])
def test_ranges_of_inputs_and_outputs_are_those_of_the_data(zoo, name):
    path = zoo / f"{name}.onnx"
    session = create_session(path)
    samples = open_samples(zoo / f"{name}_calib.npz", session.inputs)
    tensors = [i.name for i in (*session.inputs, *session.outputs) if i.dtype == np.float32]
    seen = collect(path, tensors, samples)
    runs = [feeds | session.run(feeds) for feeds in samples.batches(16)]
    for tensor in tensors:
        values = np.concatenate([run[tensor].ravel() for run in runs])
        assert seen[tensor].count == values.size
        assert (seen[tensor].minimum, seen[tensor].maximum) == pytest.approx((values.min(), values.max()), rel=1e-4)


@pytest.mark.zoo
@pytest.mark.parametrize(("name", "shuffle_seed", "most"), [("digits_vit", 0, 96), ("ppocr_cls", 1, 16)])
def test_shuffled_split_and_merged_statistics_are_the_bytes_of_one_run(zoo, tmp_path, name, shuffle_seed, most):
    model = zoo / f"{name}.onnx"
    with np.load(zoo / f"{name}_calib.npz") as archive:
        arrays = {key: array[:most] for key, array in archive.items()}
    count = len(next(iter(arrays.values())))
    order = np.random.default_rng(shuffle_seed).permutation(count)
    files = []
    for part in range(8):
        files.append(tmp_path / f"part{part}.npz")
        np.savez(files[-1], **{key: array[order[part::8]] for key, array in arrays.items()})
    qtool.calibrate(model, files, output=tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    for number, options in enumerate([{"num_threads": 1, "batch": 3}, {"num_threads": 2, "shuffle": 7}]):
        qtool.calibrate(model, files[::-1], output=tmp_path / f"other{number}.npz", **options)
        assert (tmp_path / f"other{number}.npz").read_bytes() == whole
    shards = []
    for path in files:
        shards.append(path.with_suffix(".stats.npz"))
        qtool.calibrate(model, path, output=shards[-1], num_threads=1)
    qtool.merge_stats([shards[i] for i in np.random.default_rng(1).permutation(8)], tmp_path / "merged.npz")
    assert (tmp_path / "merged.npz").read_bytes() == whole
    # the same samples in memory: another origin, and the same statistics
    rows = [{key: array[i] for key, array in arrays.items()} for i in range(count)]
    for part in range(8):
        qtool.calibrate(model, rows[part::8], output=tmp_path / f"memory{part}.npz", num_threads=1)
    qtool.calibrate(model, arrays, output=tmp_path / "memory.npz", num_threads=1)
    merged = qtool.merge_stats([tmp_path / f"memory{part}.npz" for part in range(8)], tmp_path / "memories.npz")
    assert (tmp_path / "memories.npz").read_bytes() == (tmp_path / "memory.npz").read_bytes()
    found = qtool.diff_stats(merged, tmp_path / "whole.npz")
    assert (found.equal, found.same_data) == (True, False)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["digits_vit", "magika", "ppocr_cls"])
def test_statistics_have_the_same_bits_whatever_threads_batches_order_and_shards(zoo, name):
    path = zoo / f"{name}.onnx"
    proto = onnx.load(path)
    produced = [o for node in proto.graph.node if node.op_type in ("MatMul", "Conv", "Add") for o in node.output]
    data = zoo / f"{name}_calib.npz"
    whole = open_samples(data, create_session(path).inputs, limit=24)
    backwards = [{k: v[i] for k, v in _arrays(data, whole.names).items()} for i in reversed(range(24))]
    shuffled = open_samples(backwards, create_session(path).inputs)
    tensors = [t for t in produced if t in _floats(proto)][:12]
    expected = collect(path, tensors, whole, histograms=True, batch_size=1, num_threads=1)
    assert collect(path, tensors, whole, histograms=True, batch_size=5, num_threads=2) == expected
    assert collect(path, tensors, shuffled, histograms=True, num_threads=3) == expected
    shards = [collect(path, tensors, whole.slice(i, i + 3), histograms=True, batch_size=3) for i in range(0, 24, 3)]
    assert reduce(Statistics.merged, reversed(shards)) == expected


def _floats(proto):
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    return {v.name for v in (*inferred.value_info, *inferred.output) if v.type.tensor_type.elem_type == 1}


def _arrays(path, names):
    with np.load(path) as arrays:
        return {name: arrays[name] for name in names}
