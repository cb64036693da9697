"""The HTML report in a real browser: looks, themes, contrast, names that try to be more than text."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from qtool.evaluate.writers import COMPARISON_WRITERS, WRITERS
from tests.browser import HEIGHT, Browser, chromium
from tests.reports import HOSTILE, SHOWN, compared, full, small

CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const rgb = parse(getComputedStyle(e).backgroundColor);
      if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    if (element.classList.contains("on-bar")) continue;
    const style = getComputedStyle(element);
    const ink = light(parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color));
    const page = light(behind(element));
    const ratio = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${element.tagName}: ${node.data.trim().slice(0, 40)}`];
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium()
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    with path.open("w", encoding="utf-8") as stream:
        WRITERS["html"](full(HOSTILE), stream)
    return path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    with path.open("w", encoding="utf-8") as stream:
        COMPARISON_WRITERS["html"](compared(HOSTILE), stream)
    return path


@pytest.mark.parametrize("width", [400, 1280])
def test_a_comparison_fits_the_window_and_is_quiet(browser: Browser, comparison: Path, width: int):
    browser.open(comparison, width)
    assert browser.complaints() == []
    assert browser.requests() == [comparison.as_uri()]
    assert browser.value("document.documentElement.scrollWidth") == width
    image = Image.open(io.BytesIO(browser.screenshot()))
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
    levels = browser.value("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels == [1, 2, 2, 2, 2, 2]
    inside = (
        "[...document.querySelectorAll('svg.chart')].every((chart) => [...chart.querySelectorAll('text')].every((t) => "
        "t.getBBox().x >= 0 && t.getBBox().x + t.getBBox().width <= chart.viewBox.baseVal.width + 1))"
    )
    assert browser.value(inside)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_can_be_read_in_both_themes(browser: Browser, comparison: Path, scheme: str):
    browser.open(comparison, 1280, media={"prefers-color-scheme": scheme})
    browser.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where


def test_names_in_a_comparison_stay_text_and_its_table_is_sorted(browser: Browser, comparison: Path):
    browser.open(comparison, 1280)
    assert browser.value("window.pwned === undefined")
    assert browser.value("[document.scripts.length, document.styleSheets.length]") == [1, 1]
    assert SHOWN in browser.value("[...document.querySelectorAll('td.mono')].map((cell) => cell.textContent)")
    labels = browser.value("[...document.querySelectorAll('svg.chart')].map((e) => e.getAttribute('aria-label'))")
    assert [SHOWN in label for label in labels] == [True, True]
    rows = "document.querySelectorAll('table.sortable')[0].tBodies[0].rows"
    order = f"[...{rows}].map((r) => r.cells[0].textContent).join(' ')"
    click = "[...document.querySelectorAll('th button')].find((b) => b.textContent === 'size').click()"
    assert browser.value(order) == "float 1 2 3 4"
    browser.value(click)
    assert browser.value(order) == "4 2 1 3 float"
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_window_and_is_quiet(browser: Browser, page: Path, width: int):
    browser.open(page, width)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.value("document.documentElement.scrollWidth") == width
    image = Image.open(io.BytesIO(browser.screenshot()))
    assert image.size == (width, HEIGHT)
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_themes(browser: Browser, page: Path, scheme: str):
    browser.open(page, 1280, media={"prefers-color-scheme": scheme})
    browser.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    red = int(browser.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
    assert (red < 64) if scheme == "dark" else (red > 192)
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where


def test_a_hostile_name_stays_text(browser: Browser, page: Path):
    browser.open(page, 1280)
    assert browser.value("window.pwned === undefined")
    assert browser.value("document.scripts.length") == 1
    assert browser.value("document.styleSheets.length") == 1
    shown = browser.value("[...document.querySelectorAll('td.mono')].map((cell) => cell.textContent)")
    assert SHOWN in shown
    assert browser.value("document.querySelector('td.command').textContent") == f"--exclude {SHOWN}"
    assert SHOWN in browser.value("document.querySelector('pre').textContent")
    labels = browser.value("[...document.querySelectorAll('svg.chart')].map((e) => e.getAttribute('aria-label'))")
    assert any(SHOWN in label for label in labels)
    assert "\u202e" not in browser.value("document.documentElement.outerHTML")


def test_a_table_is_sorted_by_a_click_and_again_the_other_way(browser: Browser, page: Path):
    browser.open(page, 1280)
    rows = "document.querySelectorAll('table.sortable')[0].tBodies[0].rows"
    order = f"[...{rows}].map((r) => r.cells[0].textContent).join('')"
    click = "[...document.querySelectorAll('th button')].find((b) => b.textContent === 'share').click()"
    sort = "document.querySelector('th[aria-sort]').getAttribute('aria-sort')"
    assert browser.value(order) == "123"
    browser.value(click)
    assert (browser.value(order), browser.value(sort)) == ("321", "ascending")
    browser.value(click)
    assert (browser.value(order), browser.value(sort)) == ("123", "descending")
    assert browser.complaints() == []


def test_it_is_whole_without_its_script(browser: Browser, page: Path):
    text = "[document.querySelectorAll('th button').length, document.body.innerText.replace(/[↕\\s]/g, '')]"
    browser.open(page, 1280)
    buttons, scripted = browser.value(text)
    browser.open(page, 1280, scripts=False)
    none, plain = browser.value(text)
    assert (buttons > 10, none) == (True, 0)
    assert plain == scripted


def test_headings_do_not_skip_a_level_and_charts_have_names(browser: Browser, page: Path):
    browser.open(page, 1280)
    levels = browser.value("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels.count(1) == 1
    assert all(later - sooner <= 1 for sooner, later in itertools.pairwise(levels))
    unnamed = (
        "[...document.querySelectorAll('svg')].filter((e) => !e.closest('[aria-hidden=true],[aria-label]')).length"
    )
    assert browser.value(unnamed) == 0
    assert browser.value("[document.documentElement.lang, document.title.length > 0]") == ["en", True]


def test_a_report_of_little_is_whole_too(browser: Browser, tmp_path: Path):
    path = tmp_path / "small.html"
    with path.open("w", encoding="utf-8") as stream:
        WRITERS["html"](small(), stream)
    browser.open(path, 400)
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") == 400
    assert "measured, no gates" in browser.value("document.querySelector('#verdict').textContent")
