"""Run the commands of the jobs in docs/ci.md that call qtool, as they stand there, in the current folder.

    python scripts/run_recipe.py

`qtool` must be on the PATH, and examples/ in the current folder. CI runs it with the wheel that it built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

RECIPE = Path(__file__).resolve().parent.parent / "docs" / "ci.md"
FILES = ("report.html", "report.md", "report.xml", "report.json", "model.int8.onnx")


def documents(text: str) -> list[Any]:
    """Every block of YAML of a markdown text, parsed."""
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def jobs(text: str) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Name, variables and commands with qtool of each whole job."""
    for document in documents(text):
        for name, job in document.get("jobs", {}).items():  # GitHub
            yield f"GitHub {name}", job["env"], [step["run"] for step in job["steps"] if "run" in step]
        for name, job in document.items():  # GitLab
            if isinstance(job, dict) and "script" in job:
                yield f"GitLab {name}", job["variables"], job["script"]


def main() -> int:
    """Run every job; 1 if a command fails or a file is missing."""
    count = 0
    for name, variables, commands in jobs(RECIPE.read_text(encoding="utf-8")):
        for file in FILES:
            Path(file).unlink(missing_ok=True)
        for command in commands:
            if not command.startswith("qtool "):
                continue
            print(f"{name}: {command}", flush=True)
            call = ["bash", "-euo", "pipefail", "-c", command]
            if subprocess.run(call, check=False, env=os.environ | variables).returncode:
                return 1
        missing = [file for file in FILES if not Path(file).is_file()]
        if missing:
            print(f"{name}: missing: {', '.join(missing)}", file=sys.stderr)
            return 1
        count += 1
    return 0 if count == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
