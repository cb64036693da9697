"""``qtool bench kernels`` and its script."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from qtool import kernels
from qtool.bench import check, gate
from qtool.bench import run as runner
from tests.bench.fakes import result
from tests.cli.fakes import strict_json

ROOT = Path(__file__).resolve().parents[2]
ONE = ("bench", "kernels", "--only", "min_max/float32/1M", "--rounds", "1")


def test_the_smallest_case(qtool_command):
    ended = qtool_command(*ONE)
    assert ended.code == 0
    head, row = ended.out.splitlines()
    assert head.split() == ["kernel", "ms", "rate", "unit", "times", "as", "fast", "as"]
    assert row.startswith("min_max/float32/1M ")
    assert "GB/s  NumPy " in row
    assert "load average" in ended.err


def test_json(qtool_command, tmp_path):
    found = strict_json(qtool_command(*ONE, "--json", "-").out)
    assert [one["case"] for one in found["results"]] == ["min_max/float32/1M"]
    target = tmp_path / "out.json"
    assert qtool_command(*ONE, "-q", "--json", str(target)).err == ""
    assert set(strict_json(target.read_text())) == set(found)


def plant(monkeypatch, *results):
    """Measurements with these results, whatever is measured; returns the names that each of them was asked for."""
    asked = []

    def run(cases, **_):
        asked.append([case.name for case in cases])
        return [one for one in results if one.case.name in asked[-1]]

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(gate, "why_not_judged", lambda *_: None)
    return asked


def test_a_gate_that_fails_names_the_ratio(qtool_command, monkeypatch):
    planted = [result("histogram/float32/1M", NumPy=2.0), result("min_max/float32/1M", NumPy=1.5)]
    asked = plant(monkeypatch, *planted)
    ended = qtool_command("bench", "kernels", "--gate")
    assert ended.code == 1
    assert asked[1:] == [["histogram/float32/1M"] * 2]
    assert "2 more times, for a ratio of theirs is short of its floor" in ended.err
    assert "error: histogram/float32/1M: 2.00 times NumPy, floor 7, goal 9: too slow" in ended.err
    assert "note: min_max/float32/1M: 1.50 times NumPy, floor 1.4, goal 1.7: goal missed" in ended.err
    assert "2 ratios: 0 at the goal, 1 between floor and goal, 1 short of the floor" in ended.err
    asked = plant(monkeypatch, *planted[1:])
    assert qtool_command("bench", "kernels", "--gate").code == 0
    assert len(asked) == 1


@pytest.mark.parametrize(("more", "code"), [((10.0, 10.0), 0), ((10.0, 2.0), 1)])
def test_a_gate_is_not_failed_by_one_measurement_of_three(qtool_command, monkeypatch, more, code):
    times = iter((2.0, *more))
    monkeypatch.setattr(
        runner, "run", lambda cases, **_: [result(c.name, NumPy=next(times)) for c in cases if "histogram" in c.name]
    )
    monkeypatch.setattr(gate, "why_not_judged", lambda *_: None)
    monkeypatch.setattr(gate, "needed", lambda cases: [c for c in cases if c.name == "histogram/float32/1M"])
    ended = qtool_command("bench", "kernels", "--gate", "--json", "-")
    assert ended.code == code
    (measured,) = strict_json(ended.out)["results"]
    assert measured["engines"]["NumPy"]["samples_s"] == [2.0, *more]
    assert measured["ratios"]["NumPy"] == (10.0 if code == 0 else 2.0)


def test_a_gate_on_another_processor_judges_nothing(qtool_command, monkeypatch):
    info = dataclasses.replace(kernels.isa_info(), supported=("scalar",))
    monkeypatch.setattr(kernels, "isa_info", lambda: info)
    monkeypatch.setattr(runner, "run", lambda *_, **__: [result("histogram/float32/1M", NumPy=2.0)])
    ended = qtool_command("bench", "kernels", "--gate")
    assert ended.code == 0
    assert "note: not judged: the floors are for amx_int8, which this processor lacks" in ended.err


def test_check_prints_counts(qtool_command):
    ended = qtool_command("bench", "kernels", "--check", "--comparisons", "20")
    assert ended.code == 0
    rows = [line.rsplit(maxsplit=2) for line in ended.out.splitlines()[1:]]
    assert [row[0].strip() for row in rows] == list(check.DRAWS)
    assert all(int(count) >= 20 and wrong == "0" for _, count, wrong in rows)


def test_check_fails_if_one_is_wrong(qtool_command, monkeypatch):
    monkeypatch.setattr(check, "check", lambda kernel, comparisons: check.Outcome(kernel, comparisons, 1, "seed 3"))
    ended = qtool_command("bench", "kernels", "--check", "--json", "-")
    assert ended.code == 1
    assert strict_json(ended.out)["checks"][0]["first"] == "seed 3"
    assert ended.errors[-1] == "error: some results are not those of the reference"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--only", "nothing"], "error: No benchmark has a name that matches 'nothing'"),
        (["--fast"], "error: No such option: --fast."),
        (["--rounds", "0"], "error: Invalid value for '--rounds'"),
        (["--check", "--gate"], "error: --check measures nothing; expected neither --gate nor --only with it."),
        (["--json", "no/such/folder.json"], "error: JSON file 'no/such/folder.json': there is no folder"),
    ],
)
def test_mistakes(qtool_command, args, line):
    ended = qtool_command("bench", "kernels", *args)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(line)


def test_bench_alone_prints_its_help(qtool_command):
    ended = qtool_command("bench")
    assert (ended.code, ended.err) == (0, "")
    assert "Usage: qtool bench" in ended.out


def test_the_script_is_the_command():
    script = [sys.executable, str(ROOT / "scripts" / "bench_kernels.py"), *ONE[2:], "--json", "-"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert strict_json(done.stdout)["results"][0]["case"] == "min_max/float32/1M"
