"""The report of a comparison: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError
from actionpiece.report.looks import looks, style_sheet
from actionpiece.report.method import method
from actionpiece.report.page import absent, taken, timed_alike
from actionpiece.report.replay import replay_section
from actionpiece.report.scores import score_table
from actionpiece.report.summary import best_sentence, header_facts, title_of
from actionpiece.report.text import esc

_CODE = re.compile("`([^`]+)`")  # names, as Markdown marks them
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="kicker">actionpiece compare</p>
<h1>{title}</h1>
{notice}<p class="lead">{lead}</p>
<ul class="facts">{facts}</ul>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{sections}</main>
<script>{script}</script>
</body>
</html>
"""
_GENERATED = """<p class="notice"><strong>Generated demonstrations, not recorded from any robot.</strong>
They show how the tools work; choose a tokenizer on your own data.</p>
"""


def write_report(path: Path, results: dict[str, Any], drawings: dict[str, Any]) -> None:
    """Write the report of `compare` to `path`.

    results: what `compare` writes to results.json. drawings: what `evaluation.kept.drawings` returns, of all rows, some
    or none; arrays may be lists, and missing values NaN or None. The same input gives the same file.
    """
    if not results["rows"]:
        raise ActionPieceError("there is nothing to report: no tokenizer was scored")
    path.write_text(page(results, drawings), encoding="utf-8")


def page(results: dict[str, Any], drawings: dict[str, Any]) -> str:
    """The whole document."""
    from actionpiece.report import pictures  # loads matplotlib, which those who only print a table need not wait for

    rows = results["rows"]
    names = [row["name"] for row in rows]
    shown, alike = looks(names), timed_alike(results, names)
    replayed = {}
    if "replay" in results:
        replayed["replay"] = ("Replay in the simulator", replay_section(results["replay"], drawings.get("filmstrip")))
    sections = {
        "scores": ("Scores", _table_note(results) + score_table(rows, shown, timed_alike=alike)),
        "tradeoff": ("Trade-off", pictures.tradeoff(rows, shown)),
        "groups": ("Errors in physical units", pictures.groups(rows, shown)),
        "spread": ("Spread over chunks", pictures.spread(drawings, shown)),
        "chunks": ("Example chunks", pictures.example_chunks(drawings, shown)),
        **replayed,
        "codes": ("Codebook use", pictures.codes(rows, drawings, shown)),
        "method": ("How it was measured", method(results)),
    }
    script = _text("sort.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        # The policy lets a browser run this one script and load nothing, whatever a name or a note may hold.
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        title=esc(title_of(results)),
        style=f"{style_sheet()}\n{_text('style.css')}",
        notice=_GENERATED if results["data"]["generated"] else "",
        lead=esc(best_sentence(rows)),
        facts="".join(f"<li>{esc(fact)}</li>" for fact in header_facts(results)),
        links="".join(f'<a href="#{ident}">{title}</a>' for ident, (title, _) in sections.items()),
        sections="".join(_section(ident, title, body) for ident, (title, body) in sections.items()),
        script=script,
    )


def _table_note(results: dict[str, Any]) -> str:
    """What the table is, where a comparison has several, who is missing from it, and whose rows are older."""
    table = results.get("table", {"name": "", "about": ""})
    about = f"<p>{_marked(table['about'])}</p>\n" if table["about"] else ""
    notes = [*map(esc, absent(results, table["name"])), *map(_marked, taken(results))]
    return about + "".join(f'<p class="note">{note}</p>\n' for note in notes)


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", esc(text))


def _section(ident: str, title: str, body: str) -> str:
    head = f'<section id="{ident}" aria-labelledby="{ident}-title">\n<h2 id="{ident}-title">{title}</h2>'
    return f"{head}\n{body}\n</section>\n"


def _text(name: str) -> str:
    return resources.files("actionpiece.report").joinpath(name).read_text(encoding="utf-8")
