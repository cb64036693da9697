"""Subjects for the tests of checks."""

from __future__ import annotations

import numpy as np
import onnx

from qtool.calibrate.samples import open_samples
from qtool.evaluate.checks import Subject
from qtool.runtime import create_session


def subject(
    float_model: onnx.ModelProto, quant_model: onnx.ModelProto | bytes, samples: np.ndarray, *, layers: bool = False
) -> Subject:
    """Two models with one input, and samples for it."""
    inputs = create_session(float_model).inputs
    opened = open_samples({inputs[0].name: samples}, inputs)
    return Subject(float_model, quant_model, opened, num_threads=1, layers=layers)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)
