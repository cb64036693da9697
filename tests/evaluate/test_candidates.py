"""Several candidates: who is beaten by whom, and what an evaluation of several shares."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import qtool
from qtool.errors import ConfigError, ModelError
from qtool.evaluate.candidates import choose_accuracy, compare_reports
from qtool.evaluate.metrics.base import LabelKind
from qtool.evaluate.report import Latency, OutputReport, Report, Sizes
from qtool.evaluate.writers.comparison import comparison_table, write_markdown
from qtool.runtime import create_session


def candidate(name: str, sqnr: float | None, size: int, ms: float | None, failures: tuple[str, ...] = ()) -> Report:
    return Report(
        float_model="f.onnx",
        quantized_model=name,
        metrics=("sqnr", "max_abs"),
        outputs=(OutputReport("y", "float32", (3,), 3, {"sqnr": sqnr, "max_abs": 0.5}),),
        samples=1,
        sources=(),
        sizes=Sizes(1000, size),
        latency=None if ms is None else Latency(10.0, ms, 3, 3, 1, None),
        failures=failures,
    )


def best(*reports: Report, accuracy: str | None = None) -> list[str | None]:
    comparison = compare_reports(reports, accuracy)
    return [r.quantized_model for r, marked in zip(reports, comparison.best, strict=True) if marked]


def test_each_is_best_in_something():
    assert best(candidate("a", 40, 300, 9), candidate("b", 30, 200, 9), candidate("c", 20, 300, 5)) == ["a", "b", "c"]


def test_one_that_is_as_good_in_all_and_better_in_one_beats():
    a = candidate("a", 40, 300, 5)
    assert best(a, candidate("b", 39, 300, 5)) == ["a"]
    assert best(a, candidate("b", 40, 301, 5)) == ["a"]
    assert best(a, candidate("b", 40, 300, 6)) == ["a"]
    assert best(a, candidate("b", 41, 300, 5)) == ["b"]


def test_two_of_a_kind_and_a_latency_within_the_noise():
    assert best(candidate("a", 40, 300, 5.0), candidate("b", 40, 300, 5.2)) == ["a", "b"]
    assert best(candidate("a", 40, 300, 5.2), candidate("b", 39, 300, 5.0)) == ["a"]
    assert best(candidate("a", 40, 300, None), candidate("b", 40, 300, None)) == ["a", "b"]


def test_a_size_within_the_noise_is_no_reason():
    assert best(candidate("a", 40, 132_552, 5.0), candidate("b", 40, 132_551, 5.0)) == ["a", "b"]
    assert best(candidate("a", 40, 132_552, 5.0), candidate("b", 41, 132_600, 5.0)) == ["b"]
    assert best(candidate("a", 40, 132_552, 5.0), candidate("b", 40, 132_000, 5.0)) == ["b"]


def test_who_failed_or_has_no_number_is_not_best_and_beats_nobody():
    good = candidate("good", 10, 900, 9)
    assert best(candidate("x", 50, 1, 1, ("Output 'y' holds NaN.",)), good) == ["good"]
    assert best(candidate("x", math.nan, 1, 1), good) == ["good"]
    assert best(candidate("x", None, 1, 1), good) == ["good"]
    assert best(candidate("x", math.nan, 1, 1)) == []
    assert best(candidate("x", math.inf, 1000, 9), candidate("y", math.inf, 999, 9)) == ["y"]


def test_for_an_error_less_is_better():
    a, b = candidate("a", 10, 300, 5), candidate("b", 20, 300, 5)
    assert best(a, b, accuracy="max_abs") == ["a", "b"]
    assert best(a, b, accuracy="sqnr") == ["b"]


def test_what_stands_for_accuracy():
    def chosen(wanted: str | None, *names: str, kind: LabelKind | None = None) -> str:
        report = candidate("a", 40, 300, None)
        return choose_accuracy(replace(report, metrics=names, label_kind=None if kind is None else kind.value), wanted)

    assert chosen(None, "cosine", "sqnr", "top5", "top1", kind=LabelKind.CLASSES) == "top1"
    assert chosen(None, "cosine", "sqnr", "mae", "r2", kind=LabelKind.TARGETS) == "r2"
    assert chosen(None, "cosine", "sqnr") == "sqnr"
    assert chosen(None, "cosine") == "cosine"
    assert chosen("cosine", "cosine", "sqnr") == "cosine"
    with pytest.raises(ConfigError, match="by 'top1'; expected one of the metrics computed"):
        chosen("top1", "sqnr")
    with pytest.raises(ConfigError, match="No metric"):
        chosen(None)


def test_the_table():
    shown = comparison_table(compare_reports([candidate("a", 40, 250, 5), candidate("b", None, 500, 9)]))
    assert shown.columns == (
        "model", "SQNR (dB)", "Max abs", "size", "smaller", "latency (batch 1)", "faster", "Pareto"
    )  # fmt: skip
    assert shown.rows == (
        ("f.onnx", "-", "-", "1.0 kB", "-", "10 ms", "-", "-"),
        ("a", "40.00", "0.5", "250 B", "4.00×", "5 ms", "2.00×", "best"),
        ("b", "-", "0.5", "500 B", "2.00×", "9 ms", "1.11×", "-"),
    )


def test_markdown():
    stream = StringIO()
    failed = candidate("b|`@x`.onnx", 30, 500, None, ("Output '<y>' holds @all.",))
    write_markdown(compare_reports([candidate("a.onnx", 40, 250, None), failed]), stream)
    assert stream.getvalue() == (
        "## qtool compare\n\n"
        "Candidates, 1 sample. Pareto-best\\: no other one is as good in SQNR and size, and better in one of them.\n\n"
        "| model | SQNR (dB) | Max abs | size | smaller | Pareto |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: |\n"
        "| `f.onnx` | - | - | 1.0 kB | - | - |\n"
        "| **`a.onnx`** | 40.00 | 0.5 | 250 B | 4.00× | **best** |\n"
        "| ``b\\|`@x`.onnx`` | 30.00 | 0.5 | 500 B | 2.00× | failed |\n\n"
        "Failed:\n\n"
        "- ``b\\|`@x`.onnx``: Output '\\<y\\>' holds @\u200ball.\n"
    )


def model(body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> m (float[N, 3] x) => (float[N, 3] y) {{ {body} }}'
    return onnx.parser.parse_model(text)


DATA = {"x": np.array([[1, 2, 3], [-4, 5.5, 6], [7, 8, 9]], np.float32), "t": np.array([2, 2, 0])}


def test_the_reference_runs_once_per_batch(monkeypatch: pytest.MonkeyPatch):
    runs: list[str] = []

    class Counting:
        def __init__(self, session: Any, name: str) -> None:
            self.session, self.name = session, name

        def __getattr__(self, name: str) -> Any:
            return getattr(self.session, name)

        def run(self, feeds: Any, outputs: Any = None) -> Any:
            runs.append(self.name)
            return self.session.run(feeds, outputs)

    names = iter("fab")

    def counted(source: Any, **options: Any) -> Any:
        return Counting(create_session(source, **options), next(names))

    monkeypatch.setattr("qtool.runtime.create_session", counted)
    reference, rounded, same = model("y = Identity(x)"), model("y = Round(x)"), model("y = Identity(x)")
    found = qtool.compare_models(reference, [rounded, same], DATA, labels="t", latency=False, batch=2)
    assert "".join(runs) == "fab" + "fab"
    assert [r.outputs[0].values["max_abs"] for r in found.reports] == [0.5, 0.0]
    assert [r.outputs[0].values["top1"] for r in found.reports] == [1 / 3, 2 / 3]  # 5.5 is rounded to a tie
    assert (found.accuracy, found.name(1)) == ("top1", "candidate 2")


def test_each_candidate_is_what_evaluate_says(tmp_path: Path):
    paths = [tmp_path / name for name in ("f.onnx", "a.onnx", "b.onnx")]
    for path, body in zip(paths, ("y = Identity(x)", "y = Round(x)", "y = Floor(x)"), strict=True):
        onnx.save(model(body), path)
    found = qtool.compare_models(paths[0], paths[1:], DATA, latency=False)
    alone = [qtool.evaluate(paths[0], path, DATA, latency=False, checks="none") for path in paths[1:]]
    assert list(found.reports) == alone
    shown = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [c["model"] for c in shown["candidates"]] == [str(path) for path in paths[1:]]
    assert shown["candidates"][0]["outputs"] == found.reports[0].to_dict()["outputs"]
    assert (shown["accuracy"], shown["float_model"], shown["samples"]) == ("sqnr", str(paths[0]), 3)


def test_latency_of_all_is_measured_together():
    reference = model("y = Identity(x)")
    found = qtool.compare_models(reference, [reference, reference], {"x": DATA["x"]})
    times = [report.latency for report in found.reports]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].float_ms == times[1].float_ms > 0
    assert times[0].runs == times[1].runs


def test_mistakes(tmp_path: Path):
    reference, other = model("y = Identity(x)"), tmp_path / "other.onnx"
    with pytest.raises(ConfigError, match="at least one model"):
        qtool.compare_models(reference, [], DATA)
    with pytest.raises(ConfigError, match="compares with labels"):
        qtool.compare_models(reference, [reference], DATA, rank="top1", metrics=["sqnr"])
    wrong = model("y = Identity(x)")
    wrong.graph.output[0].name = wrong.graph.node[0].output[0] = "z"
    onnx.save(wrong, other)
    with pytest.raises(ModelError, match=r"other\.onnx: The quantized model's outputs are z"):
        qtool.compare_models(reference, [reference, other], DATA)
