"""Text that is safe to show: names and notes come from files and command lines, and may hold anything."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

MISSING = "\N{EN DASH}"  # where there is nothing to measure
E4, E3 = "\N{MULTIPLICATION SIGN}10⁻⁴", "\N{MULTIPLICATION SIGN}10⁻³"  # the scales in which MSE and L1 are written


def plain(text: object) -> str:
    """One printable line: control characters and lone surrogates, which no page may hold, become spaces or dots."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "·" for c in str(text))


def esc(text: object) -> str:
    """`plain` text, escaped for HTML content and quoted attributes."""
    return html.escape(plain(text), quote=True)


def esc_markdown(text: object) -> str:
    """`plain` text, escaped for Markdown, also for the cells of its tables."""
    line = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    for sign in "|*_`[]":
        line = line.replace(sign, f"\\{sign}")
    return line


def esc_name(name: object) -> str:
    """A tokenizer's name for HTML. Where a line is too short for it, it breaks before a setting, not within a word."""
    return esc(name).replace(":", ":<wbr>")


def shorten(text: object, limit: int) -> str:
    """At most `limit` characters; the middle goes first, because variants of one tokenizer differ at the end."""
    line = plain(text)
    if len(line) <= limit:
        return line
    tail = (limit - 1) // 2
    return f"{line[: limit - 1 - tail]}…{line[-tail:]}"


def distinct(texts: Sequence[str], limit: int) -> list[str]:
    """All texts as `shorten` has them, with as many more characters as it takes to tell them apart."""
    whole = len({plain(text) for text in texts})
    for longer in range(limit, max(map(len, texts), default=0) + 1):
        short = [shorten(text, longer) for text in texts]
        if len(set(short)) == whole:
            return short
    return [plain(text) for text in texts]


def listed(items: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(items)
    return f"{', '.join(first)} and {last}" if first else last


def counted(number: int, what: str) -> str:
    """`1 group`, `2 groups`"""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def figure(value: float, digits: int = 3) -> str:
    """A number with about `digits` significant digits and no exponent where a person would write none."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-5 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, decimals):,.{decimals}f}"
