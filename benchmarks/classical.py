"""The table of the classical tokenizers on published splits: several seeds, test chunks scored once per seed.

    python benchmarks/classical.py --data A.npz B.npz --out docs/results/classical

Writes OUT.json (every row, seed, data hash, versions) and OUT.md (mean and spread over seeds).
"""

from __future__ import annotations

import re
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

import actionpiece
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.compare import compare
from actionpiece.evaluation.contenders import Contender
from actionpiece.evaluation.score import Protocol
from actionpiece.files import write_json, writing
from actionpiece.report.tables import perplexity_of

DETERMINISTIC = ("binning", "spline")  # nothing in them is random: one seed says it all


@dataclass(frozen=True)
class Options:
    """What to put into the table.

    Attributes:
        data: demonstrations with data cards; one table each.
        out: where to write, without an ending.
        tokenizers: as in `actionpiece compare`.
        seeds: of the fits.
        split: test for publication, validation for choosing.
    """

    data: tuple[str, ...]
    out: Path
    tokenizers: str = "binning,fast,spline,pq,pq:blend=0.5,pq:blend=0.75:groups=balanced,pq:blend=1.0:groups=balanced"
    seeds: tuple[int, ...] = (0, 1, 2)
    split: str = "test"


COLUMNS = {
    "tokens": ("tokens_per_chunk", 1, 1),
    "bits": ("bits_per_chunk", 1, 1),
    "MSE x1e-4": ("mse", 1e4, 3),
    "PRC@32": ("prc", 1, 4),
    "PRC across episodes": ("prc_across_episodes", 1, 4),
    "flips %": ("gripper_flips", 100, 3),
    "perplexity": ("perplexity", 1, 0),
    "overlap %": ("overlap", 100, 1),
    "valid, 1 changed %": ("valid_changed", 100, 1),
    "valid, last dropped %": ("valid_dropped", 100, 1),
}


def cell(rows: list[dict[str, Any]], key: str, factor: float, digits: int) -> str:
    values = [row[key] * factor for row in rows if row[key] is not None]
    if not values:
        return "-"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    text = f"{statistics.mean(values):.{digits}f}"
    shown = spread >= 0.5 * 10**-digits
    return f"{text} ± {spread:.{digits}f}" if shown else text


def table(rows: list[dict[str, Any]]) -> str:
    """One Markdown line per tokenizer, mean ± standard deviation over its seeds."""
    rows = [row | {"perplexity": perplexity_of(row)} for row in rows]
    groups = [group["name"] for group in rows[0]["groups"] if group["kind"] != "gripper"]
    units = {group["name"]: group["unit"] for group in rows[0]["groups"]}
    heads = ["tokenizer", *COLUMNS, *(f"{name} RMSE {units[name]}" for name in groups)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        cells = [cell(mine, *column) for column in COLUMNS.values()]
        for group in groups:
            flat = [{"rmse": next(g["rmse"] for g in row["groups"] if g["name"] == group)} for row in mine]
            cells.append(cell(flat, "rmse", 1, 3))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(documents: list[dict[str, Any]]) -> str:
    """The Markdown page of what `main` measured."""
    lines = [
        "# Classical tokenizers on published splits",
        "",
        f"Made by `{documents[0]['command']}`.",
        "Every row, with seed, data hash and versions, is in the JSON file beside this page. Mean ± standard deviation",
        "over seeds. All tokenizers see min-max normalised commands and are scored on the same held-out chunks of 8",
        "steps; their settings were chosen on validation episodes. FAST's authors recommend quantile normalisation,",
        "which is not done here.",
    ]
    for document in documents:
        data, rows = document["data"], document["rows"]
        note = f" ({data['note']})" if data["note"] else ""
        lines += [
            "",
            f"## {data['name']}{note}",
            "",
            f"{rows[0]['n']:,} chunks of the {document['protocol']['split']} episodes;"
            f" {rows[0]['prc_left_out']} anchors left out of PRC.",
            "",
            table(rows),
        ]
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """What was typed, without the folders of files: they say nothing elsewhere."""
    words = [re.sub(r"[^=,]*/", "", word) for word in sys.argv[1:]]
    return shlex.join(["python", "benchmarks/classical.py", *words])


def main(options: Options) -> None:
    console = Console(stderr=True)
    asked = [name.strip() for name in options.tokenizers.split(",") if name.strip()]
    if not asked or not options.seeds:
        raise ActionPieceError("a table needs at least one tokenizer and one seed")
    documents = []
    for path in options.data:
        demos = actionpiece.open_demos(path)
        merged: dict[str, Any] = {}
        for number, seed in enumerate(options.seeds):
            names = [name for name in asked if number == 0 or name not in DETERMINISTIC]
            if not names:
                break
            comparison = compare(
                demos,
                [Contender.parse(name) for name in names],
                protocol=Protocol(split=options.split),
                seed=seed,
                command=command_line(),
            )
            for name, why in comparison.broken.items():  # a published table without its row would look whole
                raise ActionPieceError(f"{name}: {why}")
            results = comparison.results
            merged = merged or {**results, "rows": []}
            merged["rows"] += results["rows"]
            for row in results["rows"]:
                console.print(f"{demos.name} seed {seed} {row['name']}: MSE {row['mse']:.3e} PRC {row['prc']:.4f}")
        del merged["seed"]
        documents.append(merged)
        # After every data set: an interrupted run keeps what it has.
        write_json(options.out.with_suffix(".json"), documents)
        with writing(options.out.with_suffix(".md")) as aside:
            aside.write_text(page(documents), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
