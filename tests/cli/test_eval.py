"""``qtool eval``: table and JSON as data, gates as exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fakes import report, strict_json

DATA = ("--data", "e.npz")
CHOICE = ("--samples", "3", "--shuffle", "1", "--batch", "2")


def test_what_reaches_the_api(api, qtool_command):
    fake = api()
    args = ["--data", "a.npz", "--data", "b.npz", "--labels", "labels", "--no-latency", "--threads", "2"]
    assert qtool_command("eval", "m.onnx", "q.onnx", *args, *CHOICE, "--metric", "sqnr").code == 0
    ((_, positional, passed),) = fake.calls
    assert positional == (Path("m.onnx"), Path("q.onnx"), ["a.npz", "b.npz"])
    expected = {
        "engine": "ort",
        "labels": "labels",
        "metrics": ["sqnr"],
        "outputs": None,
        "ctc_blank": None,
        "word_separator": None,
        "latency": False,
        "details": False,
        "samples": 3,
        "shuffle": 1,
        "batch": 2,
        "num_threads": 2,
        "layers": False,
        "layer_samples": None,
        "sensitivity": False,
        "checks": "quick",
        "progress": None,
    }
    assert passed == expected


def test_a_gate_adds_its_metric(api, qtool_command):
    fake = api()
    qtool_command("eval", "m", "q", *DATA, "--metric", "sqnr", "--fail-over", "max_abs=1", "--fail-under", "sqnr=1")
    assert fake.calls[0][2]["metrics"] == ["sqnr", "max_abs"]
    qtool_command("eval", "m", "q", *DATA, "--fail-over", "max_abs=1")
    assert fake.calls[1][2]["metrics"] is None


def test_the_table_is_data_and_notes_are_talk(api, qtool_command):
    api()
    ended = qtool_command("eval", "m", "q", *DATA)
    assert ended.code == 0
    assert "31.50" in ended.out
    assert "2.91×" in ended.out
    assert ended.err == "note: extra key 'labels' ignored\n"


def test_quiet_keeps_the_table(api, qtool_command):
    api()
    ended = qtool_command("eval", "m", "q", *DATA, "-q")
    assert "31.50" in ended.out
    assert ended.err == ""


def test_json(api, qtool_command, tmp_path):
    api()
    assert strict_json(qtool_command("eval", "m", "q", *DATA, "--json", "-").out)["samples"] == 10
    ended = qtool_command("eval", "m", "q", *DATA, "--json", str(tmp_path / "r.json"))
    assert "31.50" in ended.out
    assert strict_json((tmp_path / "r.json").read_text())["samples"] == 10


def test_a_gate_that_holds(api, qtool_command):
    api()
    assert qtool_command("eval", "m", "q", *DATA, "--fail-under", "sqnr=30", "--fail-over", "max_abs=0.25").code == 0


def test_failed_gates_have_a_line_each(api, qtool_command):
    api()
    args = ["--fail-under", "sqnr=40", "--fail-over", "max_abs=0.1"]
    ended = qtool_command("eval", "m", "q", *DATA, *args, "-q")
    assert ended.code == 1
    assert [line.partition(" ")[0] for line in ended.errors] == ["error:", "error:"]
    assert "sqnr" in ended.errors[0]
    assert "max_abs" in ended.errors[1]
    assert "31.50" in ended.out  # the report is there all the same


def test_what_always_fails_needs_no_gate(api, qtool_command):
    api(evaluate=report(failures=("Output 'y' holds 3 NaN.",)))
    ended = qtool_command("eval", "m", "q", *DATA)
    assert ended.code == 1
    assert ended.errors == ["error: Output 'y' holds 3 NaN."]


@pytest.mark.parametrize(
    "args",
    [
        [],
        [*DATA, "--fail-under", "sqnr"],
        [*DATA, "--fail-under", "banana=1"],
        [*DATA, "--fail-under", "top1=0.9"],
        [*DATA, "--no-latency", "--fail-under", "latency_ratio=1"],
        [*DATA, "--engine", "spec", "--fail-under", "latency_ratio=1"],
    ],
)
def test_mistakes_are_found_before_the_work(api, qtool_command, args):
    fake = api()
    ended = qtool_command("eval", "m", "q", *args)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert fake.calls == []


def test_every_form_goes_to_its_file(api, qtool_command, tmp_path):
    fake = api()
    files = {form: str(tmp_path / form) for form in ("json", "markdown", "junit", "html")}
    ended = qtool_command(
        "eval", "m", "q", *DATA, *(arg for form, name in files.items() for arg in (f"--{form}", name))
    )
    assert ended.code == 0
    assert "31.50" in ended.out
    assert fake.calls[0][2]["details"] is True
    starts = {form: (tmp_path / form).read_text()[:9] for form in files}
    assert starts == {"json": '{\n  "sche', "markdown": "## ✅ qtoo", "junit": "<?xml ver", "html": "<!DOCTYPE"}


@pytest.mark.parametrize("form", ["json", "markdown", "junit", "html"])
def test_a_form_on_stdout_is_all_there_is(api, qtool_command, form):
    api()
    ended = qtool_command("eval", "m", "q", *DATA, f"--{form}", "-", "-q")
    assert ended.code == 0
    assert ended.err == ""
    assert ended.out.strip()[0] in "{<#"
    assert ended.out.strip()[-1] in "}>"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--html", "q"], "HTML file 'q' is a file that the command needs itself"),
        (["--markdown", "e.npz"], "Markdown file 'e.npz' is a file that the command needs itself"),
        (["--junit", "-", "--html", "-"], "JUnit file and HTML file are both '-'"),
        (["--junit", "no/such/x.xml"], "JUnit file 'no/such/x.xml': there is no folder"),
    ],
)
def test_files_are_checked_before_the_work(api, qtool_command, args, message):
    fake = api()
    ended = qtool_command("eval", "m", "q", *DATA, *args)
    assert ended.code == 2
    assert message in ended.errors[0]
    assert fake.calls == []


def test_html_without_its_extra_is_one_line_before_the_work(api, qtool_command, monkeypatch):
    from qtool.evaluate.writers import html

    monkeypatch.setattr(html, "find_spec", lambda name: None if name == "jinja2" else name)
    fake = api()
    ended = qtool_command("eval", "m", "q", *DATA, "--html", "r.html")
    assert (ended.code, fake.calls) == (2, [])
    assert ended.err == "error: The HTML report needs jinja2, not installed here: pip install 'qtool[report]'.\n"


def test_settings_of_a_file(api, qtool_command, tmp_path):
    fake = api()
    config = tmp_path / "qtool.toml"
    config.write_text(
        "[quantize]\nformat = 'qdq'\n[eval]\nmetric = ['sqnr', 'kl']\noutput = ['y']\nlatency = false\n"
        "fail_under = {sqnr = 40}\nfail_over = {max_abs = 0.1}\n"
    )
    ended = qtool_command("eval", "m", "q", *DATA, "--config", str(config), "-q")
    assert ended.code == 1
    assert len(ended.errors) == 2
    passed = fake.calls[0][2]
    assert (passed["metrics"], passed["outputs"], passed["latency"]) == (["sqnr", "kl", "max_abs"], ["y"], False)
    ended = qtool_command(
        *("eval", "m", "q", *DATA, "--config", str(config), "--fail-under", "sqnr=30", "--fail-over", "max_abs=1"),
        *("--metric", "cosine", "--output", "z", "--latency"),
    )
    assert ended.code == 0
    passed = fake.calls[1][2]
    assert (passed["metrics"], passed["outputs"], passed["latency"]) == (["cosine", "sqnr", "max_abs"], ["z"], True)


def test_a_file_says_what_is_looked_at_and_options_win(api, qtool_command, tmp_path):
    fake = api()
    config = tmp_path / "qtool.toml"
    config.write_text(
        "[eval]\nchecks = ['fusion', 'saturation']\nlayers = true\nsensitivity = true\nlayer_samples = 8\n"
        "samples = 20\nshuffle = 1\nbatch = 4\nthreads = 1\n"
    )
    keys = ("checks", "layers", "sensitivity", "layer_samples", "samples", "shuffle", "batch", "num_threads")
    qtool_command("eval", "m", "q", *DATA, "--config", str(config))
    assert [fake.calls[0][2][key] for key in keys] == [("fusion", "saturation"), True, True, 8, 20, 1, 4, 1]
    qtool_command(
        *("eval", "m", "q", *DATA, "--config", str(config), "--checks", "none", "--no-layers", "--no-sensitivity"),
        *("--layer-samples", "2", "--samples", "5", "--shuffle", "0", "--batch", "auto", "--threads", "3"),
    )
    assert [fake.calls[1][2][key] for key in keys] == [("none",), False, False, 2, 5, 0, None, 3]
    qtool_command("eval", "m", "q", *DATA, "--config", str(config), "--no-layers", "--no-sensitivity")
    assert fake.calls.pop()[2]["layer_samples"] is None  # which would be a mistake without either
    config.write_text("[eval]\nchecks = ['fusion', 'saturate']\n")
    ended = qtool_command("eval", "m", "q", *DATA, "--config", str(config))
    assert ended.code == 2
    known = "quick, all, none or miscompile, fusion, ranges, saturation, memory"
    said = f"Option 'checks': There is no check 'saturate'; expected {known}."
    assert ended.errors == [f"error: Config file '{config}': {said}"]
    assert len(fake.calls) == 2


def test_gates_are_shown_and_saved(api, qtool_command, tmp_path):
    api()
    ended = qtool_command("eval", "m", "q", *DATA, "--fail-under", "sqnr=40", "--json", str(tmp_path / "r.json"))
    assert "--fail-under sqnr=40  FAILED   sqnr of output 'y' is 31.5 dB, below 40 dB." in ended.out
    document = strict_json((tmp_path / "r.json").read_text())
    assert document["passed"] is False
    assert [(gate["name"], gate["value"], gate["passed"]) for gate in document["gates"]] == [("sqnr", 31.5, False)]


def test_gates_on_what_labels_say_need_labels(api, qtool_command):
    fake = api()
    ended = qtool_command("eval", "m", "q", *DATA, "--fail-over", "drop=1pp")
    assert ended.code == 2
    assert "there are none" in ended.errors[0]
    assert fake.calls == []


@pytest.mark.parametrize(
    "args", [["--min-agreement", "0.99"], ["--config", "none.toml"], ["--fail-over", "drop=1"], ["--ctc-blank", "-1"]]
)
def test_mistakes_in_new_options(api, qtool_command, args):
    fake = api()
    ended = qtool_command("eval", "m", "q", *DATA, *args)
    assert ended.code == 2
    assert fake.calls == []
