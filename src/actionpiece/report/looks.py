"""One look per tokenizer, the same in every figure and table: a colour, a marker and a line style.

Colours are kept apart for people who see colours differently (Okabe and Ito, and Tol, rearranged); from the nineteenth
tokenizer on they repeat, with another marker and line style. Every colour has a second value for dark pages. Figures
are drawn in the first, and `svg.inline` refers to both by CSS variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INK, MUTED, GRID, CARD = "#1c2126", "#5b646e", "#dfe3e7", "#fdfdfe"

_COLOURS = (  # light page, dark page
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#f0833a"),
    ("#009e73", "#2fc79b"),
    ("#b8528f", "#e08fc0"),
    ("#a87400", "#e8b13c"),
    ("#882255", "#d46a9f"),
    ("#3d9fd8", "#9ad4f5"),
    ("#7a7a1f", "#c4c455"),
    ("#4b3aa8", "#a79bf0"),
    ("#8c510a", "#cf9a5c"),
    ("#3c8d84", "#86d6cc"),
    ("#6c7680", "#aab4be"),
    ("#c1272d", "#f07f78"),
    ("#1d5c38", "#5fae7f"),
    ("#6f83d8", "#b9c6ff"),
    ("#5a3825", "#b58a70"),
    ("#1f3a5f", "#6d93c4"),
    ("#c06a86", "#f2b5c7"),
)
_PAGE = {"ink": (INK, "#e6e9ec"), "muted": (MUTED, "#a0a9b2"), "grid": (GRID, "#353c44"), "card": (CARD, "#1b2025")}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "d")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (3, 1.5))

# What a colour in a drawing is called in the style sheet.
VARIABLES: dict[str, str] = {light: name for name, (light, _) in _PAGE.items()} | {
    light: f"c{i}" for i, (light, _) in enumerate(_COLOURS)
}


@dataclass(frozen=True)
class Look:
    """How one tokenizer is drawn. dash: lengths of strokes and gaps, empty for a solid line."""

    colour: str
    marker: str
    dash: tuple[float, ...]

    @property
    def line(self) -> str | tuple[float, tuple[float, ...]]:
        """The line style in matplotlib's words."""
        return (0, self.dash) if self.dash else "-"


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for every tokenizer, by its place in the comparison."""
    return {
        name: Look(_COLOURS[i % len(_COLOURS)][0], _MARKERS[i % len(_MARKERS)], _DASHES[i % len(_DASHES)])
        for i, name in enumerate(names)
    }


def style_sheet() -> str:
    """The colours as CSS variables, for light and dark pages."""
    pairs = list(_PAGE.items()) + [(f"c{i}", pair) for i, pair in enumerate(_COLOURS)]
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in pairs) for side in (0, 1))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def swatch(look: Look, *, line: bool = True) -> str:
    """A small drawing of a look, for keys and tables."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(look.marker)
    shapes = [np.asarray(p) for p in style.get_path().transformed(style.get_transform()).to_polygons()]
    points = [" ".join(f"{14 + 8 * x:.1f},{7 - 8 * y:.1f}" for x, y in shape) for shape in shapes]
    colour = f"var(--{VARIABLES[look.colour]})"
    dash = f' stroke-dasharray="{" ".join(f"{2 * d:g}" for d in look.dash)}"' if look.dash else ""
    stroke = f'<path d="M0 7H28" stroke="{colour}" stroke-width="2"{dash}/>' if line else ""
    marks = "".join(f'<polygon points="{p}" fill="{colour}"/>' for p in points)
    view = "0 0 28 14" if line else "7 0 14 14"
    return f'<svg class="swatch" viewBox="{view}" aria-hidden="true">{stroke}{marks}</svg>'
