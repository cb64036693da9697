"""Real models of the zoo, calibrated once in a run of the tests, whichever of its processes needs them first."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path

import pytest

import qtool
from qtool.api import QuantizeResult


class RealModels:
    """What several tests need of the models in the zoo.

    Statistics are one file for all processes of the run. Each process quantizes from it anew: the plan does not stand
    in a file, and from statistics that is quick. One thread, as the suite runs one process per core.

    Args:
        zoo: The folder of models.
        shared: A folder that all processes of the run see.
        own: A folder of this process.
    """

    def __init__(self, zoo: Path, shared: Path, own: Path) -> None:
        self._zoo, self._shared, self._own = zoo, shared, own
        self.quantized = cache(self._quantized)

    def model(self, name: str) -> Path:
        """The float model."""
        return self._zoo / f"{name}.onnx"

    def calib(self, name: str) -> Path:
        """What it is calibrated on."""
        return self._zoo / f"{name}_calib.npz"

    def eval(self, name: str) -> Path:
        """What it is judged on."""
        return self._zoo / f"{name}_eval.npz"

    def statistics(self, name: str) -> Path:
        """A statistics file of all its samples, for every range method."""
        path = self._shared / f"{name}.stats.npz"
        with (self._shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                qtool.calibrate(self.model(name), self.calib(name), output=path, num_threads=1)
        return path

    def _quantized(self, name: str, form: str) -> QuantizeResult:
        """The model with the defaults, as a file that must not be changed."""
        output = self._own / f"{name}.{form}.onnx"
        return qtool.quantize(self.model(name), stats=self.statistics(name), output=output, format=form, num_threads=1)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this run; those of xdist have a base folder each, in one."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder
