"""The noise that an error alone causes, against the model with the error added to it by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qtool.calibrate.segments import SourceGraph
from qtool.evaluate.attribution import share
from qtool.evaluate.attribution.graph import Graph
from qtool.evaluate.attribution.share import Switchboard

# 'early' is an output that is read further, and 'skip' passes over several pieces
TEXT = """<ir_version: 8, opset_import: ["": 13]> g (float[2, 3] x) => (float[2, 3] early, float[2, 3] y) {
    a = Mul(x, x)
    early = Tanh(a)
    skip = Exp(early)
    b = Sin(skip)
    c = Add(b, x)
    d = Cos(c)
    y = Mul(d, skip)
}"""
NAMES = ("c", "a", "early", "b", "d", "skip", "y", "a")


def by_hand(x: np.ndarray, error: np.ndarray, at: str) -> dict[str, np.ndarray]:
    def plus(name: str, value: np.ndarray) -> np.ndarray:
        return value + error if name == at else value

    a = plus("a", x * x)
    early = plus("early", np.tanh(a))
    skip = plus("skip", np.exp(early))
    c = plus("c", plus("b", np.sin(skip)) + x)
    return {"early": early, "y": plus("y", plus("d", np.cos(c)) * skip)}


@pytest.mark.parametrize("limit", [1 << 20, 0])  # the values before every piece are kept, or only the first
@pytest.mark.parametrize("pieces", [1, 3, 20])
def test_noise_of_one_error(monkeypatch: pytest.MonkeyPatch, pieces: int, limit: int) -> None:
    monkeypatch.setattr(share, "PIECES", pieces)
    monkeypatch.setattr(share, "MOST_BYTES", limit)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    errors = [(name, (0.1 * rng.standard_normal((2, 3))).astype(np.float32)) for name in NAMES]
    board = Switchboard(Graph(SourceGraph(onnx.parser.parse_model(TEXT), None)), NAMES)
    found = board.output_noise(errors, {"x": x}, 2)
    exact = by_hand(x, np.zeros_like(x), "")
    for (name, error), noise in zip(errors, found, strict=True):
        noisy = by_hand(x, error, name)
        expected = sum(float(np.sum((noisy[o] - exact[o]) ** 2) / np.sum(exact[o] ** 2)) for o in exact)
        assert noise == pytest.approx(expected, rel=1e-4), name
