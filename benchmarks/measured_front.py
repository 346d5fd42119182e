"""The front of MSE against PRC at 144 bits, of published ablations, fronts and classical tokenizers: a figure.

    python benchmarks/measured_front.py --classical docs/results/classical.json \
        --ablations docs/results/libero/ablation.json docs/results/teleop/ablation.json \
        --before docs/results/libero/best_before.json --fronts docs/results/front_libero.json --out docs/results/front

Writes OUT.svg, and OUT.json with the points. Those that no other point beats in both are joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib import rc_context
from matplotlib.figure import Figure

from actionpiece.errors import ActionPieceError
from actionpiece.files import read_json, write_json, writing

BITS = 144
COLOURS = {"classical": "#0072b2", "codec": "#d55e00", "blend": "#cc79a7", "best": "#009e73"}
MARKERS = {"classical": "o", "codec": "s", "blend": "D", "best": "*"}
SIDES = {
    "classical": [(7, -3, "left"), (7, -11, "left"), (7, -11, "left"), (-12, 8, "left")],
    "codec": [
        (-7, 4, "right"),
        (7, 4, "left"),
        (-7, -9, "right"),
        (-7, 1, "right"),
        (-5, -11, "right"),
        (7, 4, "left"),
        (8, -3, "left"),
        (-8, -3, "right"),
    ],
    "blend": [(-7, -3, "right"), (-7, -3, "right"), (-2, 8, "right"), (7, -3, "left"), (7, -3, "left")],
    "best": [(-4, -14, "left"), (8, -9, "left")],
}
KINDS = {
    "classical": "product quantisers",
    "codec": "the paper's codec",
    "blend": "started from other quantisers, by blend",
    "best": "best",
}
ERRORS, ORDERS = (0.2, 0.3, 0.5, 1, 2, 3, 5), (0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995)  # ticks


@dataclass(frozen=True)
class Options:
    """What to put into the figure.

    Attributes:
        classical: of `benchmarks/classical.py`.
        ablations: of `actionpiece ablate`, one for each data set.
        before: cells of `best` with an earlier start, {"cells": …} as in an ablation, of the first of these.
        fronts: of `benchmarks/front.py`: codecs started from quantisers of many blends, which are left out themselves.
        out: where to write, without an ending.
    """

    classical: Path
    ablations: tuple[Path, ...]
    out: Path
    before: Path | None = None
    fronts: tuple[Path, ...] = ()


def points(options: Options) -> dict[str, list[dict[str, Any]]]:
    """By data set: name, kind, mean MSE and PRC over seeds, how many, and whether it is on the front."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in read_json(options.classical):
        rows = [row for row in document["rows"] if row["bits_per_chunk"] == BITS]
        for name in dict.fromkeys(row["name"] for row in rows):
            own = [row for row in rows if row["name"] == name]
            mean = {key: float(np.mean([row[key] for row in own])) for key in ("mse", "prc")}
            found.setdefault(document["data"]["name"], []).append(
                {"name": name, "kind": "classical", **mean, "seeds": len(own)}
            )

    def beside(document: dict[str, Any], path: Path) -> list[dict[str, Any]]:
        name = document["data"]["name"]
        if name not in found:
            raise ActionPieceError(f"{options.classical} has no rows of {name}, which {path} is of")
        return found[name]

    for path in options.ablations:
        document = read_json(path)
        own = beside(document, path)
        for row in document["table"]:
            if row["row"] == "pq":  # the classical table has it
                continue
            kind = "best" if row["row"] == "best" else "codec"
            own.append({"name": row["label"], "kind": kind, **{key: row[key] for key in ("mse", "prc")}})
            own[-1]["seeds"] = len(row["seeds"])
    if options.before is not None:
        rows = [cell["row"] for cell in read_json(options.before)["cells"]]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in ("mse", "prc")}
        first = beside(read_json(options.ablations[0]), options.ablations[0])
        first.append({"name": "best before", "kind": "best", **mean, "seeds": len(rows)})
    for path in options.fronts:
        document = read_json(path)
        own = beside(document, path)
        for row in document["rows"]:
            if not row["name"].startswith("codec "):
                continue
            name = f"blend {row['blend']:g}, {row['groups_of'].replace('_', ' ')}"
            own.append({"name": name, "kind": "blend", "mse": row["mse"], "prc": row["prc"], "seeds": 1})
    for rows in found.values():
        for row in rows:
            row["front"] = not any(other["mse"] < row["mse"] and other["prc"] > row["prc"] for other in rows)
    return found


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A panel for each data set."""
    figure = Figure(figsize=(5.6 * len(found), 4.8))
    for number, (data, rows) in enumerate(found.items()):
        axes = figure.add_subplot(1, len(found), number + 1)
        front = sorted((row for row in rows if row["front"]), key=lambda row: row["mse"])
        axes.plot(*_places(front), color="#9aa3ab", linewidth=1, zorder=1)
        for kind in COLOURS:
            own = [row for row in rows if row["kind"] == kind]
            if not own:
                continue
            size = 130 if kind == "best" else 40
            style = {"color": COLOURS[kind], "marker": MARKERS[kind], "label": KINDS[kind], "zorder": 2}
            axes.scatter(*_places(own), s=size, **style)
        for kind in COLOURS:  # names of neighbours go to different sides of their points
            named = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["mse"])
            for row, (x, y, side) in zip(named, itertools.cycle(SIDES[kind]), strict=False):
                place, name = (
                    (1e4 * row["mse"], row["prc"]),
                    row["name"].replace(":groups=", " ").replace(":blend=", " ").replace(", balanced", ""),
                )
                axes.annotate(name, place, (x, y), textcoords="offset points", fontsize=7, ha=side)
        axes.set_xscale("log")
        # 0.9 and 0.99 are as far apart as 0.99 and 0.999: what is missing to a perfect order counts.
        axes.set_yscale(
            "function", functions=(lambda prc: -np.log10(np.maximum(1 - prc, 1e-9)), lambda at: 1 - 10.0**-at)
        )
        errors, orders = _places(rows)
        x = [tick for tick in ERRORS if 0.6 * min(errors) <= tick <= 1.7 * max(errors)]
        missing = [1 - order for order in orders]
        y = [tick for tick in ORDERS if 0.6 * min(missing) <= 1 - tick <= 1.7 * max(missing)]
        axes.set_xticks(x, [f"{tick:g}" for tick in x])
        axes.set_yticks(y, [f"{tick:g}" for tick in y])
        axes.minorticks_off()
        axes.margins(x=0.3, y=0.15)
        if number == 0:
            axes.legend(frameon=False, fontsize=7, loc="lower left")
        axes.set_title(data, fontsize=9)
        axes.set_xlabel("MSE x1e-4 (left is better)")
        axes.set_ylabel("PRC@32 (up is better)")
        axes.grid(color="#e7eaed")
    figure.tight_layout()
    with rc_context({"svg.hashsalt": "actionpiece"}):  # ids would be random otherwise
        figure.savefig(path, format="svg", metadata={"Date": None})


def _places(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [1e4 * row["mse"] for row in rows], [row["prc"] for row in rows]


def main(options: Options) -> None:
    found = points(options)
    names = " ".join(str(path) for path in options.ablations)
    command = f"python benchmarks/measured_front.py --classical {options.classical} --ablations {names}"
    if options.before is not None:
        command += f" --before {options.before}"
    if options.fronts:
        command += f" --fronts {' '.join(str(path) for path in options.fronts)}"
    # Seeds, versions and devices are in the files that were read.
    data = {each["data"]["name"]: each["data"]["fingerprint"] for each in read_json(options.classical)}
    document = {"command": f"{command} --out {options.out}", "data": data, "bits_per_chunk": BITS, "points": found}
    write_json(options.out.with_suffix(".json"), document)
    with writing(options.out.with_suffix(".svg")) as aside:
        draw(found, aside)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
