"""The registry of checks, their results as data, and what becomes of a check that fails."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import qtool
from qtool.errors import ConfigError, ModelError
from qtool.evaluate.checks import CHECKS, Check, CheckResult, Finding, run_checks, select_checks
from tests.evaluate.checks.subjects import subject
from tests.models import build


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("quick", ["miscompile", "fusion", "ranges"]),
        ("all", ["miscompile", "fusion", "ranges", "saturation", "memory"]),
        ("none", []),
        ([], []),
        ("memory,fusion", ["fusion", "memory"]),
        (["saturation", "quick"], ["miscompile", "fusion", "ranges", "saturation"]),
        ("none, fusion", ["fusion"]),
    ],
)
def test_checks_are_chosen_by_name_in_the_order_of_the_registry(names: str | list[str], chosen: list[str]) -> None:
    assert [check.name for check in select_checks(names)] == chosen


def test_an_unknown_check_is_refused_with_the_list() -> None:
    expected = "There is no check 'speed'; expected quick, all, none or miscompile, fusion, ranges, saturation, memory"
    with pytest.raises(ConfigError, match=expected):
        select_checks("fusion,speed")


def test_a_result_is_strict_json() -> None:
    finding = Finding("n", "text", "--exclude 'n'", {"largest": math.inf, "share": math.nan, "count": 2})
    result = CheckResult("fusion", "title", "flagged", "summary", (finding,), {"low": -math.inf, "no": None}, 3)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == {
        "name": "fusion",
        "title": "title",
        "state": "flagged",
        "summary": "summary",
        "findings": [
            {
                "subject": "n",
                "text": "text",
                "suggestion": "--exclude 'n'",
                "values": {"largest": "inf", "share": "nan", "count": 2},
            }
        ],
        "values": {"low": "-inf", "no": None},
        "samples": 3,
    }


def test_all_checks_of_a_real_model(examples: Path, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    qtool.quantize(examples / "mnist_cnn.onnx", examples / "mnist_calib.npz", output=path, samples=4, method="minmax")
    report = qtool.evaluate(
        examples / "mnist_cnn.onnx", path, examples / "mnist_eval.npz", samples=4, latency=False, checks="all"
    )
    assert report.checks is not None
    found = {check.name: check for check in report.checks}
    assert [(name, check.state) for name, check in found.items() if name != "saturation"] == [
        ("miscompile", "ok"),
        ("fusion", "ok"),
        ("ranges", "ok"),
        ("memory", "ok"),
    ]
    assert found["fusion"].values == {"fused": 3, "products": 3}
    assert found["ranges"].values == {"inputs": 1, "tensors": 0, "outside": 0}
    assert (found["saturation"].samples, found["saturation"].values["layers"]) == (4, 3)
    assert report.to_dict()["checks"] == [check.to_dict() for check in report.checks]


def test_a_check_that_fails_is_skipped_and_the_next_one_runs() -> None:
    model = build("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")

    def fail(_: object) -> CheckResult:
        raise ModelError("It does not load.")

    broken = Check("broken", "A broken check", quick=True, run=fail)
    results = run_checks(subject(model, model, np.zeros((1, 2), np.float32)), [broken, CHECKS["fusion"]])
    assert results[0] == CheckResult("broken", "A broken check", "skipped", "It does not load.")
    assert (results[1].state, results[1].summary) == ("skipped", "The model has no quantized MatMul, Gemm or Conv.")
