from __future__ import annotations

import io
import json
import math

import pytest

from qtool.evaluate.json_form import encode
from qtool.evaluate.report import (
    SCHEMA_VERSION,
    GateResult,
    Latency,
    OutputReport,
    Report,
    Sizes,
    Source,
    Statistic,
)
from qtool.evaluate.writers import WRITERS
from qtool.evaluate.writers._cells import Table, format_bytes
from qtool.evaluate.writers.table import tables


def example() -> Report:
    return Report(
        float_model="m.onnx",
        quantized_model="m.int8.onnx",
        metrics=("sqnr", "cosine", "max_abs", "top1_agreement", "top1"),
        outputs=(
            OutputReport(
                "logits",
                "float32",
                ("batch", 10),
                30,
                {"sqnr": 27.3149, "cosine": 0.99912345, "max_abs": 0.123456789, "top1_agreement": 1.0, "top1": 0.9},
                {"top1": 0.95},
                statistics={
                    "top1": Statistic(
                        3, 0.95, 0.9, -0.05, (-0.2, math.inf), "score", p_value=0.5, lost=2, gained=1, detectable=None
                    )
                },
            ),
            OutputReport(
                "state",
                "float32",
                (None, 4),
                12,
                {"sqnr": math.inf, "cosine": math.nan, "max_abs": -math.inf, "top1_agreement": None, "top1": None},
                {"top1": None},
                new_nan=2,
                new_inf=1,
            ),
        ),
        samples=3,
        sources=(Source("eval.npz", "00ff"),),
        sizes=Sizes(86_700_000, 21_700_000),
        latency=Latency(3.5, 1.75, 5, 50, 3, 2),
        notes=("a note",),
        failures=("a failure",),
        gates=(
            GateResult(
                "sqnr", "--fail-under sqnr=30", 30.0, False, "dB", math.nan, "y", passed=False, line="sqnr is nan dB."
            ),
        ),
    )


def test_json_is_strict_and_complete() -> None:
    stream = io.StringIO()
    WRITERS["json"](example(), stream)
    text = stream.getvalue()
    assert text.endswith("}\n")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "schema_version": 1,
        "float_model": "m.onnx",
        "quantized_model": "m.int8.onnx",
        "engine": "ort",
        "labels": None,
        "label_kind": None,
        "samples": 3,
        "sources": [{"path": "eval.npz", "sha256": "00ff"}],
        "metrics": [
            {"name": "sqnr", "unit": "dB", "higher_is_better": True, "needs_labels": False},
            {"name": "cosine", "unit": "", "higher_is_better": True, "needs_labels": False},
            {"name": "max_abs", "unit": "", "higher_is_better": False, "needs_labels": False},
            {"name": "top1_agreement", "unit": "", "higher_is_better": True, "needs_labels": False},
            {"name": "top1", "unit": "", "higher_is_better": True, "needs_labels": True},
        ],
        "outputs": [
            {
                "name": "logits",
                "dtype": "float32",
                "shape": ["batch", 10],
                "elements": 30,
                "values": {
                    "sqnr": 27.3149,
                    "cosine": 0.99912345,
                    "max_abs": 0.123456789,
                    "top1_agreement": 1.0,
                    "top1": 0.9,
                },
                "float_values": {"top1": 0.95},
                "new_nan": 0,
                "new_inf": 0,
                "statistics": {
                    "top1": {
                        "n": 3,
                        "float": 0.95,
                        "quantized": 0.9,
                        "delta": -0.05,
                        "interval": [-0.2, "inf"],
                        "method": "score",
                        "p_value": 0.5,
                        "lost": 2,
                        "gained": 1,
                        "detectable": None,
                    }
                },
            },
            {
                "name": "state",
                "dtype": "float32",
                "shape": [None, 4],
                "elements": 12,
                "values": {"sqnr": "inf", "cosine": "nan", "max_abs": "-inf", "top1_agreement": None, "top1": None},
                "float_values": {"top1": None},
                "new_nan": 2,
                "new_inf": 1,
                "statistics": {},
            },
        ],
        "sizes": {"float_bytes": 86700000, "quantized_bytes": 21700000, "ratio": 86700000 / 21700000},
        "latency": {
            "float_ms": 3.5,
            "quantized_ms": 1.75,
            "ratio": 2.0,
            "rounds": 5,
            "runs": 50,
            "batch_size": 3,
            "threads": 2,
        },
        "notes": ["a note"],
        "failures": ["a failure"],
        "passed": False,
        "gates": [
            {
                "name": "sqnr",
                "option": "--fail-under sqnr=30",
                "threshold": 30.0,
                "over": False,
                "unit": "dB",
                "value": "nan",
                "output": "y",
                "passed": False,
                "line": "sqnr is nan dB.",
            }
        ],
        "layers": None,
        "sensitivity": None,
        "details": None,
        "checks": None,
    }
    assert SCHEMA_VERSION == 1


