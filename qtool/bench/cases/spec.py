"""The spec engine on an int8 model of the zoo, the folder of real models that QTOOL_ZOO names."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qtool.bench.cases.case import QTOOL, REFERENCE, Case, Engine, engine
from qtool.runtime.spec.session import SpecSession

MODEL = "efficientnet_lite0"
RUNS = "runs/s"
OPSET = 21  # onnx.reference has no DequantizeLinear below 19


def _zoo() -> Path:
    return Path(os.environ.get("QTOOL_ZOO", "zoo"))


def _missing() -> str | None:
    if "QTOOL_ZOO" not in os.environ:
        return f"needs {MODEL} of the zoo, and QTOOL_ZOO is not set"
    files = [f"{MODEL}{end}" for end in (".onnx", "_calib.npz", "_eval.npz")]
    absent = [name for name in files if not (_zoo() / name).is_file()]
    return f"needs {', '.join(absent)} in the folder QTOOL_ZOO" if absent else None


def _quantized() -> bytes:
    """The model with int8 operators, as the command line makes it: this layer is below the API."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        command = [sys.executable, "-m", "qtool", "quantize", str(_zoo() / f"{MODEL}.onnx")]
        options = ["--calib", str(_zoo() / f"{MODEL}_calib.npz"), "--format", "qlinear", "-o", str(path)]
        subprocess.run([*command, *options], check=True, capture_output=True)
        converted: bytes = onnx.version_converter.convert_version(onnx.load(path), OPSET).SerializeToString()
        return converted


def build(model: bytes, sample: Path, threads: int) -> list[Engine]:
    """Qtool and ``onnx.reference`` on one sample.

    Args:
        model: Serialized, with one input.
        sample: File with samples of that input, of which the first is taken.
        threads: Of qtool; the others have what NumPy gives them.
    """
    from onnx.reference import ReferenceEvaluator

    session, reference = SpecSession(model, num_threads=threads), ReferenceEvaluator(model)
    (name,) = [info.name for info in session.inputs]
    with np.load(sample) as data:
        feeds = {name: data[name][:1]}
    return [
        engine(QTOOL, lambda: session.run(feeds), comparable=False),
        engine(REFERENCE, lambda: reference.run(None, feeds), comparable=False),
    ]


def cases() -> Iterator[Case]:
    """One model."""
    yield Case(
        f"spec_engine/{MODEL}",
        RUNS,
        1e9,  # so that a billionth of the work per second is runs per second
        lambda threads: build(_quantized(), _zoo() / f"{MODEL}_eval.npz", threads),
        missing=_missing,
    )
