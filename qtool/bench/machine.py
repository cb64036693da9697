"""Where a measurement was taken: processor, instruction sets, versions, and whether others were at work."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qtool.kernels import isa_info
from qtool.version import package_version

PACKAGES = ("numpy", "onnxruntime", "onnx", "torch")


def describe() -> dict[str, Any]:
    """Facts for a report, ready for JSON."""
    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "platform": platform.platform(),
        "qtool": package_version(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "kernels": isa_info().to_dict(),
        "load": load(),
    }


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def is_busy(facts: dict[str, Any]) -> bool:
    """Whether somebody else took so much of the machine that the figures mean little."""
    return facts["load"] is not None and facts["load"] > 0.5 * facts["cpus"]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
