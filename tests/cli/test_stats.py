"""``qtool stats``: what it shows, merges and compares, on real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qtool
from tests.cases.files_support import mlp, random, snapshot
from tests.cli.fakes import strict_json


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Statistics of a whole and of its two parts, in the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    for name, count in (("a", 12), ("b", 8)):
        np.savez(f"{name}.npz", x=random(count, 8, seed=count))
        qtool.calibrate("m.onnx", f"{name}.npz", output=f"{name}.stats.npz")
    qtool.calibrate("m.onnx", ["a.npz", "b.npz"], output="whole.stats.npz")
    return tmp_path


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_show_lists_the_tensors(work, qtool_command):
    ended = qtool_command("stats", "show", "whole.stats.npz")
    assert ended.code == 0
    head, *rows = cells(ended.out)
    assert head[:4] == ["tensor", "values", "minimum", "maximum"]
    saved = qtool.load_stats("whole.stats.npz")
    assert [row[0] for row in rows] == list(saved.statistics)
    x = saved.statistics["x"]
    assert rows[0][1:4] == ["160", f"{x.minimum:.6g}", f"{x.maximum:.6g}"]
    assert ended.err.splitlines() == [
        f"{len(rows)} of {len(rows)} tensors, 20 samples of 2 data files",
        f"model {saved.model.sha256}",
    ]


def test_show_of_some_tensors_as_json(work, qtool_command):
    ended = qtool_command("stats", "show", "a.stats.npz", "--tensor", "x*", "--json", "-")
    document = strict_json(ended.out)
    saved = qtool.load_stats("a.stats.npz")
    assert list(document["tensors"]) == ["x"]
    assert document["tensors"]["x"] == saved.statistics["x"].to_dict(histograms=False)
    assert document["sources"] == [saved.coverage[0].to_dict()]
    assert (document["schema_version"], document["samples"], document["model"]) == (1, 12, saved.model.sha256)


def test_show_of_methods(work, qtool_command):
    ended = qtool_command("stats", "show", "a.stats.npz", "--tensor", "x", "--method", "all", "--json", "t.json")
    rows = qtool.compare_methods("a.stats.npz", tensors="x")["x"]
    head, *shown = cells(ended.out)
    assert head[:4] == ["tensor", "method", "low", "high"]
    assert [row[:3] for row in shown] == [["x", row.name, f"{row.lo:.6g}"] for row in rows]
    assert sum(row.chosen for row in rows) == 1
    document = strict_json(Path("t.json").read_text())
    assert [row["method"] for row in document["methods"]["x"]] == [row.name for row in rows]
    assert [row["sqnr_db"] for row in document["methods"]["x"]] == [row.sqnr_db for row in rows]
    some = qtool_command("stats", "show", "a.stats.npz", "--tensor", "x", "--method", "percentile:90, minmax").out
    assert [row[1] for row in cells(some)[1:]] == ["percentile:90", "minmax"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gone.npz"], "Statistics file 'gone.npz' cannot be read"),
        (["a.npz"], "Statistics file 'a.npz' holds no statistics of qtool"),
        (["a.stats.npz", "--tensor", "xx*"], "has no tensor that matches 'xx*'"),
        (["a.stats.npz", "--method", "banana"], "Unknown range method 'banana'"),
        (["a.stats.npz", "--method", ""], "Unknown range method ''"),
        (["a.stats.npz", "--method", "all", "--activations", "int3"], "Activation type is 'int3'; expected one of"),
        (["a.stats.npz", "--json", "a.stats.npz"], "is a file that the command needs itself"),
    ],
)
def test_show_of_what_is_not_there(work, qtool_command, args, said):
    before = snapshot(work)
    ended = qtool_command("stats", "show", *args)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.errors[0]
    assert snapshot(work) == before


@pytest.mark.parametrize("order", [["a.stats.npz", "b.stats.npz"], ["b.stats.npz", "a.stats.npz"]])
def test_merged_parts_are_the_bytes_of_the_whole(work, qtool_command, order):
    ended = qtool_command("stats", "merge", *order, "-o", "sum.npz")
    assert (ended.code, ended.out) == (0, "sum.npz\n")
    assert ended.err.splitlines()[0].startswith("2 files merged: ")
    assert Path("sum.npz").read_bytes() == Path("whole.stats.npz").read_bytes()
    document = strict_json(qtool_command("stats", "merge", *order, "-o", "sum.npz", "--force", "--json", "-").out)
    assert (document["merged"], document["samples"], len(document["sources"])) == (order, 20, 2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a.stats.npz", "whole.stats.npz", "-o", "s.npz"], "share samples: samples 0 to 11 of the data file with"),
        (["a.stats.npz", "a.stats.npz", "-o", "s.npz"], "share samples"),
        (["a.stats.npz", "b.npz", "-o", "s.npz"], "'b.npz' holds no statistics"),
        (["a.stats.npz", "b.stats.npz", "-o", "whole.stats.npz"], "exists already"),
        (["a.stats.npz", "b.stats.npz", "-o", "a.stats.npz", "--force"], "is one of the files to merge"),
        (["a.stats.npz", "b.stats.npz", "-o", "gone/s.npz"], "does not exist"),
        (["a.stats.npz"], "Missing option '--output'"),
        (["-o", "s.npz"], "Missing argument"),
    ],
)
def test_what_is_not_merged(work, qtool_command, args, said):
    before = snapshot(work)
    ended = qtool_command("stats", "merge", *args)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.errors[0]
    assert snapshot(work) == before


def test_another_model_is_named(work, qtool_command):
    qtool.calibrate(mlp(opset=18), "b.npz", output="other.npz")
    ended = qtool_command("stats", "merge", "a.stats.npz", "other.npz", "-o", "s.npz")
    (said,) = ended.errors
    assert said.startswith(
        "error: Statistics file 'other.npz' belongs to another model than statistics file 'a.stats.npz'"
    )
    assert said.endswith(": opset 'ai.onnx' differs.")
    ended = qtool_command("stats", "diff", "b.stats.npz", "other.npz")
    assert (ended.code, ended.out) == (1, "")
    assert "the models differ: opset 'ai.onnx' differs" in ended.err


def test_diff_of_equal_statistics(work, qtool_command):
    assert qtool_command("stats", "diff", "a.stats.npz", "a.stats.npz") == (0, "", "the statistics are equal\n")
    np.savez("copy.npz", x=np.load("a.npz")["x"], more=np.zeros(12))
    qtool.calibrate("m.onnx", "copy.npz", output="copy.stats.npz")
    ended = qtool_command("stats", "diff", "a.stats.npz", "copy.stats.npz")
    assert (ended.code, ended.out) == (0, "")
    assert "note: They are of different samples, or of the same ones in other files." in ended.err


def test_diff_names_tensors_and_exits_with_1(work, qtool_command):
    ended = qtool_command("stats", "diff", "a.stats.npz", "b.stats.npz", "--json", "d.json")
    assert ended.code == 1
    assert cells(ended.out)[1][:2] == ["x", "range"]
    assert "samples: 12 and 8" in ended.err
    document = strict_json(Path("d.json").read_text())
    assert (document["equal"], document["model"], document["samples"]) == (False, None, [12, 8])
    assert {row["tensor"] for row in document["differences"]} == set(qtool.load_stats("a.stats.npz").statistics)


def test_the_group_without_a_command_is_its_help(qtool_command):
    ended = qtool_command("stats")
    assert ended.code == 0
    assert "merge" in ended.out
