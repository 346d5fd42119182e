"""The report of a comparison: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from actionpiece.errors import ActionPieceError
from actionpiece.report import chunks, figures
from actionpiece.report.looks import Look, looks, style_sheet, swatch
from actionpiece.report.method import method
from actionpiece.report.summary import best_sentence, header_facts, title_of
from actionpiece.report.tables import Row, cells, columns
from actionpiece.report.text import esc, listed
from actionpiece.report.text import figure as written

Looks = dict[str, Look]


def write_report(path: Path, results: dict[str, Any], drawings: dict[str, Any]) -> None:
    """Write the report of `compare` to `path`.

    results: what `compare` writes to results.json. drawings: what `evaluation.compare.drawings` returns; arrays may
    be lists, and missing values NaN or None. The same input gives the same file.
    """
    if not results["rows"]:
        raise ActionPieceError("there is nothing to report: no tokenizer was scored")
    path.write_text(page(results, drawings), encoding="utf-8")


def page(results: dict[str, Any], drawings: dict[str, Any]) -> str:
    """The whole document."""
    rows: list[Row] = results["rows"]
    shown = looks([row["name"] for row in rows])
    style = style_sheet() + "\n" + _text("style.css")
    script = _text("sort.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The policy lets a browser run this one script and load nothing, whatever a name or a note may hold.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = esc(title_of(results))
    sections = (_scores(rows, shown), *_pictures(rows, drawings, shown), method(results))
    return f"""<!DOCTYPE html>
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
{_header(results)}
<main>
{"".join(sections)}</main>
<script>{script}</script>
</body>
</html>
"""


def _text(name: str) -> str:
    return resources.files("actionpiece.report").joinpath(name).read_text(encoding="utf-8")


def _header(results: dict[str, Any]) -> str:
    warning = ""
    if results["data"]["generated"]:
        note = "These are generated demonstrations, not recorded from any robot. They show that the tools work; "
        warning = f'<p class="notice"><strong>{note}</strong>choose a tokenizer on your own data.</p>\n'
    facts = "".join(f"<li>{esc(fact)}</li>" for fact in header_facts(results))
    contents = (("scores", "Scores"), ("tradeoff", "Trade-off"), ("groups", "Errors in physical units"))
    contents += (("spread", "Spread"), ("chunks", "Example chunks"), ("codes", "Codebook use"), ("method", "Method"))
    links = "".join(f'<a href="#{ident}">{text}</a>' for ident, text in contents)
    return f"""<header>
<p class="kicker">actionpiece compare</p>
<h1>{esc(title_of(results))}</h1>
{warning}<p class="lead">{esc(best_sentence(results["rows"]))}</p>
<ul class="facts">{facts}</ul>
<nav aria-label="Sections">{links}</nav>
</header>"""


def _section(ident: str, title: str, body: str) -> str:
    return f'<section id="{ident}" aria-labelledby="{ident}-title">\n<h2 id="{ident}-title">{title}</h2>\n{body}\n</section>\n'


def _scores(rows: Sequence[Row], shown: Looks) -> str:
    all_columns = columns(rows)
    body = [cells(column, rows) for column in all_columns]
    parts: dict[str, int] = {}
    for column in all_columns:
        parts[column.part] = parts.get(column.part, 0) + 1
    starts = {sum(list(parts.values())[:i]) for i in range(len(parts))}  # where a thin line separates the parts
    groups = "".join(f'<th scope="colgroup" colspan="{n}" class="part">{part}</th>' for part, n in parts.items())
    heads = ""
    for i, column in enumerate(all_columns):
        unit = f'<span class="unit">{esc(column.unit)}</span>' if column.unit else ""
        heads += (
            f'<th scope="col" data-column="{i + 1}" data-first="{"descending" if column.better == "high" else "ascending"}" '
            f'title="{esc(column.meaning)}"{_edge(i, starts)}>{esc(column.title)}{unit}</th>'
        )
    lines = ""
    for r, row in enumerate(rows):
        figures_ = ""
        for i, column in enumerate(body):
            cell = column[r]
            value = "" if cell.value is None else f' data-value="{cell.value!r}"'
            text = f"<strong>{esc(cell.text)}</strong>" if cell.best else esc(cell.text)
            figures_ += f"<td{value}{_edge(i, starts, 'best' if cell.best else '')}>{text}</td>"
        name = f"{swatch(shown[row['name']], line=False)}<span>{esc(row['name'])}</span>"
        lines += f'<tr><th scope="row" data-value="{esc(row["name"])}"><div class="name">{name}</div></th>{figures_}</tr>\n'
    legend = "".join(f"<div><dt>{esc(column.heading)}</dt><dd>{esc(column.meaning)}</dd></div>" for column in all_columns)
    marked = "The best of each column is in bold on a tinted ground. " if len(rows) > 1 else ""
    return _section(
        "scores",
        "Scores",
        f"""<p class="note">{marked}A dash means that there is nothing to measure.
