"""``qtool info``: versions, instruction sets and threads, for bug reports."""

from __future__ import annotations

from typing import Any

from qtool.cli import _options as opt
from qtool.cli._output import STDOUT, Output, check_json_target

EXAMPLES = opt.examples("qtool info", "qtool info --json -")
_LARGE = 1 << 40  # work for which every thread is worth it
PACKAGES = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "onnxruntime", "typer", "rich")


def info(
    json_target: opt.JsonTarget = None,
    quiet: opt.Quiet = False,
    color: opt.Color = None,
) -> None:
    """Show versions, instruction sets and threads."""
    out = Output(quiet=quiet, color=color)
    check_json_target(json_target)
    facts = collect()
    if json_target is not None:
        out.json(facts, json_target)
    if json_target != STDOUT:
        rows = [["qtool", facts["qtool"]], ["python", facts["python"]], ["platform", facts["platform"]]]
        rows += [[name, installed or "not installed"] for name, installed in facts["packages"].items()]
        rows += [["threads", str(facts["threads"])]]
        shown = {key: value for key, value in facts["kernels"].items() if key != "families"}
        rows += [[f"kernels: {key}", _text(value)] for key, value in shown.items()]
        rows += [
            [f"kernels: {choice['family']}", f"{choice['kernel']}: {choice['reason']}"]
            for choice in facts["kernels"]["families"]
        ]
        out.table(["what", "value"], rows)


def collect() -> dict[str, Any]:
    """Everything that ``qtool info`` shows, ready for JSON."""
    import platform

    import qtool
    from qtool.kernels import effective_num_threads, isa_info

    return {
        "qtool": qtool.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "threads": effective_num_threads(None, _LARGE),
        "kernels": isa_info().to_dict(),
    }


def _installed(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)
