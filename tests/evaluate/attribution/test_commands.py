"""Commands to paste start from what the file says of itself: all settings come back, and one changes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import qtool
from qtool.__main__ import main
from qtool.cli.app import app
from qtool.config import QuantConfig
from qtool.evaluate.attribution.command import Origin, command, origin_of
from qtool.evaluate.attribution.report import Attribution
from tests.evaluate.attribution.conftest import Folder, chain, set_weight, weight_of, without_saturation

OVERRIDES = [
    {"nodes": ["fc1"], "weights": "uint8", "per_channel": False},
    {"nodes": ["fc2", "op:Gemm*"], "activations": "int8", "symmetric": True, "method": "percentile:99.9"},
    {"nodes": ["fc3"], "float": True},
]


def paste(text: str) -> str:
    """Run a command; the file that it writes."""
    words = shlex.split(text)
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    return words[words.index("-o") + 1]


def config_of(path) -> dict[str, Any]:
    (entry,) = [entry for entry in onnx.load(path).metadata_props if entry.key == "qtool.config"]
    found: dict[str, Any] = json.loads(entry.value)
    return found


def attribution(folder: Folder, **options: Any) -> Attribution:
    report = qtool.evaluate(
        folder.model, folder.quant, folder.data, latency=False, metrics=["sqnr"], layers=True, checks="none", **options
    )
    assert report.layers is not None
    return report.layers


@pytest.mark.parametrize(
    "settings",
    [
        {"dynamic": True, "weights": "uint8"},
        {"weight_only": True, "weights": "int4", "block": 16},
        {"weight_only": True, "weights": "uint4", "block": 16, "matmul_nbits": True},
        {"target": "avx2", "per_channel": False},
        {"target": "openvino", "prepare": False, "allow_empty": True},
        {"format": "qdq", "dedicated_qdq": True},
        {"symmetric_activations": True, "method": "mse", "tensor_methods": {"h1": "minmax", "h*": "percentile:99"}},
        {"include": ["op:MatMul"], "exclude": ["fc[02]"]},
        {"overrides": [OVERRIDES[0], OVERRIDES[2], {"nodes": ["fc2"], "method": "percentile:99.9", "format": "qdq"}]},
        {"weight_only": True, "weights": "int4", "block": 16, "overrides": [{"nodes": ["fc1"], "block": 32}]},
    ],
    ids="-".join,
)
def test_the_same_settings_make_the_same_file(folder: Folder, settings: dict[str, Any]) -> None:
    folder.save(chain(4))
    calibrated = not settings.get("dynamic") and not settings.get("weight_only")
    qtool.quantize(folder.model, folder.calib if calibrated else None, output=folder.quant, **settings)
    origin = origin_of(onnx.load(folder.quant))
    again = paste(command(origin, str(folder.model), str(folder.path / "again.onnx"), [str(folder.calib)]))
    assert folder.quant.read_bytes() == (folder.path / "again.onnx").read_bytes()
    assert again == str(folder.path / "again.onnx")


def test_paths_that_look_like_options(folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """``Path`` drops the ./ that keeps a shell's word from being an option; what is to be pasted has it again."""
    monkeypatch.chdir(folder.path)
    onnx.save(chain(3), "-m.onnx")
    Path("-c.npz").write_bytes(folder.calib.read_bytes())
    assert main(["quantize", "./-m.onnx", "--calib", "./-c.npz", "-o", "./-q.onnx"]) == 0
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.endswith("qtool eval ./-m.onnx ./-q.onnx --data EVAL.npz")
    paste(command(origin_of(onnx.load("-q.onnx")), "-m.onnx", "-again.onnx", ["-c.npz"]))
    assert Path("-again.onnx").read_bytes() == Path("-q.onnx").read_bytes()
    assert main(["calibrate", "./-m.onnx", "--data", "./-c.npz", "-o", "./-s.npz"]) == 0
    assert "qtool quantize ./-m.onnx --stats ./-s.npz\n" in capsys.readouterr().err


def test_overrides_stay_when_something_changes(folder: Folder) -> None:
    folder.save(without_saturation(5))
    qtool.quantize(folder.model, folder.calib, output=folder.quant, overrides=OVERRIDES[:1] + OVERRIDES[2:])
    found = attribution(folder)
    first = found.layers[0]
    assert first.suggestion == f"--exclude {first.node}"
    words = "--override fc1=per_channel:false,weights:uint8 --override fc3=float"
    assert f"{words} {first.suggestion} -o" in found.commands[0].text
    assert not any("lack settings" in note for note in found.notes)
    made = paste(found.commands[0].text)
    assert config_of(made) == config_of(folder.quant) | {"exclude": [first.node]}
    rows = {layer.node: layer for layer in found.layers}
    changed = onnx.load(made)
    kept = {t.name: t.data_type for t in changed.graph.initializer}
    assert kept["w1_quantized"] == onnx.TensorProto.UINT8
    assert "w3" in kept
    assert set(rows) == {"fc0", "fc1", "fc2", "fc4"}


