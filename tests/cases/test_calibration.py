"""Cases C08, C11, C20, C21 and C24: calibration."""

import numpy as np
import onnx
import pytest
from onnx import parser

from qtool.calibrate.collect import collect
from qtool.calibrate.methods import parse_method
from qtool.calibrate.samples import open_samples
from qtool.calibrate.statistics import HISTOGRAM_BITS, TensorStatistics
from qtool.dtypes import qdtype
from qtool.errors import DataError
from qtool.qparams import activation_qparams
from qtool.runtime import create_session


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def ranges(proto, tensors, data):
    seen = collect(proto, tensors, open_samples(data, create_session(proto).inputs))
    return {name: (one.minimum, one.maximum) for name, one in seen.items()}


def range_of(text, values):
    method, parameter = parse_method(text)
    stats = TensorStatistics.of(np.asarray(values, np.float32), histogram=True)
    return method.range_of(stats, qdtype("uint8"), symmetric=False, parameter=parameter)


# ------------------------------------------------------------------------------------------------------------- C08


def test_c08_percentile_of_1_to_10000():
    low, high = range_of("percentile:99.9", np.arange(1, 10_001))
    assert low == 0  # non-negative data
    assert high == pytest.approx(9990.001, abs=2.0 ** (14 - HISTOGRAM_BITS))


def test_c08_percentile_of_symmetric_data():
    x = np.arange(-5000.5, 5001)
    low, high = range_of("percentile:99", x)
    assert low == -high
    assert high == pytest.approx(np.percentile(x, 99.5), abs=4)


