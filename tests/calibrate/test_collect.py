import subprocess
import sys
import textwrap
from functools import reduce
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from qtool.calibrate import rowwise
from qtool.calibrate.collect import collect
from qtool.calibrate.samples import open_samples
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import create_session


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


# exact in float32 whatever the order of the sums, so that every batch size must give the same bits
MLP = """g (float[N, 4] x) => (float[N, 2] y)
<float[4, 3] w1 = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 0, 2}, float[3, 2] w2 = {1, -1, 0.5, 2, -3, 1}>
{ a = MatMul(x, w1)  b = Relu(a)  y = MatMul(b, w2) }"""
ROWS = np.random.default_rng(0).integers(-8, 9, (30, 4)).astype(np.float32)


def observe(proto, tensors, data, **options):
    return collect(proto, tensors, open_samples(data, create_session(proto).inputs), **options)


def test_every_wanted_tensor_is_observed_in_full():
    proto = model(MLP)
    before = proto.SerializeToString()
    seen = observe(proto, ["y", "x", "b", "w1"], {"x": ROWS}, histograms=True)
    w1, w2 = (numpy_helper.to_array(i) for i in proto.graph.initializer)
    b = np.maximum(ROWS @ w1, 0)
    assert list(seen) == ["y", "x", "b", "w1"]
    assert seen.samples == 30
    for name, values in {"y": b @ w2, "x": ROWS, "b": b}.items():
        assert seen[name] == TensorStatistics.of(values, histogram=True, rows=30)
    assert (seen["w1"].minimum, seen["w1"].maximum) == (-6, 9)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("max_batch_bytes", [1, 500, 2000, 1 << 30])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_batches_and_threads_change_nothing(max_batch_bytes, num_threads):
    proto = model(MLP)
    expected = observe(proto, ["a", "y", "x"], {"x": ROWS}, histograms=True)
    options = {"max_batch_bytes": max_batch_bytes, "num_threads": num_threads, "histograms": True}
    assert observe(proto, ["a", "y", "x"], {"x": ROWS}, **options) == expected
    one_by_one = [{"x": row} for row in ROWS]
    assert observe(proto, ["a", "y", "x"], one_by_one, **options) == expected
    assert observe(proto, ["a", "y", "x"], [{"x": ROWS[:7]}, {"x": ROWS[7:]}], **options) == expected
    fixed = model(MLP.replace("N", "3"))
    assert observe(fixed, ["a", "y", "x"], {"x": ROWS}, **options) == expected


# magika's kind of model: onnxruntime computes the product of one row in another order than that of many
PRODUCT = model("g (float[N, 257] x) => (float[N, 33] y) { y = MatMul(x, w) }")
PRODUCT.graph.initializer.append(
    numpy_helper.from_array(np.random.default_rng(1).standard_normal((257, 33)).astype(np.float32), "w")
)


@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 45),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
    length=st.sampled_from([1, 3, 257]),
)
@settings(max_examples=40, deadline=None)
def test_statistics_are_those_of_single_samples_to_the_last_bit(count, batch, threads, seed, length):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, length, 257), dtype=np.float32)[:, 0, :]
    expected = observe(PRODUCT, ["x", "y"], {"x": x}, histograms=True, batch_size=1, num_threads=1)
    order = random.permutation(count)
    seen = observe(PRODUCT, ["x", "y"], {"x": x[order]}, histograms=True, batch_size=batch, num_threads=threads)
    assert dict(seen) == dict(expected)
    cut = int(random.integers(0, count + 1))
    halves = [observe(PRODUCT, ["x", "y"], {"x": part}, histograms=True) for part in (x[:cut], x[cut:]) if len(part)]
    assert dict(reduce(Statistics.merged, halves)) == dict(expected)


def test_a_batch_that_changes_bits_is_given_up_with_a_note(monkeypatch):
    monkeypatch.setattr(rowwise, "_same", lambda *_: False)
    seen = observe(model(MLP), ["y", "a"], {"x": ROWS}, num_threads=1)
    assert seen["a"].count == 90
    assert seen.notes == ("Samples were run one at a time: in a batch, onnxruntime gives 'a' other bits.",)


