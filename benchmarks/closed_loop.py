"""The matched closed loop: one policy per tokenizer, the same starts; success against the tokenizer's error and PRC.

    actionpiece compare --data lift stack door --tokenizers tok/pq,tok/fast --out scored
    actionpiece rollout --policy policies/pq --env lift stack door --episodes 100 --size 96 --out loops/pq
    python benchmarks/closed_loop.py --scored scored/results.json --rollouts pq=loops/pq fast=loops/fast \
        --logs pq=policies/pq.run/log.jsonl fast=policies/fast.run/log.jsonl --out closed_loop

Writes OUT.json, OUT.md and OUT.svg. Every tokenizer is paired with the first one on the starts that both have finished.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib import rc_context
from matplotlib.figure import Figure

from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.episodes import Journal, check_no_errors
from actionpiece.evaluation.rollout import paired, summary
from actionpiece.files import read_json, write_json, writing
from actionpiece.report.labels import name_points

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b646e", "#000000")


@dataclass(frozen=True)
class Options:
    """What to put together.

    Attributes:
        scored: results.json of `actionpiece compare` with these tokenizers by these names.
        rollouts: NAME=FOLDER for each, a folder of `actionpiece rollout`; the others are paired with the first.
        logs: NAME=FILE for each, the log of its `actionpiece policy train`: what the policy does on episodes held out.
        out: where to write, without an ending.
    """

    scored: Path
    rollouts: tuple[str, ...]
    out: Path
    logs: tuple[str, ...] = ()


def gather(options: Options) -> dict[str, Any]:
    """The rows of the table, as plain data."""
    compared = read_json(options.scored)
    scores = {row["name"]: row for row in compared["rows"]}
    loops: dict[str, list[dict[str, Any]]] = {}
    facts: dict[str, Any] = {}
    made: dict[str, dict[str, Any]] = {}
    for name, folder in _pairs(options.rollouts).items():
        if name not in scores:
            raise ActionPieceError(f"{options.scored} has no tokenizer '{name}'; it has {', '.join(scores)}")
        loops[name] = list(Journal(Path(folder) / "episodes.jsonl").lines.values())
        check_no_errors(loops[name])
        settings = read_json(Path(folder) / "settings.json")
        made[name] = {"weights": settings.get("weights"), "rolled_out_in": _environment(Path(folder))}
        same = {key: settings[key] for key in ("execute", "size", "published", "seed")}
        if facts and facts != same:
            raise ActionPieceError(f"{folder} was rolled out with {same}, others with {facts}")
        facts = same
    first = next(iter(loops))
    starts = {name: {line["key"] for line in lines} for name, lines in loops.items()}
    for name in loops:
        if starts[name] != starts[first]:
            raise ActionPieceError(f"{name} and {first} have not finished the same starts; go on with both rollouts")
    logs = _pairs(options.logs)
    for name in logs:
        if name not in loops:
            raise ActionPieceError(f"there is a log of {name}, but no rollout")
    rows = []
    for name, lines in loops.items():
        score, done = scores[name], summary(lines)
        row = {key: score[key] for key in ("tokens_per_chunk", "bits_per_chunk", "mse", "prc", "fingerprint")}
        row |= {"name": name, "overall": done["overall"], "tasks": done["tasks"], "mean_steps": done["mean_steps"]}
        row |= made[name]
        row["paired_with_first"] = None if name == first else paired(lines, loops[first])
        if options.logs:
            row["held_out"] = held_out(logs, name)
        rows.append(row)
    return {
        "command": f"python benchmarks/closed_loop.py {shlex.join(sys.argv[1:])}",
        "first": first,
        "rollout": facts,
        "data": compared["data"],
        "protocol": compared["protocol"],
        "scored_in": compared["environment"],
        "rows": rows,
    }


def _environment(folder: Path) -> Any:
    """Versions and machine of a rollout that is finished."""
    return read_json(folder / "results.json")["environment"] if (folder / "results.json").is_file() else None


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """{name: place} of texts NAME=PLACE."""
    for text in texts:
        if "=" not in text:
            raise ActionPieceError(f"'{text}' is not of the form NAME=PLACE")
    return dict(text.split("=", 1) for text in texts)


def held_out(logs: dict[str, str], name: str) -> dict[str, float]:
    """The last look of a policy's training at episodes held out."""
    if name not in logs:
        raise ActionPieceError(f"--logs has no {name}")
    if not Path(logs[name]).is_file():
        raise ActionPieceError(f"there is no log {logs[name]}")
    lines = Path(logs[name]).read_text(encoding="utf-8").splitlines()
    looks = [json.loads(line) for line in lines if "val_accuracy" in line]
    if not looks:
        raise ActionPieceError(f"{logs[name]} has no look at episodes held out")
    return {key: looks[-1][f"val_{key}"] for key in ("accuracy", "translation_mm", "rotation_deg")}


