"""The matched closed loop: one policy per tokenizer, the same starts; success against the tokenizer's error and PRC.

    actionpiece compare --data lift stack door --tokenizers tok/pq,tok/fast --out scored
    actionpiece rollout --policy policies/pq --env lift stack door --episodes 100 --size 96 --out loops/pq
    python benchmarks/closed_loop.py --scored scored/results.json --rollouts pq=loops/pq fast=loops/fast \
        --out docs/results/closed_loop

Writes OUT.json, OUT.md and OUT.svg. Every tokenizer is paired with the first one on the starts that both have finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from matplotlib.figure import Figure

from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.episodes import Journal, check_no_errors
from actionpiece.evaluation.rollout import paired, summary
from actionpiece.files import read_json, write_json, writing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b646e", "#000000")
MARKERS = "os^Dv<>P*Xph"


@dataclass(frozen=True)
class Options:
    """What to put together.

    Attributes:
        scored: results.json of `actionpiece compare` with these tokenizers by these names.
        rollouts: NAME=FOLDER for each, a folder of `actionpiece rollout`; the others are paired with the first.
        out: where to write, without an ending.
    """

    scored: Path
    rollouts: tuple[str, ...]
    out: Path


def gather(options: Options) -> dict[str, Any]:
    """The rows of the table, as plain data."""
    compared = read_json(options.scored)
    scores = {row["name"]: row for row in compared["rows"]}
    loops: dict[str, list[dict[str, Any]]] = {}
    facts: dict[str, Any] = {}
    for text in options.rollouts:
        name, _, folder = text.partition("=")
        if name not in scores:
            raise ActionPieceError(f"{options.scored} has no tokenizer '{name}'; it has {', '.join(scores)}")
        loops[name] = list(Journal(Path(folder) / "episodes.jsonl").lines.values())
        check_no_errors(loops[name])
        settings = read_json(Path(folder) / "settings.json")
        same = {key: settings[key] for key in ("execute", "size", "published", "seed")}
        if facts and facts != same:
            raise ActionPieceError(f"{folder} was rolled out with {same}, others with {facts}")
        facts = same
    first = next(iter(loops))
    starts = {name: {line["key"] for line in lines} for name, lines in loops.items()}
    for name in loops:
        if starts[name] != starts[first]:
            raise ActionPieceError(f"{name} and {first} have not finished the same starts; go on with both rollouts")
    rows = []
    for name, lines in loops.items():
        score, done = scores[name], summary(lines)
        row = {key: score[key] for key in ("tokens_per_chunk", "bits_per_chunk", "mse", "prc", "fingerprint")}
        row |= {"name": name, "overall": done["overall"], "tasks": done["tasks"], "mean_steps": done["mean_steps"]}
        row["paired_with_first"] = None if name == first else paired(lines, loops[first])
        rows.append(row)
    return {
        "command": f"python benchmarks/closed_loop.py --rollouts {' '.join(f'{name}=FOLDER' for name in loops)}",
        "first": first,
        "rollout": facts,
        "data": compared["data"],
        "protocol": compared["protocol"],
        "scored_in": compared["environment"],
        "rows": rows,
    }


def page(document: dict[str, Any]) -> str:
    """The Markdown page."""
    rows, shown = document["rows"], document["rollout"]
    tasks = list(rows[0]["tasks"])
    heads = ["tokenizer", "tokens", "MSE x1e-4", "PRC", *tasks, "all", "95 % interval", f"against {document['first']}"]
    lines = [
        "# One policy per tokenizer, closed loop",
        "",
        f"Starts are the same for all (seed {shown['seed']}), and {shown['execute']} commands of a chunk are executed"
        " before the policy looks again. MSE and PRC are of the tokenizer on"
        f" {document['protocol']['split']} chunks of the same demonstrations. The last column is McNemar's exact test"
        " on paired starts: those that only this one did, those that only the other did, and p.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---|" + "---:|" * (len(heads) - 1),
    ]
    for row in rows:
        pair, whole = row["paired_with_first"], row["overall"]
        cells = [f"{row['tokens_per_chunk']:.3g}", f"{1e4 * row['mse']:.3g}", f"{row['prc']:.4f}"]
        cells += [f"{row['tasks'][task]['successes']}/{row['tasks'][task]['episodes']}" for task in tasks]
        cells += [f"{whole['success']:.1%}", f"{whole['low']:.1%} to {whole['high']:.1%}"]
        cells.append("-" if pair is None else f"{pair['only_first']} / {pair['only_second']}, p = {pair['p']:.2g}")
        lines.append(f"| `{row['name']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(document: dict[str, Any], path: Path) -> None:
    """Success against error, and against PRC, with intervals."""
    figure = Figure(figsize=(10, 4.2))
    rows = document["rows"]
    for number, (key, factor, label) in enumerate((("mse", 1e4, "MSE x1e-4 (left is better)"), ("prc", 1, "PRC"))):
        axes = figure.add_subplot(1, 2, number + 1)
        for place, row in enumerate(rows):
            whole = row["overall"]
            below, above = whole["success"] - whole["low"], whole["high"] - whole["success"]
            axes.errorbar(
                factor * row[key],
                100 * whole["success"],
                yerr=[[100 * below], [100 * above]],
                fmt=MARKERS[place % len(MARKERS)],
                color=COLOURS[place % len(COLOURS)],
                capsize=2,
                label=row["name"],
            )
        if key == "mse":
            axes.set_xscale("log")
            axes.set_ylabel("success, % (95 % interval)")
        axes.set_xlabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(color="#dfe3e7")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


def main(options: Options) -> None:
    document = gather(options)
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".md")) as aside:
        aside.write_text(page(document))
    with writing(options.out.with_suffix(".svg")) as aside:
        draw(document, aside)
    print(page(document))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
