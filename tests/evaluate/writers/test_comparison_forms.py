"""A comparison of candidates as HTML and as JUnit XML."""

from __future__ import annotations

import io
import json
import math
import re
from xml.etree import ElementTree

import pytest

from qtool.evaluate.candidates import Comparison, compare_reports
from qtool.evaluate.writers import COMPARISON_WRITERS
from qtool.evaluate.writers._comparison_view import view_of_comparison
from qtool.evaluate.writers._scatter import Axis, Point, _ticks, scatter_chart
from tests.evaluate.writers.test_html import Page
from tests.reports import HOSTILE, SHOWN, compared, small


def written(form: str, comparison: Comparison) -> str:
    stream = io.StringIO()
    COMPARISON_WRITERS[form](comparison, stream)
    return stream.getvalue()


def test_the_page_is_well_formed_and_the_same_each_time():
    text = written("html", compared(HOSTILE))
    assert text == written("html", compared(HOSTILE))
    page = Page(text)
    assert (page.tags.count("h1"), page.tags.count("script"), page.tags.count("style")) == (1, 1, 1)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert not [v for name, v in page.attributes if name in ("src", "href") and v and not v.startswith("#")]
    assert "<script>window.pwned" not in text
    assert len(text) < 60_000


def test_the_figures_are_those_of_the_comparison():
    view = view_of_comparison(compared())
    assert (view.title, view.verdict, view.tone) == ("4 candidates", "2 of 4 are Pareto-best", "good")
    assert view.best == [
        (1, "a.onnx", "35.50 dB, 1.2 kB (3.33×), 1.5 ms (1.33×)"),
        (2, "b.onnx", "28.00 dB, 1.0 kB (4.00×), 1 ms (2.00×)"),
    ]
    assert view.failures == [("d.onnx", "Output 'a.onnx' holds NaN.")]
    assert view.undrawn == ["d.onnx"]
    assert [chart["title"] for chart in view.charts] == ["SQNR against size", "SQNR against latency"]
    assert view.table.columns == (
        *("#", "model", "SQNR (dB)", "Max abs", "size", "smaller", "latency (batch 1)", "faster", "Pareto"),
    )
    texts = [[cell.text for cell in row] for row in view.table.rows]
    assert texts[0] == ["float", "f.onnx", "-", "-", "4.0 kB", "-", "2 ms", "-", "-"]
    assert texts[1] == ["1", "a.onnx", "35.50", "0.5", "1.2 kB", "3.33×", "1.5 ms", "1.33×", "best"]
    assert [row[-1] for row in texts] == ["-", "best", "best", "-", "failed"]
    assert [row[4].value for row in view.table.rows] == [4000, 1200, 1000, 1300, 500]
    (chart,) = [chart["svg"] for chart in view.charts if chart["title"] == "SQNR against size"]
    label = re.search('aria-label="([^"]*)"', chart)
    assert label is not None
    assert label[1] == (
        "Scatter chart of 3 candidates, SQNR against size. Pareto-best: a.onnx (35.50 dB, 1.2 kB (3.33×), 1.5 ms "
        "(1.33×)); b.onnx (28.00 dB, 1.0 kB (4.00×), 1 ms (2.00×)). The table below has all figures."
    )


def test_none_that_is_usable_draws_nothing():
    view = view_of_comparison(compare_reports([small(failures=("Output 'y' holds NaN.",))]))
    assert (view.verdict, view.tone, view.charts, view.undrawn) == ("none is usable", "bad", [], ["q.onnx"])
    assert "none is usable" in written("html", compare_reports([small(failures=("NaN.",))]))


def test_one_candidate_that_is_exact():
    """Its SQNR is infinite: it stands at the upper edge."""
    outputs = tuple(output.__class__(**{**vars(output), "values": {"sqnr": math.inf}}) for output in small().outputs)
    view = view_of_comparison(compare_reports([small(outputs=outputs)]))
    assert view.verdict == "1 of 1 is Pareto-best"
    assert len(view.charts) == 1  # nothing was timed
    assert view.best == [(1, "q.onnx", "inf dB, 1.0 kB (4.00×)")]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([33.2, 35.8], [33.0, 34.0, 35.0, 36.0]),
        ([0.0, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0]),
        ([5.0], [2.0, 4.0, 6.0, 8.0]),
        ([0.0], [-1.0, -0.5, 0.0, 0.5, 1.0]),
        ([11.13e3, 11.71e3], [11000.0, 11200.0, 11400.0, 11600.0, 11800.0]),
        ([-0.3, -0.1], [-0.3, -0.25, -0.2, -0.15, -0.1]),
    ],
)
def test_ticks_are_round_and_hold_all_values(values, ticks):
    assert _ticks(values) == pytest.approx(ticks)
    assert ticks[0] <= min(values) <= max(values) <= ticks[-1]


def test_ticks_stay_within_what_a_metric_can_be():
    assert _ticks([1.0, 1.0], (0.0, 1.0)) == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert _ticks([0.0], (0.0, 1.0)) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert _ticks([0.9, 1.0], (0.0, 1.0))[-1] == pytest.approx(1.0)


def test_points_at_one_place_share_a_label():
    axis = Axis("x", str)
    svg = scatter_chart([Point(1, 1, 2, True), Point(2, 1, 2, False), Point(3, 5, 9, True)], axis, axis, "all")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert texts[-2:] == ["1, 2", "3"]


def test_json_is_the_dictionary():
    assert json.loads(written("json", compared(HOSTILE))) == compared(HOSTILE).to_dict()


def test_a_case_for_each_candidate():
    root = ElementTree.fromstring(written("junit", compared(HOSTILE)).encode())
    assert root.attrib == {"name": "qtool compare", "tests": "4", "failures": "1", "errors": "0", "skipped": "0"}
    (suite,) = root
    assert suite.attrib["name"] == "candidates against f.onnx"
    assert [case.attrib["name"] for case in suite] == [SHOWN, "b.onnx", "c.onnx", "d.onnx"]
    failed = suite[3].find("failure")
    assert failed is not None
    assert failed.attrib["message"] == f"Output '{SHOWN}' holds NaN."
    said = suite[1].find("system-out")
    assert said is not None
    assert said.text == (
        "SQNR (dB): 28.00, Max abs: 0.5, size: 1.0 kB, smaller: 4.00×, latency (batch 1): 1 ms, faster: 2.00×, "
        "Pareto: best"
    )
    unusable = compare_reports([small(outputs=())])
    (case,) = ElementTree.fromstring(written("junit", unusable).encode()).iter("failure")
    assert case.attrib["message"] == "SQNR is not a number, or not defined for any output."
