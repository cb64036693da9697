"""``qtool quantize``: what reaches the api, what stdout and stderr get, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.errors import ConfigError, DataError, ModelError, NothingToQuantizeError
from tests.cli.fakes import result, strict_json

NEXT = "qtool eval 'my model.onnx' m.int8.onnx --data EVAL.npz"
NOT_GIVEN = {
    "stats": None,
    "output": None,
    "format": None,
    "activations": None,
    "weights": None,
    "per_channel": None,
    "symmetric_activations": None,
    "method": None,
    "tensor_methods": None,
    "include": None,
    "exclude": None,
    "dedicated_qdq": None,
    "dynamic": None,
    "allow_empty": None,
    "weight_only": None,
    "block": None,
    "scale_type": None,
    "matmul_nbits": None,
    "overrides": None,
    "config": None,
    "target": None,
    "prepare": None,
    "random_calib": None,
    "samples": None,
    "shuffle": None,
    "batch": None,
    "on_nan": "raise",
    "max_memory": None,
    "force": False,
    "dry_run": False,
    "num_threads": None,
    "progress": None,
}


def test_what_is_not_given_is_none(api, qtool_command):
    fake = api()
    qtool_command("quantize", "m.onnx")
    assert fake.calls == [("quantize", (Path("m.onnx"), None), NOT_GIVEN)]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-o", "q.onnx"], {"output": Path("q.onnx")}),
        (["--output", "q.onnx"], {"output": Path("q.onnx")}),
        (["--target", "qnn"], {"target": "qnn"}),
        (["--format", "qdq"], {"format": "qdq"}),
        (["--activations", "int8"], {"activations": "int8"}),
        (["--weights", "uint8"], {"weights": "uint8"}),
        (["--per-channel"], {"per_channel": True}),
        (["--per-tensor"], {"per_channel": False}),
        (["--symmetric"], {"symmetric_activations": True}),
        (["--asymmetric"], {"symmetric_activations": False}),
        (["--method", "percentile:99.9"], {"method": "percentile:99.9"}),
        (["--method", "mse", "--method", "/a=b/*=minmax"], {"method": "mse", "tensor_methods": {"/a=b/*": "minmax"}}),
        (
            ["--method", "b=mse", "--method", "a=mse", "--method", "b=auto"],
            {"tensor_methods": {"a": "mse", "b": "auto"}},
        ),
        (["--include", "a", "--include", "op:Conv"], {"include": ["a", "op:Conv"]}),
        (["--exclude", "/head/*"], {"exclude": ["/head/*"]}),
        (
            ["--override", "a=weights:int4,per_channel:false", "--override", "op:Gemm=float"],
            {
                "overrides": [
                    {"nodes": ["a"], "weights": "int4", "per_channel": False},
                    {"nodes": ["op:Gemm"], "float": True},
                ]
            },
        ),
        (["--config", "c.toml"], {"config": Path("c.toml")}),
        (["--stats", "s.npz"], {"stats": Path("s.npz")}),
        (["--random-calib", "4"], {"random_calib": 4}),
        (["--samples", "100"], {"samples": 100}),
        (["--shuffle", "0"], {"shuffle": 0}),
        (["--batch", "8"], {"batch": 8}),
        (["--batch", "auto"], {"batch": None}),
        (["--on-nan", "skip"], {"on_nan": "skip"}),
        (["--max-memory", "2Gi"], {"max_memory": 1 << 31}),
        (["--dedicated-qdq"], {"dedicated_qdq": True}),
        (["--dynamic"], {"dynamic": True}),
        (["--allow-empty"], {"allow_empty": True}),
        (["--weight-only"], {"weight_only": True}),
        (["--block", "64"], {"block": 64}),
        (["--scale-type", "float8e8m0"], {"scale_type": "float8e8m0"}),
        (["--matmul-nbits"], {"matmul_nbits": True}),
        (["--force"], {"force": True}),
        (["--dry-run"], {"dry_run": True}),
        (["--threads", "2"], {"num_threads": 2}),
    ],
)
def test_every_option_reaches_the_api(api, qtool_command, args, expected):
    fake = api()
    assert qtool_command("quantize", "m.onnx", *args).code == 0
    ((_, _, passed),) = fake.calls
    assert passed == NOT_GIVEN | expected


def test_several_data_files(api, qtool_command):
    fake = api()
    qtool_command("quantize", "m.onnx", "--calib", "a.npz", "--calib", "b.npz")
    assert fake.calls[0][1] == (Path("m.onnx"), ["a.npz", "b.npz"])


def test_stdout_is_the_path_and_stderr_the_summary(api, qtool_command):
    api()
    ended = qtool_command("quantize", "my model.onnx")
    assert ended.code == 0
    assert ended.out == "m.int8.onnx\n"
    assert ended.err.splitlines() == [
        "2 of 8 nodes quantized",
        "",
        "operator  quantized  of",
        "Conv              1   2",
        "Relu              1   1",
        "",
        "Left in float: 6 nodes",
        "     1  its weight is not constant: odd (Conv)",
        "     5  computes no floats: shape0 (Shape), shape1 (Shape), shape2 (Shape) and 2 more",
        "        (-v lists all)",
        "",
        "Size      26.5 kB -> 9.1 kB (2.91x smaller)",
        "SQNR      38.2 dB at output y, on 4 calibration samples",
        "Time      1.50 s (prepare 0.50, calibrate 1.00)",
        "Memory    180.0 MB at the peak",
        "note: extra key 'labels' ignored",
        f"hint: Measure it on samples that it was not calibrated on: {NEXT}",
    ]


def test_verbose_lists_every_skip(api, qtool_command):
    api()
    ended = qtool_command("quantize", "m.onnx", "-v")
    assert "shape4 (Shape)" in ended.err
    assert "more" not in ended.err


def test_quiet_leaves_the_path_only(api, qtool_command):
    api()
    assert qtool_command("quantize", "m.onnx", "-q") == (0, "m.int8.onnx\n", "")


def test_json_on_stdout_is_all_of_stdout(api, qtool_command):
    api()
    ended = qtool_command("quantize", "m.onnx", "--json", "-")
    assert strict_json(ended.out) == result().to_dict()
    assert "2 of 8 nodes quantized" in ended.err


def test_json_in_a_file(api, qtool_command, tmp_path):
    api()
    target = tmp_path / "r.json"
    ended = qtool_command("quantize", "m.onnx", "--json", str(target))
    assert ended.out == "m.int8.onnx\n"
    assert strict_json(target.read_text()) == result().to_dict()


def test_json_never_holds_nan(api, qtool_command):
    api(quantize=result(seconds={"prepare": float("nan")}))
    ended = qtool_command("quantize", "m.onnx", "--json", "-")
    assert (ended.code, ended.out) == (70, "")


@pytest.mark.parametrize(("name", "said"), [("gone/r.json", "there is no folder"), (".", "is a folder")])
def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(api, qtool_command, tmp_path, name, said):
    fake = api()
    ended = qtool_command("quantize", "m.onnx", "--json", str(tmp_path / name))
    assert ended.code == 2
    assert said in ended.errors[0]
    assert fake.calls == []


def test_dry_run_shows_the_plan(api, qtool_command):
    api(quantize=result(model_path=None))
    ended = qtool_command("quantize", "m.onnx", "--dry-run")
    assert ended.code == 0
    assert ended.out.splitlines()[:2] == [
        "node    operator  becomes   remark",
        "conv1   Conv      operator  with relu1; a scale was repaired",
    ]
    assert "odd     Conv      float     its weight is not constant" in ended.out
    assert "2 of 8 nodes would be quantized; nothing was written." in ended.err


def test_dry_run_as_json(api, qtool_command):
    api(quantize=result(model_path=None))
    ended = qtool_command("quantize", "m.onnx", "--dry-run", "--json", "-")
    assert strict_json(ended.out)["quantized"] == 2


@pytest.mark.parametrize("error", [ConfigError, ModelError, DataError])
def test_a_users_mistake_is_one_line_and_a_hint(api, qtool_command, error):
    api(quantize=error("Model 'm.onnx' does not exist.", hint="Check the path."))
    ended = qtool_command("quantize", "m.onnx")
    assert ended == (2, "", "error: Model 'm.onnx' does not exist.\nhint: Check the path.\n")


def test_a_message_of_several_lines_becomes_one(api, qtool_command):
    api(quantize=ModelError("first\n  second"))
    assert qtool_command("quantize", "m.onnx").err == "error: first second\n"


def test_nothing_to_quantize(api, qtool_command):
    api(quantize=NothingToQuantizeError("0 of 7 nodes were quantized: nothing to do."))
    ended = qtool_command("quantize", "m.onnx", "-q")
    assert ended == (1, "", "error: 0 of 7 nodes were quantized: nothing to do.\n")


def test_the_results_exit_code_counts(api, qtool_command):
    api(quantize=result(exit_code=1))
    assert qtool_command("quantize", "m.onnx").code == 1