def test_an_override_of_several_patterns_is_several_overrides() -> None:
    config = QuantConfig().with_options(overrides=OVERRIDES)
    model = onnx.ModelProto()
    onnx.helper.set_model_props(model, {"qtool.config": json.dumps(config.to_dict())})
    assert shlex.split(command(origin_of(model), "m", "o", ["c"]))[5:-2] == [
        *("--override", "fc1=weights:uint8,per_channel:false"),
        *("--override", "fc2=activations:int8,symmetric:true,method:percentile:99.9"),
        *("--override", "op:Gemm*=activations:int8,symmetric:true,method:percentile:99.9"),
        *("--override", "fc3=float"),
    ]


def test_a_method_for_a_tensor_counts_beside_that_of_its_reader(folder: Folder) -> None:
    folder.save(chain(4))
    override = {"nodes": ["fc2"], "method": "percentile:90"}
    qtool.quantize(folder.model, folder.calib, output=folder.quant, overrides=[override])
    found = attribution(folder)
    assert (found.layers[0].node, found.layers[0].suggestion) == ("fc2", "--method h1=minmax")
    before = found.layers[0].clip_db
    made = paste(found.commands[0].text)
    after = qtool.evaluate(folder.model, made, folder.data, latency=False, layers=True, checks="none").layers
    assert after is not None
    row = next(layer for layer in after.layers if layer.node == "fc2")
    assert before is not None
    assert row.clip_db is not None
    assert row.clip_db > before + 10


def test_scales_per_channel_where_an_override_has_one(folder: Folder) -> None:
    model = chain(4)
    before, weight = weight_of(model, "w1"), weight_of(model, "w2")
    before[:, 3] = 0  # what the outlier is multiplied with
    weight[3, 5] = 1000 * np.abs(weight).max()
    for name, array in (("w1", before), ("w2", weight)):
        set_weight(model, name, array)
    folder.save(model)
    override = {"nodes": ["fc*"], "per_channel": False}
    qtool.quantize(folder.model, folder.calib, output=folder.quant, overrides=[override])
    found = attribution(folder)
    assert found.layers[0].node == "fc2"
    last = found.commands[-1]
    assert "--override 'fc*=per_channel:false' --override fc2=per_channel:true -o" in last.text
    assert last.why == "a scale for each channel of the weight of fc2"
    quant = onnx.load(paste(last.text))
    scales = {t.name: list(t.dims) for t in quant.graph.initializer if t.name.startswith("w") and "scale" in t.name}
    assert scales == {"w0_scale": [], "w1_scale": [], "w2_scale": [24], "w3_scale": []}


def test_another_target_keeps_what_was_the_default_of_the_first() -> None:
    model = onnx.ModelProto()
    config = QuantConfig().with_options(target="openvino")
    onnx.helper.set_model_props(model, {"qtool.config": json.dumps(config.to_dict())})
    origin = origin_of(model)
    assert command(origin, "m", "o", ["c"]) == "qtool quantize m --calib c --target openvino -o o"
    assert command(origin, "m", "o", ["c"], [("--target", "avx2")]) == (
        "qtool quantize m --calib c --format qdq --target avx2 -o o"
    )


def test_fewer_samples_than_the_data_hold(folder: Folder) -> None:
    folder.save(chain(3))
    qtool.quantize(folder.model, folder.calib, output=folder.quant, samples=8)
    found = attribution(folder)
    assert f"--calib {folder.calib} --samples 8 " in found.commands[0].text
    assert any(note.startswith("The quantized model was made with 8 samples, fewer than the") for note in found.notes)
    paste(found.commands[0].text)
    qtool.quantize(folder.model, folder.calib, output=folder.quant, samples=96, force=True)
    assert "--samples" not in attribution(folder).commands[0].text


@pytest.mark.parametrize(
    "recorded",
    [
        "no json",
        "[]",
        '{"target": "elsewhere"}',
        '{"target": ["avx2"]}',
        '{"overrides": 3}',
        '{"overrides": [{"nodes": []}]}',
        '{"tensor_methods": [["h1"]]}',
        '{"exclude": "fc1"}',
        '{"per_channel": "yes"}',
    ],
)
def test_damaged_settings_count_as_missing(recorded: str) -> None:
    model = onnx.ModelProto()
    onnx.helper.set_model_props(model, {"qtool.config": recorded})
    assert origin_of(model) == Origin(None)
    assert command(origin_of(model), "m", "o", []) == "qtool quantize m --calib CALIB -o o"


def test_a_setting_of_a_later_version_is_named(folder: Folder) -> None:
    folder.save(chain(3))
    qtool.quantize(folder.model, folder.calib, output=folder.quant)
    quant = onnx.load(folder.quant)
    (entry,) = [entry for entry in quant.metadata_props if entry.key == "qtool.config"]
    entry.value = json.dumps(json.loads(entry.value) | {"rotation": "hadamard"})
    onnx.save(quant, folder.quant)
    found = attribution(folder)
    assert "The commands lack settings that have no option of their own: rotation." in found.notes
    assert np.isfinite(found.layers[0].own_db or np.nan)
