"""Words and JSON on planted results."""

from __future__ import annotations

import json
from typing import Any

from qtool.bench import gate, machine, report
from qtool.bench.cases.case import Case
from qtool.bench.run import Skipped
from tests.bench.fakes import result


def test_rows():
    found = result("histogram/float32/1M", work=4e9, unit="GB/s", NumPy=8.0)
    other = result("x", work=250e9, differs=("onnxruntime",), onnxruntime=0.5)
    skipped = Skipped(Case("y", "GOPS", 1.0, lambda _: []), "this processor has no avx2")
    assert report.rows([found, other, skipped]) == [
        ["histogram/float32/1M", "1000", "4", "GB/s", "NumPy 8.00 (0.5)"],
        ["x", "1000", "250", "GOPS", "onnxruntime 0.50 (500), whose output differs"],
        ["y", "", "", "", "skipped: this processor has no avx2"],
    ]


def test_json_is_strict_and_whole():
    results = [result("histogram/float32/1M", work=4e9, unit="GB/s", NumPy=8.0)]
    document = report.to_dict(machine.describe(), results, gate.judge(results), None)
    document = json.loads(json.dumps(document, allow_nan=False))
    assert set(document) == {"machine", "results", "verdicts", "not_judged"}
    (found,) = document["results"]
    assert found["case"] == "histogram/float32/1M"
    assert found["engines"]["NumPy"] == {"median_s": 8.0, "best_s": 8.0, "samples_s": [8.0], "rate": 0.5}
    assert found["ratios"] == {"NumPy": 8.0}
    assert document["verdicts"] == [
        {
            "case": "histogram/float32/1M",
            "against": "NumPy",
            "value": 8.0,
            "floor": 7,
            "goal": 9,
            "status": "floor",
        }
    ]


def test_the_heading_says_where_the_figures_are_from():
    facts = machine.describe()
    text = "\n".join(report.heading(facts))
    for word in (facts["cpu"], "load average", facts["kernels"]["kernel"], "onnxruntime", "numpy", "instruction sets"):
        assert word in text


def test_a_busy_machine_is_told():
    facts: dict[str, Any] = {"load": 1.01, "cpus": 2}
    assert machine.is_busy(facts)
    assert not machine.is_busy(facts | {"load": 0.9})
    assert not machine.is_busy(facts | {"load": None})
