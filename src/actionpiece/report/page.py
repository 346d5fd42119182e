"""The Markdown page of a comparison: its tables, and how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actionpiece.report.tables import markdown_table
from actionpiece.report.text import esc_markdown, listed, plain


def markdown_page(results: dict[str, Any]) -> str:
    """Every table with the columns that are asked for first; all others are in the JSON file beside it."""
    data, protocol, rows = results["data"], results["protocol"], results["rows"]
    kind = " (generated demonstrations)" if data["generated"] else ""
    lines = [
        f"# Action tokenizers on {esc_markdown(data['name'])}{kind}",
        "",
        f"Made by `{plain(results['command'])}`." if results["command"] else "The command was not recorded.",
        f"{rows[0]['n']:,} chunks of {protocol['horizon']} steps of the {protocol['split']} episodes,"
        f" PRC@{protocol['k']}, seed {results['seed']}.",
        "MSE is in one min-max scaling for all, whatever each tokenizer uses inside. Latencies are of one chunk, on the"
        " machine named in the JSON file beside this page, which has every setting and figure"
        f"{', but for those of an earlier comparison' if results.get('known') else ''}.",
        *taken(results),
    ]
    for table in results.get("tables") or [{"name": "", "about": "", "names": [row["name"] for row in rows]}]:
        if table["name"]:
            lines += ["", f"## {esc_markdown(table['name'])}", "", table["about"]]
        mine = {row["name"]: row for row in rows}
        chosen = [mine[name] for name in table["names"]]
        alike = timed_alike(results, table["names"])
        written = markdown_table(chosen, brief=True, timed_alike=alike).rstrip()
        lines += ["", written if chosen else "No tokenizer of this table is there."]
        lines += [f"\n{sentence}" for sentence in absent(results, table["name"])]
    return "\n".join(lines) + "\n"


def absent(results: dict[str, Any], table: str) -> list[str]:
    """Who is missing from a table, a sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in results.get("missing", ()):
        if one["table"] == table:
            reasons.setdefault(plain(one["why"]), []).append(plain(one["name"]))
    return [f"Not there: {listed(names)} ({why})." for why, names in reasons.items()]


def timed_alike(results: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether the rows of these names were timed in one environment: those that were there before may not be."""
    places = results.get("timed_in", {}) | {one["name"]: one["environment"] for one in results.get("known", ())}
    environments = [places.get(name, results["environment"]) for name in names]
    return all(one == environments[0] for one in environments)


def taken(results: dict[str, Any]) -> list[str]:
    """Whose rows were taken from an earlier comparison, a sentence for each of these."""
    shown = {row["name"] for row in results["rows"]}
    here = results["environment"]["actionpiece"]
    origins: dict[str, list[str]] = {}
    for one in results.get("known", ()):
        if one["name"] in shown:
            made = f"made by `{plain(one['command'])}`" if one["command"] else "whose command was not recorded"
            there = one["environment"]["actionpiece"]
            version = "" if there == here else f", with actionpiece {plain(there)} where this is {plain(here)}"
            origins.setdefault(f"{made}, {plain(one['created'])[:10]}{version}", []).append(plain(one["name"]))
    return [
        f"Taken from an earlier comparison ({made}): {listed(names)}, with latencies of the machine of then."
        for made, names in origins.items()
    ]
