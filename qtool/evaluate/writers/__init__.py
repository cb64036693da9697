"""Forms of a report. A writer computes nothing: every figure comes from the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TextIO

from qtool.evaluate.candidates import Comparison
from qtool.evaluate.report import Report
from qtool.evaluate.writers import comparison, html, json_text, junit, markdown, table

WRITERS: Mapping[str, Callable[[Report, TextIO], None]] = {
    "table": table.write,
    "json": json_text.write,
    "markdown": markdown.write,
    "junit": junit.write,
    "html": html.write,
}
"""Every form by name: ``write(report, stream)``."""

COMPARISON_WRITERS: Mapping[str, Callable[[Comparison, TextIO], None]] = {
    "json": json_text.write,
    "markdown": comparison.write_markdown,
    "junit": junit.write_comparison,
    "html": html.write_comparison,
}
"""The same of a comparison of candidates."""

__all__ = ["COMPARISON_WRITERS", "WRITERS"]
