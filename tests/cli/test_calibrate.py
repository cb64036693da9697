"""``qtool calibrate``: what reaches the api, what stdout and stderr get."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.errors import DataError
from tests.cli.fakes import statistics, strict_json

GIVEN = {
    "output": Path("m.stats.npz"),
    "config": None,
    "samples": None,
    "shuffle": None,
    "batch": None,
    "checkpoint": None,
    "force": False,
    "num_threads": None,
    "progress": None,
}


def writing(*args, output, **options):
    """A calibration that leaves a file, as the real one does."""
    Path(output).write_bytes(b"x" * 2500)
    return statistics()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {}),
        (["-o", "s.npz"], {"output": Path("s.npz")}),
        (["--samples", "9", "--shuffle", "4", "--batch", "2"], {"samples": 9, "shuffle": 4, "batch": 2}),
        (["--output", "s.npz"], {"output": Path("s.npz")}),
        (["--config", "c.toml"], {"config": Path("c.toml")}),
        (["--force"], {"force": True}),
        (["--threads", "2"], {"num_threads": 2}),
        (["--checkpoint", "64"], {"checkpoint": 64}),
    ],
)
def test_every_option_reaches_the_api(api, qtool_command, args, expected):
    fake = api(calibrate=writing)
    assert qtool_command("calibrate", "m.onnx", "--data", "a.npz", "--data", "b.npz", *args).code == 0
    assert fake.calls == [("calibrate", (Path("m.onnx"), ["a.npz", "b.npz"]), GIVEN | expected)]


def test_stdout_is_the_path_and_stderr_the_summary(api, qtool_command):
    api(calibrate=writing)
    ended = qtool_command("calibrate", "m.onnx", "--data", "a.npz", "-o", "my stats.npz")
    assert ended.out == "my stats.npz\n"
    assert ended.err.splitlines() == [
        "2 tensors observed on 1 sample",
        "2.5 kB of statistics",
        "note: extra key 'labels' ignored",
        "hint: Quantize from them: qtool quantize m.onnx --stats 'my stats.npz'",
    ]


def test_verbose_lists_the_tensors(api, qtool_command):
    api(calibrate=writing)
    ended = qtool_command("calibrate", "m.onnx", "--data", "a.npz", "-v")
    assert ended.err.splitlines()[1:6] == [
        "",
        "tensor  values  minimum  maximum",
        "x            4  -1.5     2",
        "h            2  none     none",
        "2.5 kB of statistics",
    ]


def test_quiet_leaves_the_path_only(api, qtool_command):
    api(calibrate=writing)
    assert qtool_command("calibrate", "m.onnx", "--data", "a.npz", "-q") == (0, "m.stats.npz\n", "")


def test_json(api, qtool_command):
    api(calibrate=writing)
    document = strict_json(qtool_command("calibrate", "m.onnx", "--data", "a.npz", "--json", "-").out)
    assert document == {
        "schema_version": 1,
        "statistics": "m.stats.npz",
        "samples": 1,
        "tensors": {
            "x": {
                "count": 4, "nan": 0, "pos_inf": 0, "neg_inf": 0, "zeros": 1, "minimum": -1.5, "maximum": 2.0,
                "mean_minimum": -1.5, "mean_maximum": 2.0, "sample_ranges": 1,
            },
            "h": {
                "count": 2, "nan": 0, "pos_inf": 2, "neg_inf": 0, "zeros": 0, "minimum": None, "maximum": None,
                "mean_minimum": None, "mean_maximum": None, "sample_ranges": 0,
            },
        },
        "notes": ["extra key 'labels' ignored"],
    }  # fmt: skip


def test_no_data_is_a_usage_error(api, qtool_command):
    fake = api(calibrate=writing)
    ended = qtool_command("calibrate", "m.onnx")
    assert (ended.code, ended.out, fake.calls) == (2, "", [])
    assert ended.errors == ["error: No data to calibrate on; expected at least one --data DATA."]


def test_an_error_of_the_api_is_one_line(api, qtool_command):
    api(calibrate=DataError("Sample data 'a.npz' is empty.", hint="Give samples."))
    ended = qtool_command("calibrate", "m.onnx", "--data", "a.npz")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == ["error: Sample data 'a.npz' is empty.", "hint: Give samples."]


def test_an_interrupt_says_that_the_checkpoint_is_kept(api, qtool_command):
    def interrupted(*args, output, **options):
        Path(f"{output}.partial").write_bytes(b"x")
        raise KeyboardInterrupt

    api(calibrate=interrupted)
    ended = qtool_command("calibrate", "m.onnx", "--data", "a.npz", "--checkpoint", "5")
    assert (ended.code, ended.out) == (130, "")
    assert "note: 'm.stats.npz.partial' is kept: the same command goes on from there." in ended.err.splitlines()
    assert "kept" not in qtool_command("calibrate", "m.onnx", "--data", "a.npz").err
