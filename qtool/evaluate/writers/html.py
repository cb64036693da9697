"""A report as one HTML file that needs nothing else: no network, no script to be read.

The template is rendered with automatic escaping, the charts are inline SVG, and the page's own policy allows only the
style sheet and the script that stand in it, by their hashes: whatever a model calls its nodes stays text.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from qtool.errors import ConfigError
from qtool.evaluate.report import Report

if TYPE_CHECKING:
    from qtool.evaluate.candidates import Comparison

NEEDED = ("jinja2", "matplotlib")


def require() -> None:
    """Check that what the HTML report is made with is installed: to be asked before any work.

    Raises:
        ConfigError: If it is not.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The HTML report needs {' and '.join(missing)}, not installed here: pip install 'qtool[report]'."
        )


def write(report: Report, stream: TextIO) -> None:
    """Write the page of an evaluation.

    Raises:
        ConfigError: If jinja2 or matplotlib is not installed.
    """
    require()
    from qtool.evaluate.writers._view import view_of

    _write("report.html.j2", view_of(report), stream)


def write_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Write the page of a comparison of candidates.

    Raises:
        ConfigError: If jinja2 or matplotlib is not installed.
    """
    require()
    from qtool.evaluate.writers._comparison_view import view_of_comparison

    _write("comparison.html.j2", view_of_comparison(comparison), stream)


def _write(name: str, view: object, stream: TextIO) -> None:
    import jinja2
    from markupsafe import Markup

    folder = files("qtool.evaluate.writers") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda one: (folder / one).read_text(encoding="utf-8")),
    )
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    page = environment.get_template(name).render(
        view=view,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
        drawn=Markup,
    )
    stream.write(page)
    if not page.endswith("\n"):
        stream.write("\n")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
