"""The front of MSE against PRC at one number of bits: product quantisers of many blends, and codecs started from them.

    python benchmarks/front.py --data A.npz --out docs/results/front_libero --device cuda

Writes OUT.json (every row, seed, data hash, versions), OUT.md and OUT.svg.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from matplotlib.figure import Figure
from rich.console import Console

import actionpiece
from actionpiece.errors import ActionPieceError
from actionpiece.evaluation.contenders import Contender, fit, fit_together, with_steps
from actionpiece.evaluation.score import Protocol, ScoringSet, Training, environment, score
from actionpiece.files import write_json, writing
from actionpiece.tokenizers.actionpiece import best
from actionpiece.tokenizers.pq import PQConfig

COLOURS = {"least_error": "#0072b2", "balanced": "#d55e00"}


@dataclass(frozen=True)
class Options:
    """What to put on the front.

    Attributes:
        data: demonstrations with a data card.
        out: where to write, without an ending.
        blends: of the product quantisers.
        groups: how they share components among tokens.
        steps: of training, where they are not to be the recipe's.
        seed: of the fits.
        split: test for publication, validation for choosing.
        device: where the codecs train.
        together: codecs that train side by side.
        runs: a folder for their checkpoints, from which they go on after an interrupt.
        n: chunks that are scored.
    """

    data: str
    out: Path
    blends: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    groups: tuple[Literal["least_error", "balanced"], ...] = ("least_error", "balanced")
    steps: int | None = None
    seed: int = 0
    split: str = "test"
    device: str = "cpu"
    together: int = 10
    runs: Path | None = None
    n: int = 10_000


def page(document: dict[str, Any]) -> str:
    """The Markdown page."""
    data, rows = document["data"], document["rows"]
    note = f" ({data['note']})" if data["note"] else ""
    lines = [
        f"# MSE and PRC at {rows[0]['bits_per_chunk']:.0f} bits a chunk: {data['name']}{note}",
        "",
        f"Made by `{document['command']}`.",
        "Every row with its settings, versions and device is in the JSON file beside this page.",
        f"{rows[0]['n']:,} chunks of the {document['protocol']['split']} episodes, one seed.",
        "",
        "| groups | blend | product quantiser: MSE x1e-4 | PRC | codec started from it: MSE x1e-4 | PRC |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for plain, learned in zip(rows[::2], rows[1::2], strict=True):
        figures = [f"{1e4 * row['mse']:.3f} | {row['prc']:.4f}" for row in (plain, learned)]
        lines.append(f"| {plain['groups_of']} | {plain['blend']} | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def draw(document: dict[str, Any], path: Path) -> None:
    """Every pair as an arrow from the quantiser to the codec that was started from it."""
    figure = Figure(figsize=(7, 5))
    axes = figure.add_subplot()
    rows = document["rows"]
    for plain, learned in zip(rows[::2], rows[1::2], strict=True):
        colour = COLOURS[plain["groups_of"]]
        start, end = ((1e4 * row["mse"], row["prc"]) for row in (plain, learned))
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour})
        axes.plot(*start, "o", color=colour, markerfacecolor="none")
        axes.plot(*end, "o", color=colour)
        axes.annotate(f"{plain['blend']:g}", end, (-5, 3), textcoords="offset points", color=colour, ha="right")
    for name in dict.fromkeys(row["groups_of"] for row in rows):
        axes.plot([], [], "o", color=COLOURS[name], label=f"{name.replace('_', ' ')} groups, by blend")
    axes.plot([], [], "o", color="#5b646e", markerfacecolor="none", label="hollow: product quantiser; full: codec")
    axes.set_xscale("log")
    errors = [1e4 * row["mse"] for row in rows]
    ticks = [tick for tick in (0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5) if min(errors) / 2 < tick < 2 * max(errors)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("MSE x1e-4 (left is better)")
    axes.set_ylabel("PRC (up is better)")
    axes.legend(frameon=False)
    axes.grid(color="#dfe3e7")
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


def main(options: Options) -> None:
    console = Console(stderr=True)
    demos = actionpiece.open_demos(options.data)
    protocol = Protocol(split=options.split, n=options.n)
    training = Training.of(demos, protocol.horizon)
    data = ScoringSet.of(demos, training, protocol)
    places = [(groups, blend) for groups in options.groups for blend in options.blends]
    contenders = []
    for groups, blend in places:
        config = replace(best(), blends=(), groups=groups)
        config = replace(config, train=replace(config.train, blend=blend))
        config = config if options.steps is None else with_steps(config, options.steps)
        contenders.append(Contender(f"{groups} {blend:g}", "actionpiece", config))
    codecs = []
    for first in range(0, len(contenders), options.together):
        group = contenders[first : first + options.together]
        seeds = [options.seed] * len(group)
        runs = [None if options.runs is None else options.runs / one.name.replace(" ", "-") for one in group]
        fitted = fit_together(group, seeds, demos, training, runs=runs, device=options.device)
        for one, codec in zip(group, fitted, strict=True):
            if isinstance(codec, ActionPieceError):
                raise ActionPieceError(f"{one.name}: {codec}")
            codecs.append(codec)
    rows = []
    for (groups, blend), codec in zip(places, codecs, strict=True):
        config = PQConfig(blend=blend, groups=groups)
        plain = fit("pq", demos, training, config=config, seed=options.seed, draw=0, device=options.device)
        for kind, tokenizer in (("pq", plain), ("codec", codec)):
            row = score(tokenizer, data, name=f"{kind} {groups} {blend:g}").row
            rows.append(row | {"groups_of": groups, "blend": blend})
            console.print(f"{row['name']}: MSE {row['mse']:.3e} PRC {row['prc']:.4f}")
    document = {
        "command": f"python benchmarks/front.py {shlex.join(sys.argv[1:])}",
        "seed": options.seed,
        "protocol": asdict(protocol),
        "data": demos.describe(),
        "environment": environment(),
        "rows": rows,
    }
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".md")) as aside:
        aside.write_text(page(document), encoding="utf-8")
    with writing(options.out.with_suffix(".svg")) as aside:
        draw(document, aside)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
