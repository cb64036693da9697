"""``qtool compare``: what reaches the API, where the table goes, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.evaluate.candidates import compare_reports
from qtool.evaluate.writers import html
from tests.cli.fakes import report, strict_json

ARGS = ("a.onnx", "b.onnx", "--reference", "m.onnx", "--data", "e.npz")


def comparison(**changes):
    return compare_reports([report(quantized_model="a.onnx", **changes), report(quantized_model="b.onnx", **changes)])


def test_what_reaches_the_api(api, qtool_command):
    fake = api(compare_models=comparison())
    choice = ("--samples", "3", "--shuffle", "1", "--batch", "2", "--threads", "2", "--no-latency", "--engine", "spec")
    ids = ("--output", "y", "--ctc-blank", "0", "--word-separator", "3")
    ended = qtool_command("compare", *ARGS, "--labels", "t", "--rank", "top1", "--metric", "sqnr", *ids, *choice)
    assert ended.code == 0
    ((_, positional, passed),) = fake.calls
    assert positional == (Path("m.onnx"), [Path("a.onnx"), Path("b.onnx")], ["e.npz"])
    assert passed == {
        "rank": "top1",
        "engine": "spec",
        "labels": "t",
        "metrics": ["sqnr"],
        "outputs": ["y"],
        "ctc_blank": 0,
        "word_separator": 3,
        "latency": False,
        "samples": 3,
        "shuffle": 1,
        "batch": 2,
        "num_threads": 2,
        "progress": None,
    }


def test_the_table_is_data_and_notes_are_said_once(api, qtool_command):
    api(compare_models=comparison())
    ended = qtool_command("compare", *ARGS)
    assert ended.out.splitlines()[3].split()[:2] == ["a.onnx", "31.50"]
    assert ended.err == "note: extra key 'labels' ignored\n"


def test_json_and_markdown(api, qtool_command, tmp_path):
    api(compare_models=comparison())
    ended = qtool_command("compare", *ARGS, "--json", "-", "--markdown", str(tmp_path / "c.md"))
    assert [c["pareto_best"] for c in strict_json(ended.out)["candidates"]] == [True, True]
    assert (tmp_path / "c.md").read_text().startswith("## qtool compare\n")
    assert qtool_command("compare", *ARGS, "--markdown", "-").out == (tmp_path / "c.md").read_text()


def test_html_and_junit(api, qtool_command, tmp_path):
    api(compare_models=comparison())
    files = {form: tmp_path / f"c.{form}" for form in ("html", "xml")}
    ended = qtool_command("compare", *ARGS, "--html", str(files["html"]), "--junit", str(files["xml"]))
    assert ended.code == 0
    assert ended.out.startswith("Candidates, ")
    text = files["html"].read_text()
    assert "2 of 2 are Pareto-best" in text
    assert text.startswith("<!DOCTYPE html>\n<html")
    assert qtool_command("compare", *ARGS, "--html", "-").out == text
    assert 'tests="2"' in files["xml"].read_text()


def test_html_needs_its_extra(api, qtool_command, monkeypatch):
    monkeypatch.setattr(html, "find_spec", lambda name: None if name == "jinja2" else name)
    fake = api(compare_models=comparison())
    ended = qtool_command("compare", *ARGS, "--html", "c.html")
    assert (ended.code, fake.calls) == (2, [])
    assert ended.err == "error: The HTML report needs jinja2, not installed here: pip install 'qtool[report]'.\n"


def test_none_that_is_usable_ends_with_1(api, qtool_command):
    api(compare_models=comparison(failures=("Output 'y' holds 3 NaN.",)))
    ended = qtool_command("compare", *ARGS, "-q")
    assert ended.code == 1
    assert ended.errors == ["error: a.onnx: Output 'y' holds 3 NaN.", "error: b.onnx: Output 'y' holds 3 NaN."]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.onnx", "--data", "e.npz"], "Missing option '--reference'"),
        (["a.onnx", "--reference", "m.onnx"], "No data to compare on"),
        ([*ARGS, "--json", "a.onnx"], "JSON file 'a.onnx' is a file that the command needs itself"),
        ([*ARGS, "--json", "x", "--markdown", "x"], "are both 'x'"),
        ([*ARGS, "--html", "b.onnx"], "HTML file 'b.onnx' is a file that the command needs itself"),
        ([*ARGS, "--html", "none/c.html"], "HTML file 'none/c.html': there is no folder 'none'"),
        ([*ARGS, "--junit", "x", "--html", "x"], "are both 'x'"),
        ([*ARGS, "--batch", "0"], "--batch is '0'"),
    ],
)
def test_mistakes_are_found_before_the_work(api, qtool_command, args, message):
    fake = api()
    ended = qtool_command("compare", *args)
    assert ended.code == 2
    assert message in ended.errors[0]
    assert fake.calls == []
