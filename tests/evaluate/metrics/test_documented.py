"""docs/metrics.md says of every metric what the registry says."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pytest

from qtool.evaluate.gates import parse_gate
from qtool.evaluate.metrics import METRICS, PRIMARY
from qtool.evaluate.metrics.base import LabelKind
from qtool.evaluate.settings import EvalSettings

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
KINDS = {
    "classes": LabelKind.CLASSES,
    "positions": LabelKind.TOKENS,
    "map": LabelKind.MAP,
    "targets": LabelKind.TARGETS,
    "sequences": LabelKind.SEQUENCES,
}
ROWS = {
    name: [cell.strip() for cell in cells.split("|")]
    for name, cells in re.findall(r"^\| `(\w+)` \|(.*)\|$", DOCUMENT.split("## Labels")[0], re.MULTILINE)
}


def number(text: str) -> float:
    return {"∞": math.inf, "−∞": -math.inf, "ln 2": math.log(2)}.get(text) or float(text.replace("−", "-"))


def kinds(text: str) -> frozenset[LabelKind]:
    return frozenset(KINDS[word.strip()] for word in text.split(",") if word.strip())


def test_every_metric_has_a_row() -> None:
    assert list(ROWS) == list(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_row_says_what_the_registry_says(name: str) -> None:
    metric = METRICS[name]
    formula, bounds, better, labels, unasked = ROWS[name]
    assert formula
    assert tuple(number(end) for end in bounds.split(" to ")) == metric.bounds
    assert better == ("higher" if metric.higher_is_better else "lower")
    assert kinds(labels) == metric.kinds
    assert bool(metric.kinds) == metric.needs_labels
    if metric.needs_labels:
        assert kinds(unasked) == metric.default_for
    else:
        assert unasked == ("yes" if metric.default else "")


def test_accuracy_is_what_the_table_of_labels_says() -> None:
    table = DOCUMENT.split("## Labels")[1].split("## Intervals")[0]
    for word, kind in KINDS.items():
        (line,) = [line for line in table.splitlines() if re.search(rf"\| {word}\b", line)]
        assert line.rstrip(" |").endswith(f"`{PRIMARY[kind]}`")


@pytest.mark.parametrize("name", METRICS)
def test_a_module_has_its_formula(name: str) -> None:
    text = importlib.import_module(f"qtool.evaluate.metrics.{name}").__doc__ or ""
    assert "Source" in text or name in ("top1_agreement", "flip_margin")
    assert "``None``" in text or "Not defined" in text or name == "top1"


def test_examples_are_taken(tmp_path: Path) -> None:
    for option, text in re.findall(r"`(--fail-\w+) ([^`]+)`", DOCUMENT):
        if "MODULE" not in text:
            parse_gate(text, over=option == "--fail-over")
    path = tmp_path / "qtool.toml"
    path.write_text(DOCUMENT.split("```toml\n")[1].split("```")[0])
    assert len(EvalSettings.from_toml(path).gates()) == 4
