"""Dynamic mode and its options: what goes together, what is said, what is verified."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import qtool
from qtool.config import QuantConfig
from qtool.errors import ConfigError, DataError, ModelError, NothingToQuantizeError
from tests.dynamic.support import dynamic
from tests.models import build, normal

TEXT = """m (float[A,B,16] x) => (float[A,B,4] y) {
    [fc1] h = MatMul(x, w)
    [relu] g = Relu(h)
    [fc2] y = MatMul(g, v)
}"""
ARRAYS = {"w": normal(16, 8), "v": normal(8, 4, seed=1)}
X = normal(2, 3, 16, seed=2)


def model(opset: int = 17) -> onnx.ModelProto:
    return build(TEXT, ARRAYS, opset=opset)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stats": "s.npz"}, "Option --stats is about calibration; dynamic mode calibrates nothing."),
        ({"random_calib": 2}, "Option --random-calib is about calibration; dynamic mode calibrates nothing."),
        ({"activations": "int8"}, "Dynamic mode quantizes activations to uint8; found int8."),
        ({"weights": "int4", "format": "qdq"}, "Dynamic mode has weights of int8 or uint8; found int4."),
        ({"method": "mse"}, "Option 'method' is about calibrated activations; dynamic mode calibrates none."),
        ({"symmetric_activations": True}, "Option 'symmetric_activations' is about calibrated activations"),
        ({"dedicated_qdq": True}, "Option 'dedicated_qdq' is about calibrated activations"),
        ({"include": ["fc3"]}, "--include 'fc3' matches no node"),
    ],
)
def test_bad_combinations(options, said):
    with pytest.raises(ConfigError) as caught:
        qtool.quantize(model(), dynamic=True, **options)
    assert caught.value.message.startswith(said)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_include_and_exclude():
    assert dynamic(model(), {"x": X}, include=["fc1"]).quantized() == ["fc1"]
    done = dynamic(model(), {"x": X}, exclude=["fc*1"])
    assert done.quantized() == ["fc2"]
    assert done.reason("fc1") == "excluded by 'fc*1'"


def test_settings_come_from_a_file_and_are_recorded(tmp_path):
    (tmp_path / "c.toml").write_text('[quantize]\ndynamic = true\nweights = "uint8"\n')
    result = qtool.quantize(model(), config=tmp_path / "c.toml")
    assert result.config == QuantConfig(dynamic=True, weights="uint8")
    recorded = {p.key: p.value for p in result.model.metadata_props}
    assert json.loads(recorded["qtool.config"]) == result.config.to_dict()
    assert recorded.keys() == {"qtool.version", "qtool.config", "qtool.source.sha256"}


def test_without_samples_it_is_verified_on_seeded_random_ones():
    result = qtool.quantize(model(), dynamic=True)
    assert (result.verified_samples, result.verified_on) == (2, "random")
    assert result.sqnr_db["y"] > 30
    assert result.sqnr_db == qtool.quantize(model(), dynamic=True).sqnr_db


def test_given_samples_verify_and_change_nothing():
    given, plain = qtool.quantize(model(), {"x": X}, dynamic=True), qtool.quantize(model(), dynamic=True)
    assert (given.verified_samples, given.verified_on) == (2, "given")
    assert given.model == plain.model


def test_given_samples_must_fit():
    with pytest.raises(DataError):
        qtool.quantize(model(), {"x": X[..., :5]}, dynamic=True)


def test_what_random_samples_cannot_run_is_loaded_only():
    """Ids are random 0s and 1s, and this model knows none of them."""
    text = """m (int64[3] i, float[3,16] x) => (float[3,8] y) {
        five = Constant<value = int64 {5}>()
        j = Add(i, five)
        t = Gather(table, j)
        h = Add(x, t)
        y = MatMul(h, w)
    }"""
    arrays = {"w": ARRAYS["w"], "table": normal(1, 16)}
    result = qtool.quantize(build(text, arrays), dynamic=True)
    assert result.verified_samples == 0
    assert any("run on nothing: no samples are given, and random ones do not do" in note for note in result.notes)


def test_format_is_accepted_and_not_used():
    """One form for both words, so that scripts can pass them."""
    results = [qtool.quantize(model(), dynamic=True, format=form) for form in ("qlinear", "qdq")]
    assert results[0].model.graph == results[1].model.graph
    results.append(qtool.quantize(model(), config=QuantConfig(dynamic=True, format="qdq")))
    assert all("Dynamic mode has one form: --format is not used." in r.notes for r in results)


def test_samples_that_verify_are_chosen():
    x = normal(6, 3, 16, seed=4)
    chosen = qtool.quantize(model(), {"x": x}, dynamic=True, samples=2, shuffle=3)
    assert (chosen.verified_samples, chosen.verified_on) == (2, "given")
    first = qtool.quantize(model(), {"x": x}, dynamic=True, samples=2)
    assert first.sqnr_db != chosen.sqnr_db
    assert first.model == chosen.model


def test_an_empty_choice_of_methods_is_none():
    assert qtool.quantize(model(), dynamic=True, tensor_methods={}).quantized == 2


def test_dry_run_plans_and_writes_nothing(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    result = qtool.quantize(tmp_path / "m.onnx", dynamic=True, dry_run=True)
    assert [d.to_dict()["form"] for d in result.plan.decisions] == ["dynamic", "dynamic"]
    assert result.plan.decisions[0].to_dict()["weights"][0]["scales"] == 8
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_the_file_is_smaller_and_beside_the_model(tmp_path):
    arrays = {"w": normal(128, 128), "v": normal(128, 128, seed=1)}
    onnx.save(build(TEXT.replace("16]", "128]").replace("4]", "128]"), arrays), tmp_path / "m.onnx")
    result = qtool.quantize(tmp_path / "m.onnx", dynamic=True)
    assert result.model_path == tmp_path / "m.int8.onnx"
    assert result.bytes_after < 0.28 * result.bytes_before


def test_external_data_stays_external(tmp_path):
    arrays = {"w": normal(128, 128), "v": normal(128, 128, seed=1)}
    float_model = build(TEXT.replace("16]", "128]").replace("4]", "128]"), arrays)
    onnx.save(float_model, tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
    result = qtool.quantize(tmp_path / "m.onnx", dynamic=True)
    assert (tmp_path / "m.int8.onnx.data").stat().st_size > 2 * 128 * 128 - 1
    assert result.sqnr_db["y"] > 30


def test_nothing_to_quantize():
    text = "m (float[2,2] x) => (float[2,2] y) { y = MatMul(x, x) }"
    with pytest.raises(NothingToQuantizeError, match="0 of 1 nodes were quantized: both operands are activations"):
        qtool.quantize(build(text), dynamic=True)
    assert qtool.quantize(build(text), dynamic=True, allow_empty=True).quantized == 0


def test_a_weight_that_is_not_finite_is_named():
    w = normal(16, 8)
    w[3, 4] = np.nan
    with pytest.raises(ModelError, match=r"Weight 'w' holds nan at index \[3, 4\]"):
        qtool.quantize(build(TEXT, ARRAYS | {"w": w}), dynamic=True)


def test_its_own_result_is_refused():
    result = qtool.quantize(model(), dynamic=True)
    with pytest.raises(ModelError, match="quantized already: it holds DynamicQuantizeLinear, MatMulInteger"):
        qtool.quantize(result.model, dynamic=True)
