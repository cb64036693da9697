"""A drawing by matplotlib as inline SVG: the same bytes each time, themed by the page's style sheet, safe for any name.

Three things are done to what matplotlib writes. Style attributes become presentation attributes, so that a page whose
policy allows no styles but its own shows them. Colours become classes, so that a dark page has dark charts. Text is put
in at the end, by its number, so that matplotlib neither reads a name as mathematics nor looks for its glyphs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Literal
from xml.etree import ElementTree

COLORS = (
    *("ink", "muted", "line", "surface", "accent"),
    *("weight", "axis", "clipping", "rounding", "saturation", "none"),
    *("float", "code", "other"),
)
"""Names of the page's colours; its style sheet has a class ``f-NAME`` (fill) and ``s-NAME`` (stroke) for each."""
_CODES = {name: f"#0000{index + 1:02x}" for index, name in enumerate(COLORS)}
_NAMES = {code: name for name, code in _CODES.items()}
_SHARED = ("font-family", "stroke-linejoin", "stroke-linecap")  # the style sheet has these once
_ANCHORS: dict[str, Literal["left", "center", "right"]] = {"start": "left", "middle": "center", "end": "right"}


class Drawing:
    """Shapes in a coordinate system of pixels whose origin is at the top left.

    Args:
        width: Pixels.
        height: Pixels.
        salt: Makes the names inside differ from those of the other drawings of a page.
    """

    def __init__(self, width: float, height: float, salt: str) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D

        self.width, self.height = width, height
        self._salt = salt
        self._texts: list[tuple[str, str]] = []
        # without axes, which would be most of the work; at this resolution a pixel is a unit of the SVG
        self._figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        self._place = Affine2D().scale(1, -1).translate(0, height)
        FigureCanvasSVG(self._figure)

    def rectangle(self, x: float, y: float, width: float, height: float, color: str, opacity: float = 1.0) -> None:
        """A filled box."""
        from matplotlib.patches import Rectangle

        box = Rectangle(
            (x, y), width, height, facecolor=_CODES[color], edgecolor="none", alpha=opacity, transform=self._place
        )
        self._figure.add_artist(box)

    def line(self, x: Sequence[float], y: Sequence[float], color: str, width: float = 1.0) -> None:
        """A line through points."""
        from matplotlib.lines import Line2D

        drawn = Line2D(x, y, color=_CODES[color], linewidth=width, solid_capstyle="butt", transform=self._place)
        self._figure.add_artist(drawn)

    def steps(self, edges: Sequence[float], tops: Sequence[float], bottom: float, color: str) -> None:
        """A filled histogram: a top for each pair of neighbouring edges."""
        from matplotlib.patches import StepPatch

        drawn = StepPatch(
            tops, edges, baseline=bottom, fill=True, facecolor=_CODES[color], edgecolor="none", transform=self._place
        )
        self._figure.add_artist(drawn)

    def dot(self, x: float, y: float, color: str, size: float = 7.0, *, hollow: bool = False) -> None:
        """A disc, or a ring."""
        from matplotlib.lines import Line2D

        inside = _CODES["surface" if hollow else color]
        drawn = Line2D(
            [x], [y], marker="o", markersize=size, markerfacecolor=inside, markeredgecolor=_CODES[color],
            markeredgewidth=1.6, linestyle="none", transform=self._place,
        )  # fmt: skip
        self._figure.add_artist(drawn)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str = "ink",
        size: float = 12.0,
        anchor: str = "start",
        kind: str = "",
    ) -> None:
        """One line of text; y is its base line, ``kind`` a class of the style sheet."""
        self._texts.append((text, kind))
        self._figure.text(
            x, y, f"@{len(self._texts) - 1}@", color=_CODES[color], fontsize=size, ha=_ANCHORS[anchor], va="baseline",
            parse_math=False, transform=self._place,
        )  # fmt: skip

    def svg(self, label: str) -> str:
        """The drawing as an element of a page.

        Args:
            label: What it shows, for those who do not see it.
        """
        import matplotlib

        stream = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self._salt, "path.simplify": False}):
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self._figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
        root = ElementTree.fromstring(stream.getvalue())
        _clean(root, self._texts)
        root.attrib.clear()
        root.attrib |= {"viewBox": f"0 0 {self.width:g} {self.height:g}", "role": "img", "aria-label": label}
        root.attrib |= {"width": f"{self.width:g}", "height": f"{self.height:g}", "class": "chart"}
        return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _clean(root: ElementTree.Element, texts: Sequence[tuple[str, str]]) -> None:
    used = set(re.findall(r"#([A-Za-z_][\w.-]*)", " ".join(" ".join(e.attrib.values()) for e in root.iter())))
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        classes = []
        for declaration in attributes.pop("style", "").split(";"):
            name, _, value = (part.strip() for part in declaration.partition(":"))
            if name in ("fill", "stroke") and value in _NAMES:
                classes.append(f"{name[0]}-{_NAMES[value]}")
            elif name and name not in _SHARED:
                attributes[name] = value
        if element.tag == "text":
            number = int((element.text or "@0@").strip("@"))
            element.text, kind = texts[number]
            classes += [kind] if kind else []
            attributes.pop("transform", None)  # a turn by nothing
        else:
            element.text = None
        if "d" in attributes:
            attributes["d"] = " ".join(attributes["d"].split())
        if classes:
            attributes["class"] = " ".join(classes)
        element.attrib.clear()
        element.attrib |= attributes