@pytest.mark.parametrize("batch_size", [1, 4, 30, None])
def test_a_tensor_without_a_sample_axis_is_counted_for_every_sample(batch_size):
    proto = model("""g (float[N, 4] x) => (float[N, 4] y)
        <float[4] p = {1, 2, 3, 4}, float[1, 4] r = {1, 2, 3, 5}>
        { a = Exp(p) b = Abs(r) z = Mul(a, b) y = Add(x, z) }""")
    seen = observe(proto, ["a", "b", "y", "p"], {"x": ROWS}, batch_size=batch_size)
    assert {name: (one.count, one.sample_ranges) for name, one in seen.items()} == dict.fromkeys("abyp", (120, 30))


def test_statistics_of_a_tensor_that_sums_over_the_batch_are_those_of_single_samples():
    proto = model("g (float[N, 4] x) => (float[1, 4] y) { y = ReduceSum<keepdims=1>(x, k) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "k"))
    seen = observe(proto, ["y"], {"x": ROWS})
    assert seen["y"] == observe(proto, ["y"], {"x": ROWS}, batch_size=1)["y"]
    assert seen["y"].count == 120
    assert "'y'" in seen.notes[0]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_checkpoints_hold_exactly_the_samples_so_far_and_resume_to_the_same(num_threads):
    proto = model(MLP)
    samples = open_samples({"x": ROWS}, create_session(proto).inputs)
    options = {"histograms": True, "num_threads": num_threads}
    saved = []
    whole = collect(proto, ["a", "y"], samples, checkpoint=saved.append, checkpoint_every=8, batch_size=3, **options)
    assert [part.samples for part in saved] == [9, 18, 27]
    for part in saved:
        first = collect(proto, ["a", "y"], samples.slice(0, part.samples), **options)
        assert first == part
        assert collect(proto, ["a", "y"], samples.slice(part.samples), initial=part, **options) == whole


def test_ragged_samples():
    proto = model("g (float[N, T] x) => (float[N, T] y) { y = Neg(x) }")
    items = [{"x": np.full((1, n), n, np.float32)} for n in (3, 3, 7, 1, 1, 1)]
    seen = observe(proto, ["y"], items)
    assert (seen.samples, seen["y"].count, seen["y"].minimum) == (6, 16, -7)


def test_progress_ends_at_the_number_of_samples():
    calls = []
    observe(
        model(MLP), ["a"], {"x": ROWS}, progress=lambda done, total: calls.append((done, total)), max_batch_bytes=300
    )
    assert calls[-1] == (30, 30)
    assert calls == sorted(set(calls))
    assert len(calls) > 3


def test_a_model_is_not_run_for_its_inputs_alone():
    proto = model("g (float[N, 4] x, int64[N] i) => (float[M, 4] y) { y = Gather<axis=0>(x, i) }")
    seen = observe(proto, ["x"], {"x": ROWS, "i": np.full(30, 99)})  # the index is out of range
    assert seen["x"].count == 120


def test_half_precision_tensors():
    proto = model("g (float16[N] x) => (float16[N] y) { y = Neg(x) z = Cast<to=16>(y) }")
    seen = observe(proto, ["x", "y", "z"], {"x": np.array([1.0, -60000.0], np.float16)})
    assert (seen["y"].minimum, seen["y"].maximum) == (-1.0, 60000.0)
    assert seen["z"].maximum == float(ml_dtypes.bfloat16(60000.0))


def test_external_data_beside_the_model(tmp_path, monkeypatch):
    proto = model("g (float[N, 4] x) => (float[N, 4] y) { a = Add(x, w) y = Relu(a) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    path = tmp_path / "sub" / "m.onnx"
    path.parent.mkdir()
    onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    inputs = create_session(path).inputs
    monkeypatch.chdir(tmp_path)
    for place in (path, "sub/m.onnx"):
        seen = collect(place, ["a"], open_samples({"x": np.zeros((2, 4), np.float32)}, inputs))
        assert seen["a"].maximum == 3
    with pytest.raises(ModelError, match=r"^The model keeps 'w' in an external file"):
        collect(onnx.load(path, load_external_data=False), ["a"], open_samples({"x": ROWS}, inputs))


def test_unknown_and_unfit_tensors():
    proto = model("g (float[N, 4] xs) => (float[N, 4] y) { y = Neg(xs) s = Shape(y) }")
    with pytest.raises(ConfigError, match=r"^The model's graph has no tensor 'x'\.$") as caught:
        observe(proto, ["x"], {"xs": ROWS})
    assert caught.value.hint == "Did you mean 'xs'?"
    with pytest.raises(ConfigError) as caught:
        observe(proto, ["something else"], {"xs": ROWS})
    assert "top graph" in caught.value.hint
    with pytest.raises(ModelError, match=r"^Tensor 's' is int64; expected a type that has a range"):
        observe(proto, ["s"], {"xs": ROWS})


def test_files_that_are_no_model(tmp_path):
    samples = open_samples({"x": ROWS}, create_session(model(MLP)).inputs)
    with pytest.raises(ModelError, match=r"^Model '.*no\.onnx' cannot be read: .*\.$"):
        collect(tmp_path / "no.onnx", ["a"], samples)
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07junk")
    with pytest.raises(ModelError, match=r"^Model '.*bad\.onnx' cannot be read: ") as caught:
        collect(tmp_path / "bad.onnx", ["a"], samples)
    assert "\n" not in caught.value.message


LOG = "g (float[N, 2] x) => (float[N, 2] y) { l = Log(x) y = Neg(l) }"


def test_nan_and_infinity_are_refused_by_name_and_sample():
    proto = model(LOG)
    rows = np.ones((9, 2), np.float32)
    rows[5] = [-1.0, 0.0]
    with pytest.raises(
        DataError,
        match=r"^Sample 5: a Log node is the first .*: its output 'l' holds 1 NaN and 1 infinite values; expected",
    ):
        observe(proto, ["l"], {"x": rows}, max_batch_bytes=1)
    with pytest.raises(
        DataError, match=r"^Sample 5: a Log node is the first .* its output 'l' holds 1 NaN value; expected"
    ):
        observe(proto, ["l"], {"x": rows}, allow_inf={"l"}, max_batch_bytes=100)
    seen = observe(proto, ["l"], {"x": rows}, on_nan="skip")["l"]
    assert (seen.count, seen.nan, seen.neg_inf, seen.minimum, seen.maximum) == (18, 1, 1, 0, 0)


def test_masks_of_minus_infinity_are_counted_beside_the_range():
    proto = model(LOG)
    rows = np.array([[0.0, 1.0], [0.0, 1.0]], np.float32)
    with pytest.raises(DataError, match=r"^Sample 0: .*'l' holds 1 infinite value;"):
        observe(proto, ["l"], {"x": rows})
    seen = observe(proto, ["l"], {"x": rows}, allow_inf={"l"})["l"]
    assert (seen.neg_inf, seen.minimum, seen.maximum) == (2, 0, 0)


MEMORY = """
    import sys
    from pathlib import Path
    import numpy as np
    from onnx import helper, numpy_helper, TensorProto
    from qtool.calibrate.collect import collect
    from qtool.calibrate.samples import open_samples
    from qtool.runtime import create_session

    w = np.ones((8, 3, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8, 224, 224])],
        [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = open_samples(sys.argv[1], create_session(model).inputs)
    seen = collect(model, ["x", "a"], samples, histograms=True, num_threads=1)
    # not ru_maxrss: that one starts from the size of the process that forked
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seen.samples, int(peak.split()[1]) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path, order):
    peaks = {}
    for count in (16, 144):  # 10 and 87 MB
        x = np.broadcast_to(np.arange(count, dtype=np.float32)[:, None, None, None], (count, 3, 224, 224))
        np.savez(tmp_path / f"{count}.npz", x=np.asarray(x, order=order))
        command = [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path / f"{count}.npz")]
        done, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        assert done == count
        peaks[count] = peak
    # the strips in which a Fortran-ordered file is turned around are smaller for the smaller file
    assert peaks[144] - peaks[16] < (25 if order == "C" else 40), peaks
