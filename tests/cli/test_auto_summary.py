"""What ``qtool quantize`` says about the ranges that ``auto`` came to."""

from __future__ import annotations

import json
import math

from qtool.evaluate.whole_model import AutoCheck, Gain, MethodTrial
from tests.cli.fakes import result

CHECK = AutoCheck(
    "mse",
    16,
    "mse, 1.2 dB better than auto for the whole model on 16 calibration samples",
    (
        MethodTrial("auto", 16, {"y": 30.0, "z": 41.25}),
        MethodTrial("mse", 16, {"y": 31.2, "z": 44.0}, Gain(1.2, 0.213)),
        MethodTrial("minmax", 0, {}),
    ),
)


def lines(ended):
    said = ended.err.splitlines()
    start = next(index for index, line in enumerate(said) if line.startswith("Ranges"))
    return said[start : next(index for index, line in enumerate(said) if line.startswith("SQNR"))]


def test_one_line(api, qtool_command):
    api(quantize=result(auto=CHECK))
    assert lines(qtool_command("quantize", "m.onnx")) == [f"Ranges    {CHECK.reason}"]


def test_verbose_shows_what_every_method_measured(api, qtool_command):
    api(quantize=result(auto=CHECK))
    assert lines(qtool_command("quantize", "m.onnx", "-v")) == [
        f"Ranges    {CHECK.reason}",
        "            auto (16): 30.0 dB at y, 41.2 dB at z",
        "            mse (16): 31.2 dB at y, 44.0 dB at z; gain +1.20 dB, error 0.21",
        "            minmax (0): does not run",
    ]


def test_auto_that_stays_says_why(api, qtool_command):
    why = "the whole model was not judged: random samples say nothing about its outputs"
    api(quantize=result(auto=AutoCheck("auto", 0, why)))
    assert lines(qtool_command("quantize", "m.onnx")) == [f"Ranges    auto, tensor by tensor: {why}"]


def test_json(api, qtool_command):
    trial = MethodTrial("mse", 16, {"y": math.inf}, Gain(-math.inf, 0.0))
    api(quantize=result(auto=AutoCheck("auto", 16, "why", (trial,))))
    assert json.loads(qtool_command("quantize", "m.onnx", "--json", "-").out)["auto"] == {
        "chosen": "auto",
        "samples": 16,
        "reason": "why",
        "trials": [{"method": "mse", "samples": 16, "sqnr_db": {"y": "inf"}, "gain_db": "-inf", "gain_error_db": 0.0}],
    }