<span class="needs-script" hidden>Choose a column's heading to sort by it.</span></p>
<div class="scroll" role="region" aria-label="Scores of all tokenizers" tabindex="0">
<table class="sortable scores">
<thead>
<tr><th rowspan="2" scope="col" data-column="0" data-first="ascending">tokenizer</th>{groups}</tr>
<tr>{heads}</tr>
</thead>
<tbody>
{lines}</tbody>
</table>
</div>
<details class="legend"><summary>What the columns mean</summary><dl>{legend}</dl></details>""",
    )


def _edge(i: int, starts: set[int], more: str = "") -> str:
    names = " ".join(filter(None, ("edge" if i in starts else "", more)))
    return f' class="{names}"' if names else ""


def _key(shown: Looks, *, line: bool, original: bool = False) -> str:
    first = '<li><svg class="swatch" viewBox="0 0 28 14" aria-hidden="true"><path d="M0 7H28" stroke="var(--ink)" '
    first += 'stroke-width="4" opacity=".4"/><circle cx="14" cy="7" r="3" fill="var(--ink)"/></svg>original</li>'
    items = "".join(f"<li>{swatch(look, line=line)}{esc(name)}</li>" for name, look in shown.items())
    return f'<ul class="key">{first if original else ""}{items}</ul>'


def _figure(caption: str, *drawn: str, kind: str = "pair") -> str:
    return f'<figure><div class="{kind}">{"".join(drawn)}</div>\n<figcaption>{caption}</figcaption></figure>'


def _pictures(rows: Sequence[Row], drawings: dict[str, Any], shown: Looks) -> list[str]:
    without = [esc(row["name"]) for row in rows if row["prc"] is None]
    missing = f" {listed(without)}: no PRC, so not drawn on the left." if without else ""
    scatters = [figures.tradeoff(rows, shown, "f-tradeoff")] if len(without) < len(rows) else []
    how = "<strong>Left:</strong> error against neighbourhoods kept; the good corner is at the top left, and the number "
    how += "after a name is its bits per chunk. <strong>Right:</strong> what precision costs; towards the bottom left, less "
    how += "error for fewer bits. Errors are on a logarithmic axis, and the axis of PRC stretches towards 1: 0.9, 0.99 and "
    how += "0.999 are equally far apart."
    if not scatters:
        how = "What precision costs: towards the bottom left, less error for fewer bits. No tokenizer has a PRC here."
        missing = ""
    scatters.append(figures.cost(rows, shown, "f-cost"))
    groups = [group["name"] for group in rows[0]["groups"]]
    bars = "".join(
        f"<div><h3>{esc(group)}</h3>{figures.group_bars(rows, group, shown, f'f-group{i}')}</div>"
        for i, group in enumerate(groups)
    )
    spread = "Every line is one tokenizer: the thin line runs from the smallest to the largest value, the thick one from "
    spread += "the 5th to the 95th percentile, the box from the 25th to the 75th; the marker is the median and the dark "
    spread += "stroke the mean. <strong>Left:</strong> how well the order of each anchor's neighbours is kept; its mean is "
    spread += "the PRC, and a long tail to the left means that some motions are confused although the average is good. "
    spread += "<strong>Right:</strong> the error of single chunks, on a logarithmic axis."
    codes = "<strong>Left:</strong> the codes of each vocabulary, most frequent first; the horizontal line at 1 is an even "
    codes += "use of all codes, and a curve that ends before 100 % leaves the rest unused. <strong>Right:</strong> the pale "
    codes += "bar is the share of codes that occur at all, the full bar the share that the tokens are worth (perplexity)."
    return [
        _section("tradeoff", "Trade-off", _figure(how + missing, *scatters)),
        _section(
            "groups",
            "Errors in physical units",
            _figure(
                "Bars are root mean square errors over all steps, in the unit below each panel; the largest error of any "
                "step is written beside them. A flip is a step at which a gripper command crosses from open to closed or back.",
                bars,
            ),
        ),
        _section(
            "spread",
            "Spread over chunks",
            _figure(
                spread,
                figures.rank_strips(drawings["rho"], shown, "f-rho"),
                figures.error_strips(drawings["chunk_mse"], shown, "f-error"),
            ),
        ),
        _section("chunks", "Example chunks", _examples(drawings, shown)),
        _section(
            "codes",
            "Codebook use",
            _key(shown, line=True)
            + _figure(
                codes,
                figures.code_curves(drawings["code_counts"], shown, "f-codes"),
                figures.code_bars(rows, shown, "f-used"),
            ),
        ),
    ]


def _examples(drawings: dict[str, Any], shown: Looks) -> str:
    labels: list[str] = list(drawings["labels"])
    found = chunks.examples(drawings)
    span = chunks.spans(found)
    unit = f", {1 / drawings['rate']:.3g} s each" if drawings["rate"] else ""
    out = f'<p class="note">Raw command values over the steps of a chunk{unit}. The wide grey line with dots is the '
    out += "original, the coloured lines are what each tokenizer gave back. Where a chunk is shown as the worst of a "
    out += f"tokenizer, that tokenizer is drawn in front and the others thinner.</p>\n{_key(shown, line=True, original=True)}"
    for number, example in enumerate(found):
        picked = chunks.columns_to_show(example, span)
        panels = "".join(
            chunks.column_panel(example, c, labels[c], float(span[c]), shown, f"f-chunk{number}-{c}") for c in picked
        )
        errors = ", ".join(f"{esc(name)} {written(1e4 * mse)}" for name, mse in example.mse.items())
        caption = f"Chunk {example.index}. MSE ×10⁻⁴: {errors}."
        if len(picked) < len(labels):
            caption += f" Shown are the {len(picked)} of {len(labels)} columns with the largest error relative to their range."
        why = esc("; ".join(example.why))
        out += f"<details{' open' if number < 2 else ''}><summary>{why[:1].upper()}{why[1:]}</summary>\n"
        out += f"{_figure(caption, panels, kind='panels')}</details>\n"
    return out
