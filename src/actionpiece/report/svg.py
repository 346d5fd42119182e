"""From a matplotlib figure to SVG that can stand inside a page, beside others, in light and in dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from actionpiece.report.looks import GRID, INK, MUTED, VARIABLES

_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud, and is set in the page's font
    "svg.hashsalt": "actionpiece",  # ids would be random otherwise
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "path.simplify": True,
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, and is wider than what browsers put in its place
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.solid_capstyle": "round",
}
_REFERENCE = re.compile(r"#([\w-]+)")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_LONG = re.compile(r"-?\d+\.\d{2,}")
_NUMERIC = ("d", "x", "y", "width", "height", "transform", "viewBox")


@contextmanager
def drawing() -> Iterator[None]:
    """The house style for figures made inside the block, and for nothing else in the program."""
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Matplotlib only measures the text; the browser has the glyphs that its font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline(figure: Figure, ident: str, alt: str) -> str:
    """The figure as an `<svg>` element; `ident` must differ between the figures of a page, `alt` is read aloud."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # The style element would apply to the whole page; the page's own sheet says the same of figures only.
            if child.tag.endswith("}metadata") or any(part.tag.endswith("}style") for part in child):
                parent.remove(child)
    _clean(root, ident)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": alt, "class": "figure"}
    return ElementTree.tostring(root, encoding="unicode")


def _clean(root: ElementTree.Element, ident: str) -> None:
    """Drop namespaces, unused ids and needless digits; make the ids that remain unique; name the colours."""
    used = {name for e in root.iter() for value in e.attrib.values() for name in _REFERENCE.findall(value)}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        for key, value in attributes.items():
            if key == "id":
                value = f"{ident}-{value}"
            elif key in ("href", "clip-path"):
                value = value.replace("#", f"#{ident}-")
            elif key == "style":
                value = _COLOUR.sub(_variable, value)
            elif key in _NUMERIC:
                value = _LONG.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), value)
            attributes[key] = " ".join(value.split()) if key == "d" else value
        element.attrib = attributes
        if element.tag != "text":
            element.text = None
        element.tail = None


def _variable(match: re.Match[str]) -> str:
    name = VARIABLES.get(match[0])
    return f"var(--{name}, {match[0]})" if name else match[0]
