"""Method ``auto`` judged on the whole model: one on which looking at single tensors misleads, and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from qtool.api import QuantizeResult
from qtool.calibrate.kept import Kept
from qtool.calibrate.statsfile import load_statistics, save_statistics
from qtool.evaluate.whole_model import MIN_SAMPLES, ROUNDS, SHARE
from tests.cases.files_support import random
from tests.models import FORMATS, build, normal

COUNT, ROWS, WIDTH = SHARE * MIN_SAMPLES, 16, 32
WINNER = "percentile:99.99"
REASON = "the whole model was not judged: "
COMPARE = "; compare it with --method mse on other samples (qtool compare)"


def planted() -> onnx.ModelProto:
    """Channel 0 of x is 3, and rarely 100; the Tanh behind makes 1 of either.

    For ``auto`` the values of 100 matter: they meet weights as large as all others. So the other channels, which are
    below 1, get steps of 0.4, and the output is poor. Cut off at 3, nothing is lost.
    """
    weights = normal(WIDTH, WIDTH, seed=1, scale=0.15)
    weights[0], weights[:, 0] = 0.0, 0.0
    weights[0, 0] = 1.0
    return build(
        f"""m (float[N,{ROWS},{WIDTH}] x) => (float[N,{ROWS},{WIDTH}] y) {{
            [first] h = MatMul(x, w1)
            [tanh] t = Tanh(h)
            [second] y = MatMul(t, w2)
        }}""",
        {"w1": weights, "w2": normal(WIDTH, WIDTH, seed=2)},
    )


def data(count: int = COUNT) -> dict[str, np.ndarray]:
    x = np.clip(random(count, ROWS, WIDTH, seed=3, scale=0.3), -1.0, 1.0)
    x[:, :, 0] = 3.0
    x[5, 3, 0] = x[count // 2, 0, 0] = 100.0
    return {"x": x}


def judged(proto: onnx.ModelProto, samples: Any, **options: Any) -> QuantizeResult:
    result = qtool.quantize(proto, samples, **options)
    assert result.auto is not None
    return result


def graph_bytes(result: QuantizeResult) -> bytes:
    assert result.model is not None
    return result.model.graph.SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def winner() -> QuantizeResult:
    return judged(planted(), data())


# ------------------------------------------------------------------------------------------------- what it finds


def test_a_method_that_is_better_for_the_whole_model_is_taken(winner):
    check = winner.auto
    assert (check.chosen, check.samples) == (WINNER, MIN_SAMPLES)
    by_name = {trial.method: trial for trial in check.trials}
    assert list(by_name) == ["auto", "percentile:99.999", WINNER, "entropy"]  # mse is what auto has
    assert by_name[WINNER].sqnr_db["y"] > by_name["auto"].sqnr_db["y"] + 20
    assert by_name[WINNER].gain.db == pytest.approx(by_name[WINNER].sqnr_db["y"] - by_name["auto"].sqnr_db["y"])
    assert winner.sqnr_db["y"] > 30
    assert check.message() == (
        f"{WINNER}, {by_name[WINNER].gain.db:.1f} dB better than auto for the whole model on 32 calibration samples"
    )
    assert {p.key: p.value for p in winner.model.metadata_props}["qtool.calibration.ranges"] == WINNER


def test_entropy_is_taken_where_most_values_are_smaller_than_a_step():
    """One row in 128 is 300 times as loud as the others, and saturates the Tanh cut off or not."""
    proto = build(
        f"""m (float[N,{ROWS},{WIDTH}] x) => (float[N,{ROWS},{WIDTH}] y) {{
            [first] h = MatMul(x, w1)
            [tanh] t = Tanh(h)
            [second] y = MatMul(t, w2)
        }}""",
        {"w1": normal(WIDTH, WIDTH, seed=1), "w2": normal(WIDTH, WIDTH, seed=2)},
    )
    x = np.abs(random(COUNT, ROWS, WIDTH, seed=5)) * np.float32(0.05)
    x[::8, 0] *= 300
    check = judged(proto, {"x": x}).auto
    by_name = {trial.method: trial for trial in check.trials}
    assert check.chosen == "entropy"
    assert by_name["auto"].sqnr_db["y"] < 2
    assert by_name["entropy"].sqnr_db["y"] > 10
    assert max(by_name[name].gain.db for name in ("mse", "percentile:99.999", "percentile:99.99")) < 2


@pytest.mark.parametrize("format_", FORMATS)
def test_the_result_is_that_of_the_method(format_):
    found = judged(planted(), data(), format=format_)
    assert found.auto.chosen == WINNER
    assert graph_bytes(found) == graph_bytes(qtool.quantize(planted(), data(), method=WINNER, format=format_))
    assert found.config.method == "auto"


def test_the_same_for_threads_limits_and_statistics(winner, tmp_path):
    np.savez(tmp_path / "calib.npz", **data())
    onnx.save(planted(), tmp_path / "m.onnx")
    qtool.calibrate(tmp_path / "m.onnx", tmp_path / "calib.npz", output=tmp_path / "s.npz")
    ways: dict[str, dict[str, Any]] = {
        "one": {"calib": tmp_path / "calib.npz", "num_threads": 1},
        "two": {"calib": tmp_path / "calib.npz", "num_threads": 2},
        "limit": {"calib": tmp_path / "calib.npz", "max_memory": 4 << 30},
        "stats": {"stats": tmp_path / "s.npz"},
    }
    made = []
    for name, options in ways.items():
        result = qtool.quantize(tmp_path / "m.onnx", output=tmp_path / f"{name}.onnx", **options)
        # of a file other samples are kept than of arrays; by these the two that cut at 3 change places
        assert result.auto.chosen == "entropy"
        assert result.verified_samples == 4
        made.append((result.model_path.read_bytes(), result.auto.to_dict()))
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize(
    "options", [{"tensor_methods": {"x": "minmax"}}, {"overrides": [{"nodes": ["first"], "method": "minmax"}]}]
)
def test_tensors_with_a_method_of_their_own_keep_it(options):
    found = judged(planted(), data(), **options)
    assert found.plan.tensors["x"].range[1] > 99
    assert found.auto.chosen == "auto"


@pytest.mark.parametrize(
    "options", [{"tensor_methods": {"x": "auto"}}, {"overrides": [{"nodes": ["first"], "method": "auto"}]}]
)
def test_single_tensors_may_be_left_to_auto(options):
    found = judged(planted(), data(), method="minmax", **options)
    assert found.auto.chosen == WINNER
    assert found.plan.tensors["x"].range[1] < 5


# -------------------------------------------------------------------------------------------- what it leaves alone


def test_without_a_sure_gain_auto_stays():
    proto = build(
        "m (float[N,16] x) => (float[N,8] y) { [a] h = MatMul(x, w1) [r] g = Relu(h) [b] y = MatMul(g, w2) }",
        {"w1": normal(16, 32, seed=1), "w2": normal(32, 8, seed=2)},
    )
    found = judged(proto, {"x": random(2 * COUNT, 16, seed=3)})
    assert found.auto.chosen == "auto"
    assert found.auto.samples == ROUNDS[-1]
    assert found.auto.reason == "no other method is surely better for the whole model on 32 calibration samples"
    assert len(found.auto.trials) > 1
    assert "qtool.calibration.ranges" not in {p.key for p in found.model.metadata_props}


def test_what_few_samples_suffer_decides_nothing():
    """As planted, but one sample of those that are kept has nearly all of the output, and of the error."""
    samples = data()
    samples["x"][:, :, 1:] *= 1e-3
    samples["x"][:, :, 0] = 1e-3
    samples["x"][:1] = data()["x"][:1]
    samples["x"][5, 3, 0] = 100.0
    np_file = {"x": samples["x"]}
    found = judged(planted(), [{"x": row[None]} for row in np_file["x"]])
    assert found.auto.chosen == "auto"
    kept_first = found.auto.trials[0].samples
    assert found.auto.samples == kept_first


def test_few_samples_are_not_worth_it():
    found = judged(planted(), data(COUNT - 1))
    assert (found.auto.chosen, found.auto.samples, found.auto.trials) == ("auto", 0, ())
    assert found.auto.reason == f"{REASON}that pays from 256 calibration samples on, and there are 255"


def test_random_samples_judge_nothing():
    found = qtool.quantize(planted(), random_calib=COUNT)
    assert found.auto.reason == f"{REASON}random samples say nothing about its outputs"


def test_statistics_without_samples_judge_nothing(tmp_path):
    """Such as those of samples above 32 MB."""
    onnx.save(planted(), tmp_path / "m.onnx")
    qtool.calibrate(tmp_path / "m.onnx", data(), output=tmp_path / "s.npz")
    save_statistics(tmp_path / "none.npz", replace(load_statistics(tmp_path / "s.npz"), kept=Kept()))
    found = qtool.quantize(tmp_path / "m.onnx", stats=tmp_path / "none.npz")
    assert found.auto.reason == f"{REASON}that takes 32 different samples, and calibration keeps none"
    assert found.auto.chosen == "auto"


def test_large_samples_are_not_read_for_it():
    proto = build("m (float[N,300000] x) => (float[N,2] y) { y = MatMul(x, w) }", {"w": normal(300000, 2)})
    row = random(1, 300000)
    found = judged(proto, [{"x": row}] * 4)
    assert found.auto.reason == f"{REASON}that pays from 256 calibration samples on, and there are 4" + COMPARE


def test_outputs_of_integers_judge_nothing():
    proto = build(
        """m (float[N,16] x) => (int64[N] y) {
            h = MatMul(x, w1)
            g = MatMul(h, w2)
            y = ArgMax<axis=1, keepdims=0>(g)
        }""",
        {"w1": normal(16, 32, seed=1), "w2": normal(32, 8, seed=2)},
    )
    found = judged(proto, {"x": random(COUNT, 16, seed=3)})
    assert found.auto.reason == f"{REASON}no output holds floats"


def test_equal_ranges_need_no_run():
    found = judged(planted(), data(), tensor_methods={"*": "minmax"})
    assert found.auto.reason == f"{REASON}other methods give the same ranges"


def test_nothing_is_judged_where_nothing_is_left_to_auto():
    assert qtool.quantize(planted(), data(), method="minmax").auto is None
    assert qtool.quantize(planted(), dynamic=True).auto is None
    assert qtool.quantize(planted(), weight_only=True).auto is None
    assert qtool.quantize(planted(), data(), dry_run=True).auto is None


def test_an_output_that_the_method_makes_worse_keeps_auto():
    """y as planted, and z, which needs the values of 100."""
    proto = planted()
    proto.graph.node.append(onnx.helper.make_node("MatMul", ["x", "w3"], ["z"], "third"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w3"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["N", ROWS, WIDTH]))
    samples = data()
    samples["x"][::2, 0, 0] = 100.0  # in every other sample, so that all of those that are kept have some
    samples["x"][1::2, 0, 0] = 100.0
    found = judged(proto, samples)
    assert found.auto.chosen == "auto"


def test_nan_outputs_on_both_sides_are_no_error():
    """Log of negative values: NaN with and without quantization, in all samples."""
    proto = planted()
    proto.graph.node.append(onnx.helper.make_node("Sqrt", ["negative"], ["z"], "sqrt"))
    proto.graph.node.insert(0, onnx.helper.make_node("Sub", ["x", "far"], ["negative"], "far_below"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e6), "far"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["N", ROWS, WIDTH]))
    found = judged(proto, data(), include=["first", "tanh", "second"])
    assert found.auto.chosen == WINNER
    assert found.auto.trials[0].sqnr_db["z"] == np.inf
