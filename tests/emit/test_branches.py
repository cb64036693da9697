"""Static mode inside the branches of If: each is planned, calibrated and rewritten like the top graph."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import qtool
from qtool import api
from qtool.api import QuantizeResult
from qtool.signal import sqnr_db
from tests.models import FORMATS, _session, build, normal, quantize_and_check, run

# h is captured by both branches, w by both; "g" names a value in each; then_branch has a weight of its own
TWO = """m (float[1,4,8,8] x, bool c) => (float[1,4,8,8] y) {
    h = Sin(x)
    [if] y = If(c) <
        then_branch = t () => (float[1,4,8,8] a) {
            [conv] g = Conv<pads=[1,1,1,1]>(h, w, b)
            [relu] r = Relu(g)
            [second] a = Conv<pads=[1,1,1,1]>(r, v)
        },
        else_branch = e () => (float[1,4,8,8] d) {
            [other] g = Conv<pads=[1,1,1,1]>(h, w)
            d = Tanh(g)
        }
    >
}"""
ARRAYS = {"w": normal(4, 4, 3, 3, scale=0.3), "b": normal(4, seed=1), "v": normal(4, 4, 3, 3, seed=2, scale=0.3)}


def sample(seed: int, condition: bool, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": normal(1, 4, 8, 8, seed=seed, scale=scale), "c": np.asarray(condition)}


BOTH = [sample(seed, seed % 2 == 0) for seed in range(8)]


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            found += nodes_of(attribute.g)
    return found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_are_quantized_and_stay_right(form, condition):
    done = quantize_and_check(build(TWO, ARRAYS), BOTH, feeds=sample(100, condition), format=form)
    # Tanh has no integer form, but the Conv in front of it is worth its Q and DQ
    assert done.quantized() == ["conv", "relu", "second", "other"]
    assert done.sqnr() > 30
    ops = Counter(node.op_type for node in nodes_of(done.model.graph))
    assert ops["QLinearConv" if form == "qlinear" else "Conv"] == 3
    assert "Identity" not in ops  # what stood for captured values is gone
    # what both branches capture is stored once, where it was
    assert [t.name for t in done.model.graph.initializer if t.name.startswith("w_")] == [
        "w_quantized", "w_scale", "w_zero_point",
    ]  # fmt: skip
    assert not {"w", "v", "b"} & set(done.initializers)


def test_the_convs_of_a_branch_fuse(tmp_path):
    done = quantize_and_check(build(TWO, ARRAYS), BOTH, feeds=BOTH[0], format="qdq")
    path = tmp_path / "optimized.onnx"
    _session(done.model, optimize=True, change=lambda o: setattr(o, "optimized_model_filepath", str(path)))
    ops = Counter(node.op_type for node in nodes_of(onnx.load(path).graph))
    assert ops["QLinearConv"] == 3
    assert ops["Conv"] == ops["FusedConv"] == 0


def test_what_only_one_branch_sees_does_not_count_for_the_other():
    """x is 100 times larger where the condition is false."""
    data = [sample(seed, seed % 2 == 0, 0.01 if seed % 2 == 0 else 1.0) for seed in range(8)]
    done = quantize_and_check(build(TWO.replace("Sin", "Abs"), ARRAYS), data, feeds=data[0])
    scales = [done.scale(name) for name in ("h_captured", "h_captured_1")]
    assert scales[0] < scales[1] / 50
    assert done.sqnr() > 30


@pytest.mark.parametrize("form", FORMATS)
def test_a_branch_that_never_ran_stays_as_it_is(form):
    model = build(TWO, ARRAYS)
    done = quantize_and_check(model, [sample(seed, True) for seed in range(4)], feeds=sample(9, False), format=form)
    assert done.quantized() == ["conv", "relu", "second"]
    assert done.reason("other") == "'h_captured_1' was never produced by the calibration data"
    assert np.array_equal(done.got["y"], done.expected["y"])
    assert done.result.total == 7


def test_a_branch_in_a_branch():
    text = """m (float[2,8] x, bool c, bool k) => (float[2,8] y) {
        y = If(c) <
            then_branch = t () => (float[2,8] a) {
                [outer] h = MatMul(x, w)
                s = Softmax(h)
                a = If(k) <
                    then_branch = tt () => (float[2,8] aa) { [inner] aa = MatMul(s, v) },
                    else_branch = te () => (float[2,8] ab) { [far] ab = MatMul(x, v) }
                >
            },
            else_branch = e () => (float[2,8] d) { d = Identity(x) }
        >
    }"""
    model = build(text, {"w": normal(8, 8), "v": normal(8, 8, seed=1)})
    feeds = [{"x": normal(2, 8, seed=s), "c": np.asarray(s % 4 != 3), "k": np.asarray(s % 2 == 0)} for s in range(12)]
    for one in feeds[:4]:
        done = quantize_and_check(model, feeds, feeds=one, agreement_db=25.0)
        assert done.quantized() == ["outer", "inner", "far"]
        assert done.sqnr() > 30


def test_a_condition_that_depends_on_the_sample_is_decided_sample_by_sample():
    """Together in a batch all samples would take the branch that the largest of them takes."""
    text = """m (float[N,8] x) => (float[N,8] y) {
        top = ReduceMax<keepdims=0>(x)
        c = Greater(top, limit)
        y = If(c) <
            then_branch = t () => (float[N,8] a) { [large] a = MatMul(x, w) },
            else_branch = e () => (float[N,8] d) { [small] d = MatMul(x, w) }
        >
    }"""
    model = build(text, {"w": normal(8, 8), "limit": np.asarray(1.0, np.float32)})
    x = normal(32, 8, scale=0.2)
    x[::2] += 2.0
    results = [qtool.quantize(model, {"x": x}, batch=batch, method="minmax") for batch in (None, 1, 32)]
    assert len({result.model.SerializeToString() for result in results}) == 1
    plan = results[0].plan
    large, small = (plan.tensors[name].range for name in ("x_captured", "x_captured_1"))
    assert large[1] == pytest.approx(x.max(), rel=0.01)
    assert small[1] == pytest.approx(x[1::2].max(), rel=0.02)


def test_from_statistics_the_same_bytes(tmp_path):
    onnx.save(build(TWO, ARRAYS), tmp_path / "m.onnx")
    stats = qtool.calibrate(tmp_path / "m.onnx", BOTH, output=tmp_path / "s.npz")
    assert {"h_captured", "r", "g_1"} <= set(stats)
    qtool.quantize(tmp_path / "m.onnx", BOTH, output=tmp_path / "a.onnx")
    qtool.quantize(tmp_path / "m.onnx", stats=tmp_path / "s.npz", output=tmp_path / "b.onnx")
    a, b = onnx.load(tmp_path / "a.onnx"), onnx.load(tmp_path / "b.onnx")
    assert a.graph.SerializeToString() == b.graph.SerializeToString()


def test_statistics_of_a_branch_count_the_samples_that_took_it():
    stats = qtool.calibrate(build(TWO, ARRAYS), BOTH[:5], tensors=["r", "g_1", "h"])
    assert {name: stats[name].count // (8 * 8) for name in stats} == {"r": 3 * 4, "g_1": 2 * 4, "h": 5 * 4}


def test_a_method_for_a_tensor_of_a_branch():
    changed = qtool.quantize(build(TWO, ARRAYS), BOTH, tensor_methods={"r": "percentile:90"})
    plain = qtool.quantize(build(TWO, ARRAYS), BOTH)
    assert changed.plan.tensors["r"].scale < plain.plan.tensors["r"].scale
    assert changed.plan.tensors["g_1"] == plain.plan.tensors["g_1"]


def test_nodes_of_branches_are_selected_and_inspected_by_name():
    model = build(TWO, ARRAYS)
    done = quantize_and_check(model, BOTH, feeds=BOTH[0], exclude=["other"])
    assert done.quantized() == ["conv", "relu", "second"]
    found = api.inspect(model)
    assert [row[0] for row in found.nodes if row[2] == "quantize"] == ["conv", "relu", "second", "other"]
    assert (found.quantized, found.total, len(found.nodes)) == (4, 7, 7)


@pytest.mark.parametrize("form", FORMATS)
def test_a_loop_in_a_branch_is_counted_and_left_float(form):
    text = """m (float[2,8] x, bool c, int64 n) => (float[2,8] y) {
        y = If(c) <
            then_branch = t () => (float[2,8] a) {
                [mm] h = MatMul(x, w)
                go = Constant<value = bool {1}>()
                a = Loop(n, go, h) <body = l (int64 i, bool on, float[2,8] s) => (bool still, float[2,8] next) {
                    still = Identity(on)
                    [inside] p = MatMul(s, w)
                    next = Tanh(p)
                }>
            },
            else_branch = e () => (float[2,8] d) { d = Neg(x) }
        >
    }"""
    data = [{"x": normal(2, 8, seed=s), "c": np.asarray(True), "n": np.asarray(3)} for s in range(4)]
    done = quantize_and_check(build(text, {"w": normal(8, 8, scale=0.4)}), data, feeds=data[0], format=form)
    assert done.quantized() == ["mm"]
    assert done.reason("inside") == "it is inside the body of a Loop, whose activations are not calibrated"
    assert not next(s for s in done.result.skips if s.node == "inside").expected
    assert done.result.total == 7
    assert done.sqnr() > 25


@pytest.fixture(scope="module")
def speech(zoo):
    """Frames at 16 and 8 kHz."""
    with np.load(zoo / "silero_vad_calib.npz") as data:
        x, state = data["input"], data["state"]
    return [{"input": x[i], "state": state[i], "sr": np.asarray(16000)} for i in range(0, 64, 2)] + [
        {"input": x[i][:, ::2].copy(), "state": state[i], "sr": np.asarray(8000)} for i in range(0, 64, 2)
    ]


@pytest.mark.zoo
@pytest.mark.parametrize("form", FORMATS)
def test_silero_vad_under_both_conditions(form, zoo, speech, tmp_path):
    """All of its weights lie in the branches of nested Ifs; the sampling rate chooses."""
    source = zoo / "silero_vad.onnx"
    done: QuantizeResult = qtool.quantize(source, speech, format=form, output=tmp_path / "q.onnx", num_threads=1)
    assert done.by_op["Conv"] == (10, 12)
    squared = "its output is squared: a spectrum spans more than 8 bits hold; --include quantizes it all the same"
    assert [s.reason for s in done.skips if s.op_type == "Conv"] == [squared] * 2
    assert done.by_op["LSTM"] == (0, 4)
    assert done.bytes_after < 0.75 * done.bytes_before
    before, after = onnx.load(source), onnx.load(done.model_path)
    for rate, frames in ((16000, speech[:32]), (8000, speech[32:])):
        want = [run(before, one) for one in frames[::8]]
        for optimize in (False, True):
            got = [run(after, one, optimize=optimize) for one in frames[::8]]
            for name, floor in (("output", 16.0), ("stateN", 16.0)):
                pair = [np.concatenate([one[name].ravel() for one in runs]) for runs in (want, got)]
                assert sqnr_db(*pair) > floor, f"{name} at {rate} Hz"


@pytest.mark.zoo
def test_silero_vad_calibrated_at_one_rate_is_float_at_the_other(zoo, speech, tmp_path):
    done = qtool.quantize(zoo / "silero_vad.onnx", speech[:16], output=tmp_path / "q.onnx")
    assert done.by_op["Conv"] == (5, 12)
    before, after = onnx.load(zoo / "silero_vad.onnx"), onnx.load(done.model_path)
    for one in (speech[40], speech[50]):
        assert sqnr_db(run(before, one)["stateN"], run(after, one)["stateN"]) > 100
