"""docs/ci.md and action.yml: YAML that parses, options that exist, and commands that end as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from qtool.cli.app import app
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from run_recipe import FILES, RECIPE, documents, jobs

ACTION = ROOT / "action.yml"
COMMANDS = {
    name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for name, command in typer.main.get_command(app).commands.items()
}


def used_options(text: str) -> list[tuple[str, str]]:
    """(command, option) of every call of qtool; lines that end in a backslash go on, folded ones too."""
    found = []
    joined = re.sub(r"\\\n\s*|\n\s+(?=--)", " ", text)
    for line in joined.splitlines():
        for command, rest in re.findall(r"qtool (\w+) ([^\n]*)", line):
            found += [(command, option) for option in re.findall(r"(?<!\S)(--?[a-z][\w-]*)", rest)]
    return found


@pytest.mark.parametrize("path", [RECIPE, ACTION], ids=lambda path: path.name)
def test_every_option_exists(path: Path):
    found = used_options(path.read_text(encoding="utf-8"))
    assert {command for command, _ in found} >= {"quantize", "eval"}
    assert {"--html", "--markdown", "--junit", "--json"} <= {option for _, option in found}
    assert [(command, option) for command, option in found if option not in COMMANDS[command]] == []


def test_the_check_sees_options_that_do_not_exist():
    assert used_options('- qtool eval "$M" \\\n    --zzz 1\n') == [("eval", "--zzz")]


def test_gates_of_the_action_are_options():
    text = ACTION.read_text(encoding="utf-8")
    assert set(re.findall(r"options\+=\((--[\w-]+)", text)) == {"--labels", "--fail-under", "--fail-over"}
    assert {"--labels", "--fail-under", "--fail-over"} <= COMMANDS["eval"]


def test_the_action_is_whole():
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all("shell" in step for step in steps if "run" in step)
    used = set(re.findall(r"inputs\.([\w-]+)", str(steps)))
    assert used == set(action["inputs"])
    for step in steps:  # what a caller passes reaches a shell by its environment, never as part of the script
        assert "${{" not in step.get("run", "")
        names = set(re.findall(r"\$\{?([A-Z_]+)", step.get("run", "")))
        assert names <= {*step.get("env", {}), "GITHUB_ACTION_PATH", "GITHUB_STEP_SUMMARY", "GITHUB_REPOSITORY"}


def test_the_documents_are_two_jobs_and_a_step():
    text = RECIPE.read_text(encoding="utf-8")
    assert [name for name, _, _ in jobs(text)] == ["GitHub quantize", "GitLab quantize"]
    step = documents(text)[1]["steps"][-1]
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"])
    both = [
        [" ".join(c.replace("\\\n", " ").split()) for c in commands if "qtool " in c] for _, _, commands in jobs(text)
    ]
    assert both[0] == both[1]


def run(command: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command of a job, by the tree that is tested."""
    (folder / "qtool").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qtool "$@"\n')
    (folder / "qtool").chmod(0o755)
    environment = (
        os.environ | variables | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    )
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_action_passes_and_fails_by_its_gates(tmp_path: Path, examples: Path):
    steps = {step["name"]: step for step in yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]}
    variables = {
        "MODEL": str(examples / "mnist_cnn.onnx"),
        "CALIB": str(examples / "mnist_calib.npz"),
        "DATA": str(examples / "mnist_eval.npz"),
        "OUTPUT": "out.onnx",
        "LABELS": "labels",
        "FAIL_UNDER": "sqnr=20\ntop1=0.9\n",
        "FAIL_OVER": "max_abs=1000",
        "REPORTS": "r e p",
    }
    made = run(steps["Quantize"]["run"], tmp_path, variables)
    assert made.returncode == 0, made.stderr
    good = run(steps["Evaluate"]["run"], tmp_path, variables)
    assert good.returncode == 0, good.stderr
    assert sorted(path.name for path in (tmp_path / "r e p").iterdir()) == sorted(FILES[:4])
    assert "3 gates hold" in (tmp_path / "r e p" / "report.md").read_text()
    bad = run(steps["Evaluate"]["run"], tmp_path, variables | {"FAIL_UNDER": "sqnr=99", "FAIL_OVER": "", "LABELS": ""})
    assert bad.returncode == 1
    assert "1 of 1 gates failed" in (tmp_path / "r e p" / "report.md").read_text()