def test_c08_one_outlier():
    random = np.random.default_rng(0)
    bulk = random.standard_normal(4096)
    bulk = bulk[np.abs(bulk) < 3][:2048]
    assert len(bulk) == 2048
    x = np.append(bulk, 1000.0).astype(np.float32)
    spans = {name: range_of(name, x) for name in ("minmax", "percentile:99.9", "mse", "entropy")}
    assert float(activation_qparams(*spans["minmax"], qdtype("uint8")).scale) == pytest.approx(3.93, abs=0.005)
    assert spans["percentile:99.9"] == pytest.approx((-3, 2.9), abs=0.25)
    assert spans["entropy"][1] < 10

    def error(span):
        params = activation_qparams(*span, qdtype("uint8"))
        scale, zero = float(params.scale), float(params.zero_point)
        return float(np.sum(((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale - x) ** 2))

    assert error(spans["mse"]) <= error(spans["minmax"])


# ------------------------------------------------------------------------------------------------------------- C11


def test_c11_a_bin_counts_beyond_2_to_the_24():
    stats = TensorStatistics.empty(histogram=True)
    part = np.full((1 << 20) + 1, 0.25, np.float32)
    for _ in range(16):
        stats.update(part)
    assert stats.histogram.max() == stats.count == (1 << 24) + 16


def test_c11_a_wider_batch_loses_nothing():
    random = np.random.default_rng(0)
    small, large = random.uniform(0, 0.1, 5000).astype(np.float32), random.uniform(0, 100, 300).astype(np.float32)
    stats = TensorStatistics.of(small, histogram=True)
    stats.update(large)
    assert stats.histogram.sum() == stats.count == 5300
    turned = TensorStatistics.of(large, histogram=True)
    turned.update(small)
    assert stats == turned
    assert stats.count == stats.finite == len(small) + len(large)


# ------------------------------------------------------------------------------------------------------------- C20

TWO = "g (float[N, 4] x, int64[N, 2] ids) => (float[N, 4] y, int64[N, 2] z) { y = Neg(x) z = Neg(ids) }"


def test_c20_npz_rules(tmp_path):
    inputs = create_session(model(TWO)).inputs
    x, ids = np.ones((5, 4)), np.ones((5, 2), np.int64)

    def opened(**arrays):
        np.savez(tmp_path / "calib.npz", **arrays)
        return open_samples(tmp_path / "calib.npz", inputs)

    def refused(**arrays):
        with pytest.raises(DataError) as caught:
            opened(**arrays)
        return caught.value.message.replace(str(tmp_path / "calib.npz"), "calib.npz")

    samples = opened(x=x, ids=ids, labels=np.zeros(5))
    assert samples.notes[0] == "Input 'x': float64 cast to float32."
    assert samples.notes[1].endswith("ignored 'labels': not among the model's inputs.")
    feeds = next(samples.batches())
    assert (feeds["x"].dtype, feeds["ids"].dtype) == (np.float32, np.int64)
    assert (
        refused(x=ids, ids=ids) == "Sample data 'calib.npz': input 'x' has shape [5, 2]; the model expects [N, 4]: "
        "dimension 1 is 2, expected 4."
    )
    assert (
        refused(x=x, ids=ids.astype(float))
        == "Sample data 'calib.npz': input 'ids' is float64; the model expects int64."
    )
    assert refused(x=x.astype(np.int64), ids=ids) == (
        "Sample data 'calib.npz': input 'x' is int64; the model expects float32."
    )
    assert refused(x=x, labels=ids) == (
        "Sample data 'calib.npz' has no array for input 'ids'; required: x, ids; given: x, labels."
    )
    assert refused(x=x[0], ids=ids) == (
        "Sample data 'calib.npz': input 'x' has shape [4]; the model expects [N, 4]: 1 dimensions, expected 2."
    )
    assert "holds Python objects (a pickle), which is never loaded" in refused(x=np.array([None]), ids=ids)


# ------------------------------------------------------------------------------------------------------------- C21


def test_c21_the_leading_axis_counts_samples(tmp_path):
    text = "g (float[{}, 4] x) => (float[{}, 2] y) <float[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ y = MatMul(x, w) }}"
    x = np.random.default_rng(0).integers(-9, 9, (10, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    w = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    expected = {"x": (x.min(), x.max()), "y": ((x @ w).min(), (x @ w).max())}
    for batch in ("1", "2", "5", "N"):
        proto = model(text.format(batch, batch))
        assert ranges(proto, ["x", "y"], tmp_path / "x.npz") == expected
        assert open_samples(tmp_path / "x.npz", create_session(proto).inputs).count == 10


def test_c21_wrong_inner_dimension_names_both(tmp_path):
    inputs = create_session(model("g (float[1, 6, 3] x) => (float[1, 6, 3] y) { y = Neg(x) }")).inputs
    np.savez(tmp_path / "good.npz", x=np.zeros((10, 6, 3), np.float32))
    samples = open_samples(tmp_path / "good.npz", inputs)
    assert (samples.count, [f["x"].shape for f in samples.batches()]) == (10, [(1, 6, 3)] * 10)
    np.savez(tmp_path / "bad.npz", x=np.zeros((10, 5, 3), np.float32))
    with pytest.raises(
        DataError, match=r"has shape \[10, 5, 3\]; the model expects \[N, 6, 3\]: dimension 1 is 5, expec"
    ):
        open_samples(tmp_path / "bad.npz", inputs)


# ------------------------------------------------------------------------------------------------------------- C24


@pytest.mark.parametrize("stacked", [False, True])
def test_c24_the_state_is_observed_at_every_step(tmp_path, stacked):
    proto = model(
        "g (float[1, 4] x, float[1, 3] h) => (float[1, 3] y, float[1, 3] hn) "
        "<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> { a = MatMul(x, w) hn = Add(a, h) y = Relu(hn) }"
    )
    x = np.random.default_rng(0).integers(-3, 4, (6, 4)).astype(np.float32)
    h = (np.arange(18).reshape(6, 3) - 5).astype(np.float32)
    extra = (slice(None), np.newaxis) if stacked else ()
    np.savez(tmp_path / "steps.npz", x=x[extra], h=h[extra])
    got = ranges(proto, ["x", "h", "hn"], tmp_path / "steps.npz")
    w = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], np.float32).reshape(4, 3)
    assert got["h"] == (-5, 12)
    assert got["hn"] == ((x @ w + h).min(), (x @ w + h).max())
