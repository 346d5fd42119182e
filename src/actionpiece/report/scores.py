"""The table of scores, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from actionpiece.report.looks import Look, swatch
from actionpiece.report.tables import Cell, Column, Row, cells, columns
from actionpiece.report.text import esc, esc_name

_FIRST = ("Cost of a chunk", "What is lost", "Neighbourhoods kept")  # what is asked for first


def score_table(rows: Sequence[Row], looks: dict[str, Look], *, timed_alike: bool = True) -> str:
    """All columns, sortable where scripts run, with a legend of them; in two tables, so that both fit a page.

    timed_alike: see `columns`.
    """
    shown = columns(rows, timed_alike=timed_alike)
    first = [column for column in shown if column.part in _FIRST]
    rest = [column for column in shown if column.part not in _FIRST]
    legend = "".join(f"<div><dt>{esc(c.heading)}</dt><dd>{esc(c.meaning)}</dd></div>" for c in shown)
    but = "" if timed_alike else ", but for speeds, which are of several machines or versions,"
    marked = f"The best of each column{but} is in bold on a tinted ground. " if len(rows) > 1 else ""
    return f"""<p class="note">{marked}A dash means that there is nothing to measure.
<span class="needs-script" hidden>Choose a column's heading to sort by it.</span></p>
{_table(first, rows, looks, "Cost, error and neighbourhoods of all tokenizers")}
{_table(rest, rows, looks, "Tokens and speed of all tokenizers")}
<details class="legend"><summary>What the columns mean</summary><dl>{legend}</dl></details>"""


def _table(shown: Sequence[Column], rows: Sequence[Row], looks: dict[str, Look], label: str) -> str:
    body = [cells(column, rows) for column in shown]
    parts: dict[str, int] = {}
    for column in shown:
        parts[column.part] = parts.get(column.part, 0) + 1
    starts = {0, *accumulate(parts.values())}  # where a thin line separates the parts
    groups = "".join(f'<th scope="colgroup" colspan="{n}" class="part">{esc(part)}</th>' for part, n in parts.items())
    heads = "".join(_head(i, column, i in starts) for i, column in enumerate(shown))
    lines = ""
    for r, row in enumerate(rows):
        name = f'<div class="name">{swatch(looks[row["name"]], line=False)}<span>{esc_name(row["name"])}</span></div>'
        figures = "".join(_cell(column[r], i in starts) for i, column in enumerate(body))
        lines += f'<tr><th scope="row" data-value="{esc(row["name"])}">{name}</th>{figures}</tr>\n'
    return f"""<div class="scroll" role="region" aria-label="{label}" tabindex="0">
<table class="sortable scores">
<thead>
<tr><th rowspan="2" scope="col" data-column="0" data-first="ascending">tokenizer</th>{groups}</tr>
<tr>{heads}</tr>
</thead>
<tbody>
{lines}</tbody>
</table>
</div>"""


def _head(i: int, column: Column, edge: bool) -> str:
    first = "descending" if column.better == "high" else "ascending"  # the first choice puts the best on top
    unit = f'<span class="unit">{esc(column.unit)}</span>' if column.unit else ""
    start = f'<th scope="col" data-column="{i + 1}" data-first="{first}" title="{esc(column.meaning)}"'
    title = esc(column.title).replace("_", "_<wbr>")  # group names are long words otherwise
    return f"{start}{_class(edge=edge)}>{title}{unit}</th>"


def _cell(cell: Cell, edge: bool) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<strong>{esc(cell.text)}</strong>" if cell.best else esc(cell.text)
    return f"<td{value}{_class(edge=edge, best=cell.best)}>{text}</td>"


def _class(**names: bool) -> str:
    given = " ".join(name for name, holds in names.items() if holds)
    return f' class="{given}"' if given else ""
