"""The head of the report: what was scored, and one sentence on what came out."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from actionpiece.data.opening import RECORDED
from actionpiece.report.tables import Column, Row, cells, columns
from actionpiece.report.text import E4, listed, plain


def title_of(results: dict[str, Any]) -> str:
    """What the report is about; generated data is never called anything else."""
    data = results["data"]
    if data["generated"]:
        title = "Action tokenizers on generated demonstrations"
    elif data["name"] == RECORDED:
        title = "Action tokenizers on the demonstrations recorded with this package"
    else:
        title = f"Action tokenizers on {plain(data['name'])}"
    return f"{title}: {plain(results['table']['name'])}" if "table" in results else title


def header_facts(results: dict[str, Any]) -> list[str]:
    """Short facts: how many chunks of which split and length, PRC's k, and when."""
    protocol, data, rows = results["protocol"], results["data"], results["rows"]
    split = protocol["split"]
    held = data["split"].get(split, data["episodes"] if split == "all" else None)
    horizon = protocol["horizon"]
    seconds = f" ({horizon / data['rate']:.3g} s)" if data["rate"] else ""
    episodes = f", {held:,} episodes" if held is not None else ""
    created = datetime.datetime.fromisoformat(results["created"])
    return [
        f"Data: {plain(data['name'])}" + (" (generated demonstrations)" if data["generated"] else ""),
        f"{rows[0]['n']:,} chunks of the {split if split != 'all' else 'whole data'}"
        + (" split" if split != "all" else "")
        + episodes,
        f"H = {horizon} steps{seconds}, {data['dim']} columns",
        f"PRC with k = {protocol['k']} neighbours",
        f"{len(rows)} tokenizer{'s' if len(rows) > 1 else ''}",
        f"{created:%Y-%m-%d %H:%M} {created.tzname() or ''}".rstrip(),
    ]


def best_sentence(rows: Sequence[Row]) -> str:
    """Who has the lowest error, the best PRC and the fewest bits, in words that claim no more than was measured."""
    wanted = {column.title: column for column in columns(rows) if column.title in ("MSE", "PRC", "bits")}
    if len(rows) == 1:
        said = [f"an MSE of {_text(wanted['MSE'], rows)} {E4}"]
        said.append("no PRC" if rows[0]["prc"] is None else f"a PRC of {_text(wanted['PRC'], rows)}")
        said.append(f"{_text(wanted['bits'], rows)} bits per chunk")
        return f"On these chunks, {plain(rows[0]['name'])} has {listed(said)}."
    leads: dict[tuple[str, ...], list[str]] = {}
    alike: list[str] = []
    phrases = {
        "MSE": (f"the lowest MSE ({{}} {E4})", "MSE"),
        "PRC": ("the highest PRC ({})", "PRC"),
        "bits": ("the fewest bits per chunk ({})", "bits"),
    }
    for title, (phrase, short) in phrases.items():
        if all(wanted[title].value(row) is None for row in rows):
            continue
        best = [(row, cell) for row, cell in zip(rows, cells(wanted[title], rows), strict=True) if cell.best]
        if best:
            names = tuple(plain(row["name"]) for row, _ in best)
            leads.setdefault(names, []).append(phrase.format(best[0][1].text))
        else:
            alike.append(short)
    said = [f"{listed(names)} {'have' if len(names) > 1 else 'has'} {listed(what)}" for names, what in leads.items()]
    if alike:
        said.append(f"all are alike in {listed(alike)}")
    if all(row["prc"] is None for row in rows):
        said.append("no PRC could be measured, because no chunk's neighbours differ in distance")
    return f"On these chunks, {'; '.join(said)}."


def _text(column: Column, rows: Sequence[Row]) -> str:
    return cells(column, rows)[0].text
