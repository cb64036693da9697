"""``--target avx2``: layers whose int16 sums saturate on samples get 7-bit weights, and no others do."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest

import qtool
from qtool.api import QuantizeResult
from qtool.plan.receptive import Geometry, geometry_of
from qtool.plan.saturation import ROWS_PER_SAMPLE, SEVEN_BITS
from qtool.runtime.spec.saturating import Saturating
from qtool.runtime.spec.session import SpecSession
from qtool.signal import sqnr_db
from tests.models import build, normal, quantize_and_check, run

Arrays = dict[str, np.ndarray]


def codes(result: QuantizeResult, tensor: str) -> np.ndarray:
    assert result.model is not None
    return onnx.numpy_helper.to_array(
        next(t for t in result.model.graph.initializer if t.name == f"{tensor}_quantized")
    )


def notes(result: QuantizeResult) -> dict[str, str]:
    return {d.node: d.note for d in result.plan.decisions if d.note}


def one_matmul(weight: np.ndarray) -> onnx.ModelProto:
    k, n = weight.shape
    return build(f"g (float[N,{k}] x) => (float[N,{n}] y) {{ y = MatMul (x, w) }}", {"w": weight})


# four samples that differ, because equal ones are kept once
ONES = {"x": np.linspace(0.99, 1.0, 4, dtype=np.float32)[:, None].repeat(8, axis=1)}


def test_c63_weights_of_one_saturate_and_get_seven_bits():
    """K=8, weights 1.0, x 1.0: 255 * (127 + 127) > 32767, and 255 * (64 + 64) = 32640."""
    model = one_matmul(np.ones((8, 4), np.float32))
    samples = ONES
    plain = qtool.quantize(model, samples)
    narrow = qtool.quantize(model, samples, target="avx2")
    assert (codes(plain, "w") == 127).all()
    assert (codes(narrow, "w") == SEVEN_BITS).all()
    # 4 rows x 4 columns x 4 pairs
    assert notes(narrow) == {"node_MatMul": "7-bit weights: 64 of 64 int16 sums saturate without VNNI"}
    assert narrow.notes == ["int16 sums saturate without VNNI on 4 samples: 7-bit weights in 1 layer (node_MatMul)"]


def test_samples_that_do_not_saturate_leave_eight_bits():
    model = one_matmul(np.ones((8, 4), np.float32))
    # codes of 255 in one place at a time
    samples = {"x": np.eye(8, dtype=np.float32)}
    result = qtool.quantize(model, samples, target="avx2")
    assert (codes(result, "w") == 127).all()
    assert result.notes == ["no int16 sum saturates without VNNI on 8 samples: all weights keep 8 bits"]


def test_weights_whose_pairs_cannot_saturate_are_not_even_looked_at():
    weight = np.zeros((8, 4), np.float32)
    weight[::2] = 1.0  # 127 beside 0
    result = qtool.quantize(one_matmul(weight), ONES, target="avx2")
    assert notes(result) == {}
    assert (codes(result, "w")[::2] == 127).all()


def test_pairs_are_neighbours_along_k():
    weight = np.zeros((8, 4), np.float32)
    weight[[1, 2]] = 1.0  # neighbours, but of two pairs
    result = qtool.quantize(one_matmul(weight), ONES, target="avx2")
    assert notes(result) == {}
    weight[[2, 3]] = 1.0
    weight[1] = 0.0
    result = qtool.quantize(one_matmul(weight), ONES, target="avx2")
    assert notes(result) == {"node_MatMul": "7-bit weights: 16 of 64 int16 sums saturate without VNNI"}


def test_channels_that_stay_far_from_it_keep_eight_bits():
    """Activations of 255 saturate beside weights of 127, those of 110 nearly do, those of 100 do not."""
    weight = np.zeros((8, 4), np.float32)
    weight[0:2, 0] = weight[2:4, 1] = weight[4:6, 2] = weight[6, 3] = 1.0
    x = np.float32([1.0, 1.0, 110 / 255, 110 / 255, 100 / 255, 100 / 255, 1.0, 1.0])
    result = qtool.quantize(one_matmul(weight), {"x": np.tile(x, (1, 1))}, target="avx2")
    # 110 + 110 is below 32767 / 127 = 258; a quarter more is above
    assert np.abs(codes(result, "w")).max(axis=0).tolist() == [SEVEN_BITS, SEVEN_BITS, 127, 127]
    # one row, and four pairs of each of the three columns that could
    assert notes(result) == {"node_MatMul": "7-bit weights: 1 of 12 int16 sums saturate without VNNI"}
    per_tensor = qtool.quantize(one_matmul(weight), {"x": np.tile(x, (1, 1))}, target="avx2", per_channel=False)
    assert np.abs(codes(per_tensor, "w")).max(axis=0).tolist() == [SEVEN_BITS] * 4


def test_coming_near_is_no_reason_without_a_sum_that_saturates():
    """Near in the one sample, and no sum saturates: the layer keeps 8 bits."""
    x = np.float32([1.0, 0, 110 / 255, 110 / 255, 0, 0, 0, 0])
    result = qtool.quantize(one_matmul(np.ones((8, 4), np.float32)), {"x": x[None]}, target="avx2")
    assert (codes(result, "w") == 127).all()
    assert result.notes == ["no int16 sum saturates without VNNI on one sample: all weights keep 8 bits"]


@pytest.mark.parametrize("options", [{"weights": "uint8"}, {"activations": "int8"}])
def test_other_signs_are_exact_there(options):
    model = one_matmul(np.ones((8, 4), np.float32))
    result = qtool.quantize(model, ONES, target="avx2", format="qdq", **options)
    assert notes(result) == {}


CONVS = """g (float[N,4,9,9] x) => (float[N,M,P,Q] y) {
    a = Conv <pads=[1,1,1,1]> (x, w1, b1)
    r = Relu (a)
    d = Conv <pads=[1,1,1,1], group=8> (r, w2)
    e = Conv <group=2, strides=[2,2]> (d, w3)
    y = Conv <dilations=[2,1]> (e, w4)
}"""


def convs() -> tuple[onnx.ModelProto, Arrays]:
    weights = {"w1": (8, 4, 3, 3), "w2": (8, 1, 3, 3), "w3": (12, 4, 2, 2), "w4": (6, 12, 2, 2)}
    arrays = {name: np.abs(normal(*shape, seed=i)) for i, (name, shape) in enumerate(weights.items())}
    return build(CONVS, arrays | {"b1": normal(8, seed=9)}), {"x": np.abs(normal(4, 4, 9, 9, seed=10))}


def test_the_counts_are_those_of_the_simulated_processor():
    """All rows of small Convs are looked at, so the counts equal those of the engine that runs the 8-bit file."""
    model, samples = convs()
    narrow = qtool.quantize(model, samples, target="avx2")
    plain = qtool.quantize(model, samples)
    assert plain.model is not None
    saturating = Saturating()
    # the check sees the float model's activations; of the first Conv they are the same
    SpecSession(plain.model, saturating=saturating).run(samples)
    first = saturating.record["node_Conv"]
    assert (
        notes(narrow)["node_Conv"]
        == f"7-bit weights: {first.saturated} of {first.pairs} int16 sums saturate without VNNI"
    )
    assert first.saturated > 0
    assert set(notes(narrow)) == {name for name, layer in saturating.record.items() if layer.saturated}
    assert "node_Conv_1" not in notes(narrow)  # depthwise


def test_seven_bits_repair_what_saturation_breaks():
    random = np.random.default_rng(1)
    model = one_matmul(random.uniform(0.3, 1.0, (64, 16)).astype(np.float32))
    samples = {"x": random.uniform(0.5, 1.0, (16, 64)).astype(np.float32)}
    expected = run(model, samples)["y"]
    decibels = {}
    for target in ("ort-x64", "avx2"):
        made = qtool.quantize(model, samples, target=target).model
        assert made is not None
        saturating = Saturating()
        decibels[target] = sqnr_db(expected, SpecSession(made, saturating=saturating).run(samples)["y"])
        assert (target == "avx2") == all(layer.saturated == 0 for layer in saturating.record.values())
    assert decibels["ort-x64"] < 30
    assert decibels["avx2"] > 45


def test_the_result_is_right_on_this_machine_too():
    model, samples = convs()
    assert quantize_and_check(model, samples, target="avx2").sqnr() > 30


def test_statistics_keep_what_the_check_needs(tmp_path):
    model, samples = convs()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples)
    qtool.calibrate(tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / "s.npz", target="avx2")
    for name, origin in (("a", {"calib": tmp_path / "c.npz"}), ("b", {"stats": tmp_path / "s.npz"})):
        qtool.quantize(tmp_path / "m.onnx", **origin, output=tmp_path / f"{name}.onnx", target="avx2")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_without_samples_all_that_could_saturate_gets_seven_bits(monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("qtool.calibrate.kept"), "MAX_BYTES", 16
    )  # no sample is small enough to be kept
    model = one_matmul(np.ones((8, 4), np.float32))
    result = qtool.quantize(model, {"x": np.eye(8, dtype=np.float32)}, target="avx2")
    assert notes(result) == {"node_MatMul": "7-bit weights: int16 sums could saturate without VNNI"}
    assert (codes(result, "w") == SEVEN_BITS).all()
    (note,) = result.notes
    assert note.startswith("no samples are at hand to check int16 sums on: 7-bit weights wherever they could saturate")
    assert note.endswith("in 1 layer (node_MatMul)")


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_it(threads):
    model, samples = convs()
    one, other = (qtool.quantize(model, samples, target="avx2", num_threads=n).model for n in (1, threads))
    assert one is not None
    assert other is not None
    assert one.SerializeToString() == other.SerializeToString()


def test_tied_weights_are_narrowed_only_where_they_saturate():
    text = """g (float[N,8] x, float[N,8] z) => (float[N,4] a, float[N,4] b) {
        a = MatMul (x, w)
        b = MatMul (z, w)
    }"""
    model = build(text, {"w": np.ones((8, 4), np.float32)})
    samples = {"x": np.ones((8, 8), np.float32), "z": np.eye(8, dtype=np.float32)}
    made = quantize_and_check(model, samples, target="avx2")
    assert float(made.weight("node_MatMul").scale[0]) == 1 / 64
    assert float(made.weight("node_MatMul_1").scale[0]) == np.float32(1 / 127)


@pytest.mark.parametrize(
    ("attributes", "shape", "kernel"),
    [
        ("", (2, 4, 7), (3,)),
        ("<pads=[1,2], strides=[2], dilations=[2]>", (2, 4, 9), (3,)),
        ("<pads=[1,0,2,1], strides=[1,2], group=2>", (2, 4, 6, 5), (3, 2)),
        ('<auto_pad="SAME_UPPER", strides=[2,2]>', (2, 4, 6, 5), (3, 2)),
        ('<auto_pad="SAME_LOWER", strides=[2,2]>', (2, 4, 7, 5), (2, 3)),
        ('<auto_pad="VALID", dilations=[1,2]>', (2, 4, 6, 6), (3, 2)),
        ("<pads=[1,1,1,1,1,1]>", (1, 4, 4, 3, 5), (2, 3, 2)),
    ],
)
def test_rows_of_a_conv_times_its_weight_are_the_conv(attributes, shape, kernel):
    import onnx_ir as ir

    groups = 2 if "group=2" in attributes else 1
    weight = np.random.default_rng(1).integers(-9, 9, (6, 4 // groups, *kernel)).astype(np.float32)
    dims = ",".join(map(str, shape))
    free = ",".join(f"d{i}" for i in range(len(shape)))
    model = build(f"g (float[{dims}] x) => (float[{free}] y) {{ y = Conv {attributes} (x, w) }}", {"w": weight})
    x = np.random.default_rng(2).integers(0, 9, shape).astype(np.float32)
    expected = run(model, {"x": x})["y"]
    geometry = geometry_of(next(iter(ir.from_proto(model).graph)), weight.shape)
    rows = geometry.rows(x, 0, limit=10_000)
    products = [
        part @ w.reshape(len(w), w.shape[1], -1).transpose(2, 1, 0).reshape(-1, len(w))
        for part, w in zip(rows, np.split(weight, groups), strict=True)
    ]
    got = np.moveaxis(np.concatenate(products, axis=1).reshape(shape[0], *expected.shape[2:], 6), -1, 1)
    assert np.array_equal(got, expected)


def test_the_rows_that_are_looked_at_are_bounded_and_spread():
    geometry = Geometry((1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), "NOTSET", 1)
    x = np.arange(100 * 100).reshape(1, 1, 100, 100)
    (rows,) = geometry.rows(x, 0, limit=ROWS_PER_SAMPLE)
    assert rows.shape == (ROWS_PER_SAMPLE, 1)
    assert (rows[0, 0], rows[-1, 0]) == (0, 9999)
    assert set(np.diff(rows[:, 0])) <= {19, 20}