def test_key_order_is_fixed() -> None:
    keys = list(example().to_dict())
    assert keys[0] == "schema_version"
    assert keys == list(example().to_dict())


@pytest.mark.parametrize(
    ("value", "expected"), [(1.5, 1.5), (None, None), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")]
)
def test_encode(value: float | None, expected: float | str | None) -> None:
    assert encode(value) == expected


def test_worst() -> None:
    report = example()
    assert report.worst("sqnr") == ("logits", 27.3149)
    name, value = report.worst("cosine") or ("", 0.0)
    assert name == "state"
    assert math.isnan(value)
    assert report.worst("max_abs") == ("logits", 0.123456789)
    assert report.worst("top1") == ("logits", 0.9)
    assert report.worst("mean_abs") is None


def test_ratios_of_nothing() -> None:
    assert Sizes(5, 0).ratio == math.inf
    assert Latency(1.0, 0.0, 1, 1, 1, None).ratio == math.inf


def test_tables() -> None:
    outputs, statistics, gates, cost = tables(example())
    assert outputs == Table(
        "Outputs, 3 samples",
        ("output", "SQNR (dB)", "Cosine", "Max abs", "Top-1 agreement", "Top-1"),
        (
            ("logits", "27.31", "0.999123", "0.123457", "1.0000", "0.9000 (float 0.9500)"),
            ("state", "inf", "nan", "-inf", "-", "-"),
        ),
    )
    assert statistics == Table(
        "Worst output of each metric, intervals of 95 % (of the difference where there is one)",
        ("metric", "n", "float", "quantized", "difference", "interval", "p (McNemar)"),
        (("Top-1 of logits", "3", "0.9500", "0.9000", "-0.0500", "-0.2000 to +inf", "0.5"),),
    )
    assert gates == Table(
        "Gates",
        ("gate", "outcome", "found"),
        (("--fail-under sqnr=30", "FAILED", "sqnr is nan dB."),),
        figures=False,
    )
    assert cost.rows == (
        ("size", "86.7 MB", "21.7 MB", "4.00×"),
        ("latency (batch 3, 2 threads)", "3.5 ms", "1.75 ms", "2.00×"),
    )


def test_plain_text() -> None:
    stream = io.StringIO()
    WRITERS["table"](example(), stream)
    assert stream.getvalue() == (
        "Outputs, 3 samples\n"
        "  output  SQNR (dB)    Cosine   Max abs  Top-1 agreement                  Top-1\n"
        "  logits      27.31  0.999123  0.123457           1.0000  0.9000 (float 0.9500)\n"
        "  state         inf       nan      -inf                -                      -\n"
        "\n"
        "Worst output of each metric, intervals of 95 % (of the difference where there is one)\n"
        "  metric           n   float  quantized  difference         interval  p (McNemar)\n"
        "  Top-1 of logits  3  0.9500     0.9000     -0.0500  -0.2000 to +inf          0.5\n"
        "\n"
        "Gates\n"
        "  gate                  outcome  found\n"
        "  --fail-under sqnr=30  FAILED   sqnr is nan dB.\n"
        "\n"
        "Cost\n"
        "                                  float  quantized  float / quantized\n"
        "  size                          86.7 MB    21.7 MB              4.00×\n"
        "  latency (batch 3, 2 threads)   3.5 ms    1.75 ms              2.00×\n"
        "note: a note\n"
        "failed: a failure\n"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (86_700_000, "86.7 MB"),
        (2_500_000_000, "2.5 GB"),
        (2_500_000_000_000, "2500.0 GB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text
