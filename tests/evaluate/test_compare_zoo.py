"""Real models against themselves: the float scores are those that the zoo's README states."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from qtool.calibrate.samples import open_samples
from qtool.evaluate.compare import compare
from qtool.runtime import create_session


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("name", "samples", "top1"), [("digits_resnet_bn", 500, 1.0), ("digits_vit", 500, 0.986), ("mnist_cnn", 600, 0.95)]
)
def test_float_scores(name: str, samples: int, top1: float, zoo: Path) -> None:
    path = zoo / f"{name}.onnx"
    data = open_samples(path.with_name(f"{name}_eval.npz"), create_session(path).inputs, labels=["labels"])
    report = compare(path, path, data, labels="labels", latency=False, num_threads=1)
    (output,) = report.outputs
    assert report.samples == samples
    assert output.values["sqnr"] == math.inf
    assert output.values["top1_agreement"] == 1.0
    assert output.values["top1"] == output.float_values["top1"] == pytest.approx(top1, abs=1e-12)
    assert report.sizes.float_bytes == report.sizes.quantized_bytes == path.stat().st_size
