"""C51, C52: every option does something, says so, and is refused with the list of valid choices where it cannot."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from qtool import QuantConfig
from qtool.__main__ import main
from qtool.config import ACTIVATION_DTYPES, FORMATS, WEIGHT_DTYPES
from qtool.errors import ConfigError
from tests.cases.files_support import metadata, mlp, model, random, samples, snapshot
from tests.ended import Ended, run_command
from tests.models import build, normal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder with a model, its samples and labels, as the current folder."""
    onnx.save(two_readers(), tmp_path / "m.onnx")
    data = {"x": random(512, 8, seed=3) ** 3}  # long tails: the range methods differ
    np.savez(tmp_path / "c.npz", **data, labels=np.arange(len(data["x"])) % 8)
    np.savez(tmp_path / "other.npz", x=data["x"] * 3)
    monkeypatch.chdir(tmp_path)
    for name in ("QTOOL_NUM_THREADS", "NO_COLOR", "FORCE_COLOR", "QTOOL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def command(capsys) -> Callable[..., Ended]:
    return partial(run_command, capsys)


def two_readers() -> onnx.ModelProto:
    """Three MatMuls, two of which read the first one's output."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "W1"], ["a"], "fc1"),
        onnx.helper.make_node("MatMul", ["a", "W2"], ["b"], "fc2"),
        onnx.helper.make_node("MatMul", ["a", "W3"], ["c"], "fc3"),
        onnx.helper.make_node("Add", ["b", "c"], ["y"], "add"),
    ]
    weights = {f"W{i}": random(8, 8, seed=i) for i in (1, 2, 3)}
    return model(nodes, weights, inputs={"x": ["N", 8]}, outputs={"y": ["N", 8]})


def made(name: str) -> bytes:
    """The graph of a result, without provenance: what an option changes must show here."""
    return onnx.load(name).graph.SerializeToString(deterministic=True)


# -------------------------------------------------------------------------------------------- C51 impossible choices


@pytest.mark.parametrize(
    ("args", "choices"),
    [
        (["--activations", "banana"], ACTIVATION_DTYPES),
        (["--weights", "banana"], WEIGHT_DTYPES),
        (["--format", "banana"], FORMATS),
        (["--method", "fc*=banana"], ["minmax", "mse"]),
        (["--method", "banana"], ["minmax", "percentile[:P]", "mse", "entropy"]),
        (["--activations", "int8", "--weights", "uint8"], ["uint8/int8", "uint8/uint8", "int8/int8"]),
        (["--activations", "int16"], ["uint8/int8", "uint8/uint8", "int8/int8", "--format qdq"]),
        (["--weights", "int16"], ["uint8/int8", "uint8/uint8", "int8/int8", "--format qdq"]),
        (["--weights", "int4"], ["uint8/int8", "uint8/uint8", "int8/int8", "--format qdq"]),
        (["--format", "qdq", "--weights", "int2"], ["uint16", "int16", "int8", "uint4"]),
        (["--dtype", "banana"], ["No such option: --dtype"]),
    ],
)
def test_c51_impossible_choices_before_any_work(work, command, args, choices):
    before = snapshot(work)
    # neither the model nor the samples exist: the choice is judged first
    ended = command("quantize", "no_model.onnx", "--calib", "no_samples.npz", *args)
    assert (ended.code, ended.out) == (2, "")
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert all(choice in ended.err for choice in choices)
    assert "no_model" not in ended.err
    assert snapshot(work) == before


def test_c51_qdq_takes_what_qlinear_cannot(work):
    for activations, weights in (("int8", "uint8"), ("int16", "int8"), ("uint8", "int16")):
        result = qtool.quantize("m.onnx", "c.npz", output="q.onnx", format="qdq", activations=activations,
                                weights=weights, force=True)  # fmt: skip
        assert result.quantized == 3


@pytest.mark.parametrize("activations", ACTIVATION_DTYPES)
@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
def test_every_pair_of_types_that_is_accepted_loads(weights, activations):
    """Products with and without a bias, in the middle and at the end: what onnxruntime fuses differs between them."""
    try:
        config = QuantConfig(format="qdq", weights=weights, activations=activations)
    except ConfigError:
        assert weights in ("int2", "uint2")
        assert activations in ("uint8", "int8")
        return
    model = build(
        """m (float[N,16] x) => (float[N,16] y) {
            a = MatMul(x, w) b = MatMul(a, w) c = Add(b, d) r = Relu(c) g = Gemm(r, w, d) y = MatMul(g, w)
        }""",
        {"w": normal(16, 16, scale=0.3), "d": normal(16)},
    )
    assert qtool.quantize(model, {"x": normal(4, 16, seed=1)}, config=config).quantized == 6


# ---------------------------------------------------------------------------------- C52 every flag changes something

CHANGES = [
    (["--method", "percentile:90"], {"method": "percentile:90"}),
    (["--method", "mse"], {"method": "mse"}),
    (["--method", "entropy"], {"method": "entropy"}),
    (["--format", "qdq"], {"format": "qdq"}),
    (["--activations", "int8"], {"activations": "int8"}),
    (["--weights", "uint8"], {"weights": "uint8"}),
    (["--per-tensor"], {"per_channel": False}),
    (["--symmetric"], {"symmetric_activations": True}),
    (["--include", "fc1"], {"include": ["fc1"]}),
    (["--exclude", "fc1"], {"exclude": ["fc1"]}),
]


@pytest.mark.parametrize(("args", "setting"), CHANGES)
def test_c52_an_option_changes_the_model_and_is_recorded(work, command, args, setting):
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "plain.onnx").code == 0
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "--json", "-", *args)
    assert ended.code == 0, ended.err
    assert made("q.onnx") != made("plain.onnx")
    recorded = json.loads(metadata(Path("q.onnx"))["qtool.config"])
    assert recorded == QuantConfig(**setting).to_dict()
    assert json.loads(ended.out)["config"] == recorded


def test_c52_dedicated_pairs(work, command):
    for name, args in (("shared.onnx", []), ("own.onnx", ["--dedicated-qdq"])):
        assert command("quantize", "m.onnx", "--calib", "c.npz", "--format", "qdq", "-o", name, *args).code == 0
    counts = []
    for name in ("shared.onnx", "own.onnx"):
        graph = onnx.load(name).graph
        weights = {tensor.name for tensor in graph.initializer}
        counts.append(sum(n.op_type == "DequantizeLinear" and n.input[0] not in weights for n in graph.node))
    assert counts == [2, 3]  # x and a; the second reader of a has a pair of its own
    assert json.loads(metadata(Path("own.onnx"))["qtool.config"])["dedicated_qdq"] is True


@pytest.mark.parametrize(("positive", "negative"), [("--per-channel", "--per-tensor"), ("--asymmetric", "--symmetric")])
def test_c52_the_defaults_can_be_spelled_out(work, command, positive, negative):
    command("quantize", "m.onnx", "--calib", "c.npz", "-o", "plain.onnx")
    command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", positive)
    command("quantize", "m.onnx", "--calib", "c.npz", "-o", "n.onnx", negative, positive)
    assert made("q.onnx") == made("plain.onnx") == made("n.onnx")


def test_c52_calibration_data_changes_the_scales(work, command):
    for name, files in (("a", ["c.npz"]), ("b", ["other.npz"]), ("ab", ["c.npz", "other.npz"])):
        args = [word for file in files for word in ("--calib", file)]
        assert command("quantize", "m.onnx", *args, "-o", f"{name}.onnx").code == 0
    assert len({made(f"{name}.onnx") for name in ("a", "b")}) == 2
    # the range of both is that of the wider one
    assert made("ab.onnx") == made("b.onnx")
    assert metadata(Path("ab.onnx"))["qtool.calibration.samples"] == "1024"
    assert len(json.loads(metadata(Path("ab.onnx"))["qtool.calibration.sha256"])) == 2


def test_c25_random_calibration_is_spelled_out_and_recorded(work, command):
    ended = command("quantize", "m.onnx")
    assert ended.code == 2
    assert "--calib" in ended.err
    assert "--random-calib" in ended.err
    assert command("quantize", "m.onnx", "--random-calib", "5", "-o", "r.onnx").code == 0
    keys = metadata(Path("r.onnx"))
    assert keys["qtool.calibration.random"] == "true"
    assert keys["qtool.calibration.samples"] == "5"
    assert "qtool.calibration.sha256" not in keys
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx").code == 0
    assert "qtool.calibration.random" not in metadata(Path("q.onnx"))
    assert command("quantize", "m.onnx", "--random-calib", "5", "-o", "again.onnx").code == 0
    assert Path("r.onnx").read_bytes() == Path("again.onnx").read_bytes()


def test_c52_allow_empty(work, command):
    args = ["quantize", "m.onnx", "--calib", "c.npz", "--exclude", "*", "-o", "q.onnx"]
    assert command(*args).code == 1
    assert not Path("q.onnx").exists()
    assert command(*args, "--allow-empty").code == 0
    assert json.loads(metadata(Path("q.onnx"))["qtool.config"])["allow_empty"] is True


def test_c52_output_force_and_dry_run(work, command):
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx").out == "q.onnx\n"
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx").code == 2
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "--force").code == 0
    before = snapshot(work)
    ended = command("quantize", "m.onnx", "--dry-run")
    assert ended.code == 0
    assert "nothing was written" in ended.err
    assert snapshot(work) == before


def test_c52_threads_change_nothing(work, command):
    for threads in ("1", "2"):
        command("quantize", "m.onnx", "--calib", "c.npz", "-o", f"{threads}.onnx", "--threads", threads)
    assert Path("1.onnx").read_bytes() == Path("2.onnx").read_bytes()


def test_c52_absurdly_many_threads_are_not_started(work, command):
    command("quantize", "m.onnx", "--calib", "c.npz", "-o", "1.onnx", "--threads", "1")
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "-o", "many.onnx", "--threads", "100000")
    assert ended.code == 0, ended.err
    assert Path("1.onnx").read_bytes() == Path("many.onnx").read_bytes()


def test_c52_quiet_and_verbose(work, command):
    args = ["quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "--force", "--exclude", "*", "--allow-empty"]
    plain, quiet, verbose = command(*args), command(*args, "-q"), command(*args, "-v")
    assert quiet == (0, "q.onnx\n", "")
    assert plain.out == verbose.out == "q.onnx\n"
    assert "fc1 (MatMul)" in verbose.err


def test_c52_eval_options(work, command):
    command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx")
    base = ["eval", "m.onnx", "q.onnx", "--data", "c.npz"]

    def report(*args: str) -> dict:
        ended = command(*base, "--json", "-", *args)
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    plain = report()
    assert plain["latency"] is not None
    assert "top1" not in plain["outputs"][0]["values"]
    assert report("--no-latency")["latency"] is None
    labelled = report("--no-latency", "--labels", "labels")
    assert labelled["outputs"][0]["values"]["top1"] is not None
    assert list(report("--no-latency", "--metric", "cosine")["outputs"][0]["values"]) == ["cosine"]
    assert report("--no-latency", "--data", "other.npz")["samples"] == 1024
    assert command(*base, "--no-latency", "--fail-under", "sqnr=5").code == 0
    assert command(*base, "--no-latency", "--fail-under", "sqnr=500").code == 1
    assert command(*base, "--no-latency", "--fail-over", "max_abs=1e-9").code == 1


# ---------------------------------------------------------------------------------------------- settings from a file


def config_file(text: str) -> str:
    Path("c.toml").write_text(text)
    return "c.toml"


def test_a_file_gives_settings_and_options_win(work, command):
    file = config_file('[quantize]\nformat = "qdq"\nactivations = "int16"\nper-channel = false\nexclude = ["fc1"]\n')
    args = ["quantize", "m.onnx", "--calib", "c.npz", "--config", file]
    assert command(*args, "-o", "a.onnx").code == 0
    recorded = json.loads(metadata(Path("a.onnx"))["qtool.config"])
    assert recorded == QuantConfig(
        format="qdq", activations="int16", per_channel=False, exclude=("fc1",)
    ).to_dict()  # fmt: skip
    assert command(*args, "-o", "b.onnx", "--activations", "uint8", "--per-channel", "--exclude", "fc2").code == 0
    recorded = json.loads(metadata(Path("b.onnx"))["qtool.config"])
    assert recorded == QuantConfig(format="qdq", exclude=("fc2",)).to_dict()


def test_every_setting_can_come_from_a_file(work):
    values = {
        "format": '"qdq"', "activations": '"int8"', "weights": '"uint8"', "per_channel": "false",
        "symmetric_activations": "true", "method": '"mse"', "include": '["fc1"]', "exclude": '["fc2"]',
        "dedicated_qdq": "true", "allow_empty": "true", "tensor_methods": '{"*" = "minmax", x = "mse"}',
        "overrides": '[{nodes = ["fc1"], float = true}]',
    }  # fmt: skip
    weights_only = {"weight_only": "true", "weights": '"uint8"', "block": "16"}
    modes = [
        values,
        {"dynamic": "true", "weights": '"uint8"', "target": '"ort-arm"'},
        weights_only | {"matmul_nbits": "true"},
        weights_only | {"weights": '"float4e2m1"', "scale_type": '"float8e8m0"', "prepare": "false"},
    ]
    assert {name for mode in modes for name in mode} == {field.name for field in fields(QuantConfig)}
    default = QuantConfig()
    for mode in modes:
        read = QuantConfig.from_toml(config_file("".join(f"{key} = {value}\n" for key, value in mode.items())))
        assert all(getattr(read, name) != getattr(default, name) for name in mode)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("formt = 'qdq'", "Unknown option 'formt'; expected one of activations,"),
        ("[quantise]\nformat = 'qdq'", "Unknown option 'quantise'"),
        ("[quantize]\nthreads = 3", "Unknown option 'threads'"),
        ("[quantize]\nformat = 'x'", "Option 'format' is 'x'; expected one of qlinear, qdq."),
        ("[quantize]\nformat = ['qdq']", "Option 'format' is ['qdq']"),
        ("[quantize]\nper_channel = 3", "Option 'per_channel' is 3; expected true or false."),
        ("[quantize]\nmethod = 3", "Option 'method' is 3; expected the name of a range method."),
        ("[quantize]\nexclude = 'op:Conv'", "Option 'exclude' is 'op:Conv'; expected a list of patterns."),
        ("[quantize]\nexclude = 3", "Option 'exclude' is 3; expected a list of patterns."),
        ("[quantize]\nexclude = [1]", "Option 'exclude' holds 1; expected non-empty patterns."),
        ("[quantize]\nexclude = ['']", "Option 'exclude' holds ''; expected non-empty patterns."),
        ("[quantize]\nper_channel = true\nper-channel = false", "gives 'per_channel' twice"),
        ("format = 'qdq'\n[quantize]\nmethod = 'mse'", "format outside the table [quantize]"),
        ("quantize = 3", "'quantize' is int; expected a table."),
        ("a = [", "is not TOML"),
        ("\xff", "is not TOML"),
    ],
)
def test_mistakes_in_a_file(work, command, text, said):
    Path("c.toml").write_bytes(text.encode("latin-1"))
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "--config", "c.toml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: Config file 'c.toml'")
    assert said in ended.err
    assert not Path("m.int8.onnx").exists()


def test_a_file_may_begin_with_a_byte_order_mark(work):
    Path("c.toml").write_text("[quantize]\nformat = 'qdq'\n", encoding="utf-8-sig")
    assert QuantConfig.from_toml("c.toml").format == "qdq"


def test_tables_of_others_are_left_alone(work):
    assert QuantConfig.from_toml(config_file("[quantize]\nformat = 'qdq'\n[other]\nx = 1\n")).format == "qdq"


@pytest.mark.parametrize("name", ["gone.toml", ".", "m.onnx"])
def test_files_that_are_no_settings(work, command, name):
    ended = command("inspect", "m.onnx", "--config", name)
    assert (ended.code, ended.out) == (2, "")
    assert name in ended.err.splitlines()[0]


def test_a_method_is_judged_wherever_settings_are_read(work, command):
    ended = command("inspect", "m.onnx", "--config", config_file("method = 'banana'"))
    assert ended.code == 2
    assert "Unknown range method 'banana'" in ended.err


@pytest.mark.parametrize("value", ["op:MatMul", b"fc1", 3, [1], [""]])
def test_patterns_from_python(value):
    with pytest.raises(ConfigError, match="patterns"):
        QuantConfig(exclude=value)
    with pytest.raises(ConfigError, match="patterns"):
        qtool.quantize(mlp(), samples(), include=value)


# ---------------------------------------------------------------------------------------------- where the words go


@pytest.mark.parametrize("name", ["m.onnx", "./m.onnx", "c.npz", "m.int8.onnx", "link"])
def test_json_never_replaces_what_the_command_needs(work, command, name):
    Path("link").symlink_to("m.onnx")
    before = snapshot(work)
    ended = command("quantize", "m.onnx", "--calib", "c.npz", "--json", name)
    assert (ended.code, ended.out) == (2, "")
    assert "is a file that the command needs itself" in ended.err
    assert snapshot(work) == before


def test_json_of_the_other_commands_neither(work, command):
    Path("c.toml").write_text("format = 'qdq'\n")
    before = snapshot(work)
    assert command("inspect", "m.onnx", "--json", "m.onnx").code == 2
    assert command("inspect", "m.onnx", "--config", "c.toml", "--json", "c.toml").code == 2
    for name in ("m.onnx", "c.npz"):
        assert command("eval", "m.onnx", "m.onnx", "--data", "c.npz", "--json", name).code == 2
    assert command("quantize", "m.onnx", "--calib", "c.npz", "-o", "q.json.onnx", "--json", "q.json.onnx").code == 2
    assert snapshot(work) == before


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(work, closed):
    line = f'"{sys.executable}" -m qtool quantize m.onnx --calib c.npz {closed}'
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    onnx.checker.check_model("m.int8.onnx", full_check=True)


def test_streams_without_a_file_are_fine(work, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "-q"]) == 0
    assert stream.getvalue() == "m.int8.onnx\n"
