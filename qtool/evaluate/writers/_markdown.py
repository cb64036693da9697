"""Markdown as GitHub and GitLab read it, safe for names that come from a model file.

A name must not break a table, start a tag or a link, or mention a person or an issue. Names stand in code spans, where
only backticks and the bars of a table have a meaning; other text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*\[\]<>#|~&:$]|\b_|_\b)")
_ZERO_WIDTH_SPACE = "\u200b"


def one_line(text: str) -> str:
    """Text whose control characters, line breaks among them, are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def code(text: str) -> str:
    """A code span, also in a cell of a table.

    Args:
        text: Anything; what is empty is shown as a dash.
    """
    shown = one_line(text)
    if not shown.strip():
        return "-"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    # a space next to each fence is not part of the text; needed where the text begins or ends with a backtick
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def plain(text: str) -> str:
    """Text in which nothing is markup: punctuation is escaped, and a person's name is not called."""
    return _SPECIAL.sub(r"\\\1", one_line(text)).replace("@", f"@{_ZERO_WIDTH_SPACE}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of a table.

    Args:
        columns: Headings, which are markup.
        rows: Cells, which are markup.
        left: How many columns are text; the others are figures and stand to the right.
    """
    rule = [":---" if index < left else "---:" for index in range(len(columns))]
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]