def page(document: dict[str, Any]) -> str:
    """The Markdown page."""
    rows, shown = document["rows"], document["rollout"]
    tasks = list(rows[0]["tasks"])
    looks = ["tokens right", "mm off", "degrees off"] if "held_out" in rows[0] else []
    heads = ["tokenizer", "tokens", "MSE x1e-4", "PRC", *looks, *tasks, "all", "95 % interval"]
    heads.append(f"against {document['first']}")
    lines = [
        "# One policy per tokenizer, closed loop",
        "",
        f"Starts are the same for all (seed {shown['seed']}), and {shown['execute']} commands of a chunk are executed"
        " before the policy looks again. MSE and PRC are of the tokenizer on"
        f" {document['protocol']['split']} chunks of the same demonstrations. The last column is McNemar's exact test"
        " on paired starts: those that only this one did, those that only the other did, and p."
        + (" The three columns after PRC are the policy's on looks of episodes held out." if looks else ""),
        "",
        "| " + " | ".join(heads) + " |",
        "|---|" + "---:|" * (len(heads) - 1),
    ]
    for row in rows:
        pair, whole = row["paired_with_first"], row["overall"]
        cells = [f"{row['tokens_per_chunk']:.3g}", f"{1e4 * row['mse']:.3g}", f"{row['prc']:.4f}"]
        if looks:
            look = row["held_out"]
            cells += [f"{look['accuracy']:.0%}", f"{look['translation_mm']:.1f}", f"{look['rotation_deg']:.1f}"]
        cells += [f"{row['tasks'][task]['successes']}/{row['tasks'][task]['episodes']}" for task in tasks]
        cells += [f"{whole['success']:.1%}", f"{whole['low']:.1%} to {whole['high']:.1%}"]
        cells.append("-" if pair is None else f"{pair['only_first']} / {pair['only_second']}, p = {pair['p']:.2g}")
        lines.append(f"| `{row['name']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(document: dict[str, Any], path: Path) -> None:
    """Success against error, against PRC and against the policy's own error, with intervals."""
    rows = document["rows"]
    panels: list[tuple[str, str, Callable[[dict[str, Any]], float]]] = [
        ("MSE x1e-4 of the tokenizer (left is better)", "log", lambda row: 1e4 * row["mse"]),
        ("PRC of the tokenizer (right is better)", "linear", lambda row: row["prc"]),
    ]
    if "held_out" in rows[0]:
        own = "the policy's error on episodes held out, mm"
        panels.append((own, "linear", lambda row: row["held_out"]["translation_mm"]))
    figure = Figure(figsize=(4.4 * len(panels), 4.2), dpi=100)
    figure.subplots_adjust(left=0.14 / len(panels), right=1 - 0.03 / len(panels), bottom=0.12, top=0.97, wspace=0.13)
    for number, (label, scale, value) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        points = np.array([(value(row), 100 * row["overall"]["success"]) for row in rows])
        ends = 100 * np.array([(row["overall"]["low"], row["overall"]["high"]) for row in rows])
        for place, (x, y) in enumerate(points):
            colour, bar = COLOURS[place % len(COLOURS)], abs(ends[place] - y)[:, None]
            axes.errorbar(x, y, yerr=bar, fmt="o", color=colour, ecolor=f"{colour}55", capsize=2)
        axes.set_xscale(scale)
        if number == 0:
            axes.set_ylabel("success, % (95 % interval)")
        axes.set_xlabel(label)
        axes.margins(x=0.12)
        axes.set(xlim=axes.get_xlim(), ylim=(0, 100))
        axes.grid(color="#dfe3e7")
        name_points(figure, axes, points, [row["name"] for row in rows], fontsize=7.5, line="#9aa3ab")
    with rc_context({"svg.hashsalt": "actionpiece"}):  # ids would be random otherwise
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(options: Options) -> None:
    document = gather(options)
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".md")) as aside:
        aside.write_text(page(document), encoding="utf-8")
    with writing(options.out.with_suffix(".svg")) as aside:
        draw(document, aside)
    print(page(document))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
