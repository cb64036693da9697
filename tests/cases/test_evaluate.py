"""C60: the figures of an evaluation on three values that can be checked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from qtool.calibrate.samples import open_samples
from qtool.evaluate.compare import compare
from qtool.runtime import create_session

FLOAT = '<ir_version: 8, opset_import: ["" : 17]> m (float[N, 3] x) => (float[N, 3] y) { y = Identity(x) }'
ROUNDED = '<ir_version: 8, opset_import: ["" : 17]> m (float[N, 3] x) => (float[N, 3] y) { y = Round(x) }'


def test_c60_three_values(tmp_path: Path) -> None:
    paths = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    for path, text in zip(paths, (FLOAT, ROUNDED), strict=True):
        onnx.save(onnx.parser.parse_model(text), path)
    samples = open_samples({"x": np.array([[0.75, 2, -1.25]], np.float32)}, create_session(paths[0]).inputs)
    report = compare(*paths, samples)
    # y = [1, 2, -1]: errors .25, 0, .25; signal .5625 + 4 + 1.5625 = 6.125; noise .125; sum(xy) = 6; sum(y^2) = 6
    assert report.outputs[0].values == {
        "sqnr": 10 * math.log10(6.125 / 0.125),
        "cosine": 6 / math.sqrt(6.125 * 6),
        "max_abs": 0.25,
        "mean_abs": 0.5 / 3,
        "top1_agreement": 1.0,
    }
    assert report.outputs[0].elements == 3
    assert (report.sizes.float_bytes, report.sizes.quantized_bytes) == tuple(path.stat().st_size for path in paths)
    assert report.samples == 1
