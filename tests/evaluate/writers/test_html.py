"""The HTML report as text: one file, the same bytes each time, its own policy, every figure of the report."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from qtool.errors import ConfigError
from qtool.evaluate.attribution.report import Attribution
from qtool.evaluate.writers import WRITERS, html
from qtool.evaluate.writers._charts import describe, histogram_chart, shortened
from qtool.evaluate.writers._svg import Drawing
from qtool.evaluate.writers._view import Cell, view_of
from tests.reports import FAILS, HOLDS, HOSTILE, SHOWN, full, histogram, layer, small


def written(report) -> str:
    stream = io.StringIO()
    WRITERS["html"](report, stream)
    return stream.getvalue()


class Page(HTMLParser):
    """Tags, attributes and text of a page; tags must be closed in order."""

    VOID = frozenset(("meta", "link", "br", "img", "input"))

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_same_report_has_the_same_bytes():
    assert written(full()) == written(full())


def test_it_is_well_formed_and_small():
    text = written(full(HOSTILE))
    page = Page(text)
    assert (
        page.tags.count("h1") == page.tags.count("main") == page.tags.count("script") == page.tags.count("style") == 1
    )
    assert len(text) < 120_000
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_and_no_style_or_handler_is_in_the_markup():
    page = Page(written(full(HOSTILE)))
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "srcset", "style", "background", "poster", "xlink:href", "action"}
    assert not [name for name in names if name.startswith("on")]
    links = {value for name, value in page.attributes if name == "href"}
    assert {link for link in links if link and not link.startswith("#")} == set()


def test_the_policy_allows_what_stands_in_the_page_and_nothing_else():
    text = written(small())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    hashes = {}
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_a_hostile_name_is_escaped_wherever_it_stands():
    text = written(full(HOSTILE))
    assert "<script>window" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    shown = "".join(Page(text).text)
    assert shown.count(SHOWN) >= 10


def test_all_figures_of_the_report_are_there():
    text = " ".join("".join(Page(written(full())).text).split())
    for piece in (
        "1 of 2 gates failed",
        "--fail-over drop=0.5pp",
        "drop of output 'layer' is 1.25 pp, over 0.5 pp.",
        "4.00× smaller",
        "2.00× as fast",
        "4 → 2 ms, batch 8, 2 threads",
        "95.00 %",
        "-3.00 pp",
        "-8.00 pp … +1.00 pp",
        "24.50 dB",
        "state: float32 [?], 4 values compared",
        "214 of 256 codes used",
        "the running model chooses the range",
        "int8 per channel (axis 1)",
        "flagged Calibrated ranges 1 input leaves its range.",
        "layer value of layer leaves the range --calib layer",
        "qtool quantize layer --exclude layer",
        "no float tensor for layer",
        "+5.75",
        "64×128",
        "7 smaller tensors take 1.2 kB together.",
        "the hashes agree",
        "ab" * 32,
        "cd" * 32,
        "method",
        "note about layer",
        "Made by qtool 0.1.0",
    ):
        assert piece in text, piece


@pytest.mark.parametrize(
    ("changes", "tone", "word", "title"),
    [
        ({}, "plain", "Measured", "measured, no gates"),
        ({"gates": (HOLDS,)}, "good", "Pass", "1 gate holds"),
        ({"gates": (HOLDS, HOLDS)}, "good", "Pass", "2 gates hold"),
        ({"gates": (HOLDS, FAILS)}, "bad", "Fail", "1 of 2 gates failed"),
        ({"gates": (HOLDS,), "failures": ("y holds NaN",)}, "bad", "Fail", "unusable"),
    ],
)
def test_the_verdict(changes, tone, word, title):
    view = view_of(small(**changes))
    assert (view.tone, view.verdict) == (tone, title)
    assert f'<p class="word">{word}</p>' in written(small(**changes))


def test_failed_gates_come_first():
    assert [gate["passed"] for gate in view_of(small(gates=(HOLDS, FAILS, HOLDS))).gates] == [False, True, True]


def test_columns_without_a_value_are_left_out():
    assert view_of(small()).quality[0].columns == ("metric", "quantized")
    assert view_of(full()).quality[0].columns == (
        "metric", "float", "quantized", "difference", "95 % interval", "n"
    )  # fmt: skip


def test_what_a_column_is_sorted_by():
    assert [Cell("", value).key for value in (1.5, math.inf, -math.inf, math.nan, None, 1e-7)] == [
        "1.5", "Infinity", "-Infinity", "Infinity", "Infinity", "1e-07"
    ]  # fmt: skip


def test_many_layers_have_all_rows_and_some_charts():
    layers = tuple(layer(f"n{i}", 1 / (i + 1), 20.0 + i) for i in range(60))
    view = view_of(small(layers=Attribution(layers, 16)))
    assert len(view.layers["table"].rows) == 60
    assert (view.layers["charted"], len(view.layers["cards"])) == (12, 24)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"low": 0.0, "high": 0.0},
        {"counts": (0,) * 64},
        {"counts": ()},
        {"low": -1.7e308, "high": 1.7e308, "range_low": -1e308, "range_high": 1e308},
        {"low": 5e-324, "high": 1e-323},
        {"range_low": None, "range_high": None, "scale": None},
        {"range_low": 3.0, "range_high": 3.0},
    ],
)
def test_a_histogram_of_any_values_is_drawn_inside_its_box(changes):
    text = histogram_chart(histogram(**changes), "s")
    numbers = [float(x) for d in re.findall(r' d="([^"]*)"', text) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", d)]
    assert numbers
    assert min(numbers) >= -4
    assert max(numbers) <= 344


def test_a_histogram_in_words():
    assert describe(histogram()) == "values from -6 to 7, range -4 to 4, 0.1 % clipped, 214 of 256 codes used"
    assert describe(histogram(range_low=None)) == "values from -6 to 7; the running model chooses the range"


def test_long_names_are_cut_in_the_middle():
    assert shortened("a" * 44) == "a" * 44
    cut = shortened("head" + "x" * 90 + "tail")
    assert (len(cut), cut[:4], cut[-4:], "…" in cut) == (44, "head", "tail", True)


def test_a_drawing_has_no_style_attributes_and_themes_by_class():
    drawing = Drawing(100, 20, "t")
    drawing.rectangle(0, 0, 50, 10, "accent", 0.5)
    drawing.line([0, 100], [15, 15], "line", 2)
    drawing.dot(10, 10, "muted", hollow=True)
    drawing.text(3, 12, "$a<b", kind="mono")
    text = drawing.svg('"x" & y')
    assert 'aria-label="&quot;x&quot; &amp; y"' in text
    assert '<path d="M 0 0 L 50 0 L 50 10 L 0 10 z" opacity="0.5" class="f-accent">' in text
    assert ">$a&lt;b</text>" in text
    for absent in ("style", "xmlns", "metadata", "font-family", "#0000"):
        assert absent not in text


def test_without_its_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(html, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        WRITERS["html"](small(), io.StringIO())
    assert caught.value.message == (
        "The HTML report needs jinja2 and matplotlib, not installed here: pip install 'qtool[report]'."
    )


def test_a_model_that_does_not_say_where_it_is_from():
    details = full().details
    assert details is not None
    for made, words in ((None, "does not say"), (False, "the hashes differ"), (True, "the hashes agree")):
        assert words in view_of(small(details=replace(details, made_from_float=made))).origin


def test_text_on_bars_can_be_read_in_both_themes():
    def light(color: str) -> float:
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    (style,) = re.findall("<style>(.*?)</style>", written(small()), re.DOTALL)
    text, *bars = (re.findall(rf"--{name}: (#[0-9a-f]{{6}})", style) for name in ("on-bar", "float", "code", "other"))
    assert len(text) == 2
    for theme, ink in enumerate(text):
        for bar in bars:
            dark, bright = sorted((light(ink), light(bar[theme])))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, bar[theme]


def test_hashes_that_the_model_records_stand_with_the_others():
    details = full().details
    assert details is not None
    metadata = {"calibration.sha256": '["aa", "bb"]', "source.sha256": "cc"}
    for made, kinds in ((True, []), (False, [("float model as recorded", "", "cc")])):
        changed = replace(
            details, made_from_float=made, quantized_model=replace(details.quantized_model, metadata=metadata)
        )
        view = view_of(small(details=changed))
        assert view.hashes[2:] == [*kinds, ("calibration data", "", "aa"), ("calibration data", "", "bb")]
        assert [name for name, _ in view.settings] == ["opset", "IR version"]
