"""``qtool calibrate``: what reaches the api, what stdout and stderr get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qtool.cli._options import byte_count
from qtool.errors import ConfigError, DataError
from tests.cli.fakes import statistics, strict_json

GIVEN = {
    "output": Path("m.stats.npz"),
    "config": None,
    "target": None,
    "samples": None,
    "shuffle": None,
    "batch": None,
    "method": None,
    "prepare": None,
    "on_nan": "raise",
    "max_memory": None,
    "checkpoint": None,
    "force": False,
    "num_threads": None,
    "progress": None,
    "seconds": {"prepare": 0.25, "calibrate": 1.5},
}


def writing(*args, output, seconds, **options):
    """A calibration that leaves a file, as the real one does."""
    seconds |= GIVEN["seconds"]
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
        (["--method", "minmax"], {"method": "minmax"}),
        (["--force"], {"force": True}),
        (["--threads", "2"], {"num_threads": 2}),
        (["--checkpoint", "64"], {"checkpoint": 64}),
        (["--on-nan", "skip"], {"on_nan": "skip"}),
        (["--max-memory", "512M"], {"max_memory": 512_000_000}),
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
    said = ended.err.splitlines()
    assert re.fullmatch(r"Memory    \d+\.\d MB at the peak", said.pop(4))
    assert said == [
        "2 tensors observed on 1 sample",
        "",
        "Size      2.5 kB of statistics",
        "Time      1.75 s (prepare 0.25, calibrate 1.50)",
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
        "",
    ]


def test_quiet_leaves_the_path_only(api, qtool_command):
    api(calibrate=writing)
    assert qtool_command("calibrate", "m.onnx", "--data", "a.npz", "-q") == (0, "m.stats.npz\n", "")


def test_json(api, qtool_command):
    api(calibrate=writing)
    document = strict_json(qtool_command("calibrate", "m.onnx", "--data", "a.npz", "--json", "-").out)
    assert document.pop("peak_rss_bytes") > 10_000_000
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
        "seconds": {"prepare": 0.25, "calibrate": 1.5},
        "notes": ["extra key 'labels' ignored"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("512M", 512_000_000), ("1.5G", 1_500_000_000), ("2Gi", 1 << 31), ("64 MiB", 1 << 26), ("9kB", 9000)],
)
def test_sizes(text, count):
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "M", "1X", "inf", "1e9", "0.1", "\u0661M", "1i"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match=r"^Option --max-memory is '.*'; expected a size as 512M, 2G or 1\.5Gi\.$"):
        byte_count(text)


def test_an_unknown_rule_for_nan_is_refused(api, qtool_command):
    fake = api(calibrate=writing)
    ended = qtool_command("calibrate", "m.onnx", "--data", "a.npz", "--on-nan", "drop")
    assert (ended.code, fake.calls) == (2, [])
    assert ended.errors == ["error: Option --on-nan is 'drop'; expected stop or skip."]


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
    assert ended.err.splitlines() == [
        "error: interrupted, 'm.stats.npz.partial' is kept, and 'm.stats.npz' was not written",
        "hint: The same command goes on from there.",
    ]
    assert "kept" not in qtool_command("calibrate", "m.onnx", "--data", "a.npz").err
