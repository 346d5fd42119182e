"""What replay in a simulator found: as a table on the console, and as a section of the report with a filmstrip."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actionpiece.report.text import esc, esc_name, plain


def _table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of text: success, task by task, how far the hand strayed, the paired test."""
    heads = ["commands", "succeeded", "95 % interval", *results["tasks"], "mm", "degrees", "p, raw"]
    against = {pair["second"]: pair["p"] for pair in results["pairs"] if pair["first"] == results["rows"][0]["name"]}
    lines = []
    for row in results["rows"]:
        by_task = [row["tasks"][task] for task in results["tasks"]]
        p = against.get(row["name"])
        lines.append(
            [
                row["name"],
                f"{row['successes']}/{row['episodes']}",
                f"{100 * row['low']:.0f}-{100 * row['high']:.0f} %",
                *(f"{share['successes']}/{share['episodes']}" for share in by_task),
                f"{row['mm']:.1f}",
                f"{row['degrees']:.2f}",
                "" if p is None else f"{p:.2g}",
            ]
        )
    return heads, lines


def show_replay(console: Console, results: dict[str, Any]) -> None:
    """Print the table, a column for each contender: there are often more tasks than fit beside each other."""
    (first, *heads), lines = _table(results)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for name, *_ in lines:
        table.add_column(Text(plain(name)), justify="right", overflow="fold")
    for number, heading in enumerate(heads, 1):
        table.add_row(Text(heading), *(line[number] for line in lines))
    console.print(table)


def replay_section(results: dict[str, Any], strip: dict[str, Any] | None) -> str:
    """The section of the report. strip: what `evaluation.replay.filmstrip` returns."""
    heads, lines = _table(results)
    head = "".join(f'<th scope="col">{esc(text)}</th>' for text in heads)
    body = ""
    for name, *figures in lines:
        cells = "".join(f"<td>{esc(figure)}</td>" for figure in figures)
        body += f'<tr><th scope="row">{esc_name(name)}</th>{cells}</tr>\n'
    table = f"""<p class="note">Demonstrations executed open loop in the simulator after encoding and decoding,
each from its own start, the same starts for all. Millimetres and degrees are how far the hand is from where the raw
commands have it, on average over steps and episodes. p is that of McNemar's exact test on the starts where the two
differ.</p>
<div class="scroll" role="region" aria-label="Replay in the simulator" tabindex="0">
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table>
</div>"""
    return table + (_strip(strip) if strip else "")


def _strip(strip: dict[str, Any]) -> str:
    if "problem" in strip:
        return f'<p class="note">No pictures: {esc(strip["problem"])}</p>'
    what = f"{strip['task']}, start {strip['seed']}: raw commands above, {strip['name']} below"
    picture = base64.b64encode(strip["png"]).decode()
    return f"""<figure><img class="film" src="data:image/png;base64,{picture}" alt="{esc(what)}">
<figcaption>{esc(what)}. The same start; the upper row succeeds, the lower one does not.</figcaption></figure>"""


def strip_png(rows: Sequence[Sequence[np.ndarray]]) -> bytes:
    """Rows of pictures (size, size, 3) as one PNG, with thin gaps."""
    from PIL import Image

    gap = 4
    size = rows[0][0].shape[0]
    sheet = np.full((len(rows) * (size + gap) - gap, len(rows[0]) * (size + gap) - gap, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row):
            sheet[i * (size + gap) :, j * (size + gap) :][:size, :size] = picture
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "png", optimize=True)
    return stream.getvalue()


def save_strip(path: Path, strip: dict[str, Any]) -> None:
    """Write a filmstrip's picture."""
    from actionpiece.files import writing

    with writing(path) as aside:
        aside.write_bytes(strip["png"])
